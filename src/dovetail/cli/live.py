"""What the verbs of the live plane share: finding it, forms of an answer, and times as people say them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.outputs import aligned, plainly, print_json, say
from dovetail.model.errors import InputError

if TYPE_CHECKING:
    from datetime import datetime

    from dovetail.client.client import Client, Span

Raw = Mapping[str, Any]

StateOption = Annotated[
    str | None,
    typer.Option("--state", metavar="DIR", help="The plane's state folder.", show_default=False),
]
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
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", show_default=False)]
JobsArgument = Annotated[
    list[str], typer.Argument(metavar="JOB...", help="Ids of jobs or arrays.", show_default=False)
]
TasksOption = Annotated[
    str | None,
    typer.Option("--array", metavar="3-7", help="Only these members of an array.", show_default=False),
]


def connected(state: str | None, *, patience: float = 10.0) -> Client:
    """The plane that was meant: --state, DOVETAIL_URL, or the one of this machine."""
    from dovetail.client.client import Client

    return Client(state=state, patience=patience)


def job_id(text: str) -> str:
    """An id as typed; `job/ID` as kubectl has it is an id too."""
    found = text.strip().removeprefix("job/").removeprefix("jobs/")
    if not re.fullmatch(r"[A-Za-z0-9]{1,64}(_\d{1,9})?", found):
        raise InputError(f"{plainly(text)!r} is no job's id; see them with dovetail ps")
    return found


# --- forms -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its head, what it shows of an item, and which way it leans."""

    head: str
    shown: Callable[[Raw], str]
    left: bool = True


@dataclass(frozen=True, slots=True)
class Form:
    """How an answer is wanted."""

    kind: str = "text"  # text | wide | json | yaml | name | custom-columns
    columns: tuple[tuple[str, str], ...] = ()  # heads and paths of custom columns

    @property
    def for_programs(self) -> bool:
        return self.kind in ("json", "yaml")


def read_form(text: str, as_json: bool, kinds: Sequence[str] = ("json", "yaml", "wide", "name")) -> Form:
    """What -o and --json ask for."""
    if as_json and text not in ("", "json"):
        raise InputError(f"--json and -o {text} ask for two forms; leave one out")
    if as_json:
        return Form("json")
    if not text:
        return Form()
    kind, equals, rest = text.partition("=")
    if kind == "custom-columns" and "name" in kinds:
        pairs = [part.partition(":") for part in rest.split(",") if part.strip()]
        if not equals or not pairs:
            raise InputError(f"-o {text} names no columns; write -o custom-columns=ID:.id,NAME:.name")
        found = [(head, path.strip() if colon else head) for head, colon, path in pairs]
        if any(not head.strip() or not path.strip(". ") for head, path in found):
            raise InputError(f"-o {text} has a column without a name or a path; write HEAD:.path")
        return Form(kind, tuple((head.strip(), path.strip().lstrip(".")) for head, path in found))
    if text not in kinds:
        known = ", ".join(kinds) + (" or custom-columns=..." if "name" in kinds else "")
        raise InputError(f"-o {text} is no form of answer; write {known}")
    return Form(text)


def print_value(value: Raw, form: Form) -> bool:
    """Print it if it is for a program; else the caller has words for it."""
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
    """A list of things in the form that was asked for; `head` and `foot` are for people only."""
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
    """`placement[0].node`, as in kubectl; None where there is nothing."""
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
        return f"{value:g}"
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


def say_each(names: Iterable[str], told: Callable[[str], str]) -> None:
    """Do something to each of several and say what came of it; one that is wrong does not stop the rest."""
    wrong: dict[str, None] = {}
    for name in names:
        try:
            say(plainly(told(name)))
        except InputError as error:
            wrong[str(error)] = None
    if wrong:
        raise InputError("; ".join(wrong))


def told_states(array: Raw) -> str:
    """`2 completed, 1 failed`, of an array."""
    return ", ".join(f"{number} {word}" for word, number in array["states"].items() if number)


# --- times -----------------------------------------------------------------------------------------


def now() -> datetime:
    from datetime import UTC, datetime

    return datetime.now(UTC)


def lasting(seconds: float | None) -> str:
    """`12 min`, `2.5 h`; `-` for what is not known."""
    from dovetail.model.units import micros, spoken

    return "-" if seconds is None else spoken(micros(round(max(seconds, 0.0))))


