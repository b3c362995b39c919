"""Answers in the form that -o asks for: a table, JSON, YAML, names, or columns of the user's choice."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from dovetail.cli.outputs import aligned, plainly, print_json, say
from dovetail.model.errors import InputError
from dovetail.model.formats import number

Raw = Mapping[str, Any]

OutputOption = Annotated[
    str,
    typer.Option(
        "-o",
        "--output",
        metavar="FORM",
        help="json, yaml, wide, name, or custom-columns=HEAD:.path,...",
        show_default=False,
    ),
]
PlainOutputOption = Annotated[
    str, typer.Option("-o", "--output", metavar="FORM", help="json or yaml.", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="The same as -o json.")]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its heading, the text of an item, and its alignment."""

    head: str
    shown: Callable[[Raw], str]
    left: bool = True


@dataclass(frozen=True, slots=True)
class Form:
    """The output format of an answer."""

    kind: str = "text"  # text | wide | json | yaml | name | custom-columns
    columns: tuple[tuple[str, str], ...] = ()  # heads and paths of custom columns

    @property
    def for_programs(self) -> bool:
        return self.kind in ("json", "yaml")


def read_form(text: str, as_json: bool, kinds: Sequence[str] = ("json", "yaml", "wide", "name")) -> Form:
    """The format that -o and --json ask for."""
    if as_json and text not in ("", "json"):
        raise InputError(f"--json and -o {text} exclude each other; give one of them")
    if as_json:
        return Form("json")
    if not text:
        return Form()
    kind, equals, rest = text.partition("=")
    if kind == "custom-columns" and "name" in kinds:
        pairs = [part.partition(":") for part in rest.split(",") if part.strip()]
        if not equals or not pairs:
            raise InputError(f"-o {text} has no columns; write -o custom-columns=ID:.id,NAME:.name")
        found = [(head, path.strip() if colon else head) for head, colon, path in pairs]
        if any(not head.strip() or not path.strip(". ") for head, path in found):
            raise InputError(f"-o {text} has a column without a name or a path; write HEAD:.path")
        return Form(kind, tuple((head.strip(), path.strip().lstrip(".")) for head, path in found))
    if text not in kinds:
        known = ", ".join(kinds) + (" or custom-columns=..." if "name" in kinds else "")
        raise InputError(f"-o {text} is not an output format; write {known}")
    return Form(text)


def print_value(value: Raw, form: Form) -> bool:
    """Print the value if the format is JSON or YAML; say whether it was printed."""
    if form.kind == "json":
        print_json(value)
    elif form.kind == "yaml":
        import yaml

        typer.echo(yaml.safe_dump(_plain(value), sort_keys=False, allow_unicode=True), nl=False)
    return form.for_programs


def print_items(
    items: Sequence[Raw],
    form: Form,
    *,
    key: str,
    name: str,
    columns: Sequence[Column],
    wide: Sequence[Column] = (),
    head: str = "",
    foot: str = "",
) -> None:
    """Print items in the chosen format; `head` and `foot` are for tables only."""
    if print_value({key: list(items)}, form):
        return
    if form.kind == "name":
        for item in items:
            say(plainly(str(item.get(name, ""))))
        return
    if form.kind == "custom-columns":
        columns, head, foot = [_custom(title, path) for title, path in form.columns], "", ""
    elif form.kind == "wide":
        columns = [*columns, *wide]
    if head:
        say(head)
    if items:
        if head:
            say()
        print_table(items, columns, indent="" if form.kind == "custom-columns" else "  ")
        if foot:
            say()
            say(foot)


def print_table(items: Iterable[Raw], columns: Sequence[Column], indent: str = "  ") -> None:
    rows = [[column.head for column in columns]]
    rows += [[plainly(column.shown(item)) for column in columns] for item in items]
    say(aligned(rows, left=[at for at, column in enumerate(columns) if column.left], indent=indent))


def plain(key: str, *, head: str | None = None, left: bool = True, empty: str = "-") -> Column:
    """A column that shows a field as it is."""

    def shown(item: Raw) -> str:
        value = item.get(key)
        return empty if value is None or value in ("", []) else _text(value)

    return Column(key.replace("_", " ") if head is None else head, shown, left)


def at_path(item: Any, path: str) -> Any:
    """The value at a path such as `placement[0].node`, as in kubectl; None if there is none."""
    for part in re.findall(r"[^.\[\]]+", path):
        if isinstance(item, Mapping):
            item = item.get(part)
        elif isinstance(item, list) and part.isdigit() and int(part) < len(item):
            item = item[int(part)]
        else:
            return None
    return item


def _custom(head: str, path: str) -> Column:
    def shown(item: Raw) -> str:
        value = at_path(item, path)
        return "<none>" if value is None else _text(value)

    return Column(head, shown)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value, 6)
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    if isinstance(value, Mapping):
        return ",".join(f"{key}={_text(inner)}" for key, inner in value.items())
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