def since(text: Any) -> float | None:
    """Seconds since a moment."""
    from dovetail.client.client import moment

    at = moment(text)
    return (now() - at).total_seconds() if hasattr(at, "tzinfo") else None


def ago(text: Any) -> str:
    """`12 min ago`, `in 3 h`."""
    passed = since(text)
    if passed is None:
        return "-"
    if abs(passed) < 1:
        return "now"
    return f"{lasting(passed)} ago" if passed > 0 else f"in {lasting(-passed)}"


def clock(text: Any) -> str:
    """A moment on the local clock, as short as it can be told."""
    from dovetail.client.client import moment

    at = moment(text)
    if not hasattr(at, "astimezone"):
        return "-"
    local, today = at.astimezone(), now().astimezone()
    if abs((local - today).total_seconds()) < 16 * 3600 and local.date() == today.date():
        return str(local.strftime("%H:%M"))
    if abs((local - today).total_seconds()) < 6 * 86_400:
        return str(local.strftime("%a %H:%M"))
    return str(local.strftime("%Y-%m-%d %H:%M"))


def expected(span: Span | None) -> str:
    """`about 14:20 (in 12 min), between 14:05 and 15:30`; empty if nobody can tell."""
    if span is None or span.likely is None:
        return ""
    likely = span.likely.isoformat()
    if (since(likely) or 0.0) >= -1:
        return "now"
    text = f"about {clock(likely)} ({ago(likely)})"
    if span.low is not None and span.high is not None and span.low != span.high:
        low, high = clock(span.low.isoformat()), clock(span.high.isoformat())
        text += f", between {low} and {high}" if low != high else ""
    return text


def read_moment(text: str, option: str) -> str:
    """`3d` (ago), `2026-11-01`, `2026-11-01T09:00`, `today` or `yesterday` as the API has moments."""
    from datetime import UTC, datetime, timedelta

    from dovetail.model.units import parse_duration, seconds

    word = text.strip().lower()
    if word.isdecimal():
        raise InputError(f"{option} {word} of what? write {word}d (days ago), {word}h, or 2026-11-01")
    midnight = now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    if word in ("today", "yesterday"):
        at = midnight - timedelta(days=word == "yesterday")
    else:
        try:
            at = datetime.fromisoformat(text.strip())
            at = at if at.tzinfo else at.astimezone()
        except ValueError:
            try:
                at = now() - timedelta(seconds=seconds(parse_duration(word)))
            except (ValueError, OverflowError):
                raise InputError(
                    f"{option} {plainly(text)!r} is no moment; write 3d (ago), today, or 2026-11-01T09:00"
                ) from None
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


# --- node ranges -----------------------------------------------------------------------------------


def node_names(texts: Iterable[str]) -> list[str]:
    """`gpu[01-08,11]` and `a,b` as Slurm writes them.

    >>> node_names(["gpu[01-03,7]", "a,b"])
    ['gpu01', 'gpu02', 'gpu03', 'gpu7', 'a', 'b']
    """
    found: list[str] = []
    part = r"(?:[^,\[\]]|\[[^\[\]]*\])+"
    for text in texts:
        if not re.fullmatch(f"{part}(?:,{part})*", text):
            raise InputError(f"{plainly(text)!r} is no range of nodes; write gpu[01-08]")
        for name in re.findall(part, text):
            found += _expanded(name.strip())
    if not found or any(not name for name in found):
        raise InputError("no node was named; write n0, n0,n1 or gpu[01-08]")
    return list(dict.fromkeys(found))


def _expanded(part: str) -> list[str]:
    match = re.fullmatch(r"([^\[\]]*)\[([^\[\]]*)\](.*)", part)
    if match is None:
        if "[" in part or "]" in part:
            raise InputError(f"{plainly(part)!r} is no range of nodes; write gpu[01-08]")
        return [part]
    before, inside, after = match.groups()
    numbers: list[str] = []
    for piece in inside.split(","):
        ends = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", piece)
        if ends is None or (ends[2] and int(ends[2]) < int(ends[1])):
            raise InputError(f"{plainly(part)!r} is no range of nodes; write gpu[01-08]")
        low, high = int(ends[1]), int(ends[2] or ends[1])
        if high - low + len(numbers) >= 100_000:
            raise InputError(f"{plainly(part)!r} names more nodes than there are anywhere")
        numbers += [f"{number:0{len(ends[1])}d}" for number in range(low, high + 1)]
    return [f"{before}{number}{rest}" for number in numbers for rest in _expanded(after)]
