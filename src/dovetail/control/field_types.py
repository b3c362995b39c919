"""Types of the fields of a request: each reads a value, describes it as JSON schema, and writes it back.

A type accepts exactly what its JSON schema describes, as far as a schema can say it: a value generated from
the schema is accepted, and any other is refused. A pattern is written once and serves both. What was read is
written back as a value that reads the same, so that a request can be stored as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from dovetail.control.problems import refusal, refusals, shown
from dovetail.model.units import SECOND, WHOLE, parse_duration, parse_memory, parse_share

PRIORITIES = {"low": -100, "normal": 0, "high": 100, "urgent": 1_000}
MOST_PRIORITY = 1_000_000
MOST_SECONDS = 999_999_999
MOST_ENV = 1_000
LONGEST_WORD = 32_000  # characters; at most 128 kB, which is all that Linux takes for one word of a command

Schema = dict[str, Any]


@dataclass(frozen=True, eq=False)
class FieldType:
    """The type of one field; used inside `Annotated`."""

    read: Callable[[Any], object]
    schema: Schema
    write: Callable[[Any], object] | None = None

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        write = self.write and core_schema.plain_serializer_function_ser_schema(self.write)
        return core_schema.no_info_plain_validator_function(self.read, serialization=write)

    def __get_pydantic_json_schema__(
        self, core: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> Schema:
        return dict(self.schema)


def tidied(more: Schema | None = None) -> Callable[[Schema], None]:
    """A model's schema as it is published: what may be left out is not null, and titles say nothing new."""

    def tidy(schema: Schema) -> None:
        schema.update(more or {})
        for field in schema["properties"].values():
            field.pop("title", None)
            if field.get("default", 0) is None or isinstance(field.get("default"), dict):
                del field["default"]
            choices = [choice for choice in field.get("anyOf", ()) if choice != {"type": "null"}]
            if len(choices) == 1:
                del field["anyOf"]
                field.update(choices[0])

    return tidy


def anchored(pattern: str) -> str:
    """A whole pattern as JSON schema wants it."""
    return f"^(?:{pattern})$"


# -- text ------------------------------------------------------------------------------------------

# Characters that would change what else a terminal shows: controls, line separators, directions.
_UNSEEN = r"\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069\ufeff"


def text_field(most: int, *, least: int = 0, pattern: str = r"[^\u0000]*", remedy: str = "") -> FieldType:
    """Text of some length, all of it of a pattern."""
    whole = re.compile(pattern)

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise refusal(f"{shown(value)} is not text; put it in quotes")
        if not least <= len(value) <= most:
            raise refusal(f"a text of {len(value):,} characters; it must have {least} to {most:,}")
        if whole.fullmatch(value) is None:
            raise refusal(f"{shown(value)} cannot be used; {remedy or 'take the NUL character out'}")
        return value

    schema = {"type": "string", "maxLength": most, "pattern": anchored(pattern)}
    return FieldType(read, {**schema, "minLength": least} if least else schema)


NAME = text_field(200, least=1, pattern=f"[^{_UNSEEN}]*", remedy="write it without control characters")
LABEL = text_field(200, pattern=f"[^{_UNSEEN}]*", remedy="write it without control characters")
COMMENT = text_field(2_000, pattern=r"[^\u0000-\u0008\u000b-\u001f\u007f-\u009f]*", remedy="write plain text")
TENANT = text_field(
    100, pattern="[A-Za-z0-9][A-Za-z0-9._@-]*", remedy="a queue is named with letters, digits, . _ @ and -"
)
PATH = text_field(4_000, pattern=r"[^\u0000\n\r]*", remedy="write a file name of one line")
SHELL = text_field(500_000)


def choice_field(*choices: str, refused: Mapping[str, str] | None = None) -> FieldType:
    """One of a few words."""

    def read(value: object) -> str:
        if isinstance(value, str) and value in choices:
            return value
        if isinstance(value, str) and refused and value in refused:
            raise refusal(refused[value])
        raise refusal(f"{shown(value)} is not known; choose {' | '.join(choices)}")

    return FieldType(read, {"type": "string", "enum": list(choices)})


def _read_switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise refusal(f"{shown(value)} is neither true nor false")
    return value


SWITCH = FieldType(_read_switch, {"type": "boolean"})


# -- numbers ---------------------------------------------------------------------------------------


def number(value: object) -> float | int | None:
    """The value if it is a number; true and false are none. A whole float is a whole number, as in JSON."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if isinstance(value, float) and value.is_integer() else value


def count_field(least: int, most: int, hint: Callable[[object], str] | None = None) -> FieldType:
    """A whole number within bounds."""

    def read(value: object) -> int:
        whole = number(value)
        if not isinstance(whole, int):
            raise refusal((hint and hint(value)) or f"{shown(value)} is not a whole number")
        if not least <= whole <= most:
            raise refusal(f"{whole:,} is out of bounds; it must be from {least:,} to {most:,}")
        return whole

    return FieldType(read, {"type": "integer", "minimum": least, "maximum": most})


def _read_priority(value: object) -> int:
    if isinstance(value, str) and value in PRIORITIES:
        return PRIORITIES[value]
    whole = number(value)
    if not isinstance(whole, int) or abs(whole) > MOST_PRIORITY:
        raise refusal(
            f"{shown(value)} is not a priority; write {' | '.join(PRIORITIES)} "
            f"or a whole number from -{MOST_PRIORITY:,} to {MOST_PRIORITY:,}"
        )
    return whole


PRIORITY = FieldType(
    _read_priority,
    {
        "anyOf": [
            {"type": "integer", "minimum": -MOST_PRIORITY, "maximum": MOST_PRIORITY},
            {"type": "string", "enum": list(PRIORITIES)},
        ]
    },
)


# -- amounts ---------------------------------------------------------------------------------------

_DECIMAL = r"(?:\.[0-9]{1,6})?"
_UNITS = "".join(
    f"(?:[0-9]{{1,{digits}}}{_DECIMAL} ?{unit} ?)?"
    for digits, unit in ((4, "w"), (5, "d"), (6, "h"), (7, "m"), (9, "s"), (12, "ms"), (15, "us"))
)
_CLOCK = "(?:[0-9]{1,4}-)?[0-9]{1,6}:[0-5][0-9](?::[0-5][0-9])?"
_DURATION = f"0|{_CLOCK}|{_UNITS}"
_IS_DURATION = re.compile(_DURATION)
# With every unit left out the pattern takes the empty text too; a minimum length says no to that.
_DURATION_TEXT = {"type": "string", "minLength": 1, "maxLength": 100, "pattern": anchored(_DURATION)}


def _amount(value: object, parse: Callable[[str], int], pattern: re.Pattern[str], what: str) -> int:
    """An amount with its unit, from text of a pattern; the parser says what is wrong with a bare number."""
    bare = number(value)
    text = value if isinstance(value, str) else "" if bare is None else f"{bare}"
    try:
        amount = parse(text) if 1 <= len(text) <= 100 else -1
    except ValueError as error:
        raise refusal(str(error)) from None
    if amount < 0 or (bare != 0 and pattern.fullmatch(text) is None):
        raise refusal(f"{shown(value)} is not {what}")
    return amount


def duration(value: object) -> int:
    """Microseconds of `45m`, `2h30m`, `10:00` (minutes) or `1-12:00:00`; of bare numbers only 0."""
    micros = _amount(value, parse_duration, _IS_DURATION, "a duration; write 90s, 45m, 2h30m or 1-12:00:00")
    return min(micros, MOST_SECONDS * SECOND)  # thirty years are for ever


def _write_duration(value: int | None) -> str | None:
    return None if value is None else f"{value // SECOND}s" if value % SECOND == 0 else f"{value}us"


_ZERO = {"type": "number", "minimum": 0, "maximum": 0}
DURATION = FieldType(duration, {"anyOf": [_ZERO, _DURATION_TEXT]}, _write_duration)

TIME_LIMIT = FieldType(lambda value: duration(value) or None, DURATION.schema, _write_duration)  # 0: none

# So many digits that none is more than what a number in JSON says exactly: a node with a petabyte is far off.
SIZE = "|".join(
    f"[0-9]{{1,{digits}}}{_DECIMAL} ?{unit}[bB]" + ("?" if unit else "")
    for digits, unit in ((15, ""), (12, "[kK]i?"), (9, "[mM]i?"), (6, "[gG]i?"), (3, "[tT]i?"))
)
_IS_SIZE = re.compile(f"(?:{SIZE})[+]?")


def _read_memory(value: object) -> int:
    def parse(text: str) -> int:
        return parse_memory(text.rstrip("+"))

    found = _amount(value, parse, _IS_SIZE, "an amount of memory; write 32G or 400GB")
    if number(value) is not None or len(str(value)) > 40:
        raise refusal(f"{shown(value)} is not an amount of memory; write 32G or 400GB")
    return found


MEMORY = FieldType(
    _read_memory,
    {"type": "string", "maxLength": 40, "pattern": anchored(f"(?:{SIZE})[+]?")},
    lambda value: None if value is None else f"{value}B",
)

_CORES = r"[0-9]{1,5}(?:\.[0-9]{1,3})?[+]?"


def _read_cores(value: object) -> int:
    amount = number(value)
    if amount is None and isinstance(value, str) and re.fullmatch(_CORES, value):
        amount = float(value.rstrip("+"))
    if amount is None or not 0 <= amount <= 99_999.999:
        raise refusal(f"{shown(value)} is not a number of CPUs; write 32, 0.5 or 32+ (at least)")
    return round(amount * 1_000)


CORES = FieldType(
    _read_cores,
    {
        "anyOf": [
            {"type": "number", "minimum": 0, "maximum": 99_999.999},
            {"type": "string", "pattern": anchored(_CORES)},
        ]
    },
    lambda value: None if value is None else value / 1_000,
)

_PERCENT = r"100%|[1-9][0-9]?(?:\.[0-9])?%"
_IS_PERCENT = re.compile(_PERCENT)


def _read_share(value: object) -> int:
    bare = number(value)
    if bare is not None:
        try:
            return parse_share(bare)
        except ValueError as error:
            raise refusal(str(error)) from None
    return _amount(value, parse_share, _IS_PERCENT, "a share of a GPU; write 50% or 0.5")


SHARE = FieldType(
    _read_share,
    {
        "anyOf": [
            {"type": "number", "minimum": 0.001, "maximum": 1},
            {"type": "string", "pattern": anchored(_PERCENT)},
        ]
    },
    lambda value: value / WHOLE,
)


# -- moments ---------------------------------------------------------------------------------------

_DAY = "[12][0-9]{3}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,6})?)?"
_MOMENT = f"{_DAY}(?:[T ]{_TIME}(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])?)?|[+](?:{_DURATION})"
_IS_MOMENT = re.compile(_MOMENT)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(text: str, now: int) -> int:
    """Microseconds since 1970 of an ISO 8601 moment (UTC, unless it says otherwise) or of `+2h` from now."""
    if text.startswith("+"):
        return now + parse_duration(text[1:])
    when = datetime.fromisoformat(text)
    return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def _read_moment(value: object) -> str:
    if isinstance(value, str) and 2 <= len(value) <= 100 and _IS_MOMENT.fullmatch(value):
        try:
            moment(value, 0)
        except ValueError as error:
            raise refusal(f"{shown(value)} is not a moment: {error}") from None
        return value
    raise refusal(f"{shown(value)} is not a moment; write 2026-12-01T09:00Z, or +2h from now")


MOMENT = FieldType(
    _read_moment,
    {"type": "string", "minLength": 2, "maxLength": 100, "pattern": anchored(_MOMENT)},
)


# -- tables and lists ------------------------------------------------------------------------------

_ENV_NAME = "(?!DOVETAIL_)[A-Za-z_][A-Za-z0-9_]*"


def _read_env(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise refusal(f"{shown(value)} found where a mapping of names to values is needed")
    if len(value) > MOST_ENV:
        raise refusal(f"{len(value):,} variables; the most is {MOST_ENV:,}, so put the others in a file")
    wrong: list[tuple[tuple[str | int, ...], str]] = []
    env: dict[str, str] = {}
    for name, item in value.items():
        if re.fullmatch(_ENV_NAME, name) is None or len(name) > 256:
            own = name.startswith("DOVETAIL_")
            remedy = "DOVETAIL_ is set by Dovetail" if own else "use letters, digits and _, no digit first"
            wrong.append(((name,), f"{shown(name)} cannot name a variable; {remedy}"))
        elif isinstance(item, bool):
            env[name] = "true" if item else "false"
        elif isinstance(item, int | float) and abs(item) <= 1e15:
            env[name] = str(item)
        elif not isinstance(item, str) or len(item) > LONGEST_WORD:
            wrong.append(
                ((name,), f"the value is {shown(item)}; write text of at most {LONGEST_WORD:,} characters")
            )
        else:
            env[name] = item
    if wrong:
        raise refusals(wrong)
    return env


ENV = FieldType(
    _read_env,
    {
        "type": "object",
        "maxProperties": MOST_ENV,
        "propertyNames": {"pattern": anchored(_ENV_NAME), "maxLength": 256},
        "additionalProperties": {
            "anyOf": [
                {"type": "string", "maxLength": LONGEST_WORD, "pattern": anchored(r"[^\u0000]*")},
                {"type": "number", "minimum": -1e15, "maximum": 1e15},
                {"type": "boolean"},
            ]
        },
    },
)


def list_field(item: FieldType, most: int, first: FieldType | None = None) -> FieldType:
    """A list with items of one type; with `first` at least one item, the first of that type."""
    least = 0 if first is None else 1

    def read(value: object) -> tuple[object, ...]:
        if not isinstance(value, list):
            raise refusal(f"{shown(value)} found where a list is needed")
        if not least <= len(value) <= most:
            raise refusal(f"a list of {len(value):,}; it must have {least} to {most:,} items")
        wrong: list[tuple[tuple[str | int, ...], str]] = []
        found: list[object] = []
        for i, each in enumerate(value):
            try:
                found.append((first if first and not i else item).read(each))
            except PydanticCustomError as error:
                wrong.append(((i,), error.message()))
        if wrong:
            raise refusals(wrong[:20])
        return tuple(found)

    schema: Schema = {"type": "array", "items": item.schema, "maxItems": most}
    if first:
        schema.update(prefixItems=[first.schema], minItems=1)
    return FieldType(read, schema, lambda value: None if value is None else list(value))


def parsed_field(
    pattern: str, parse: Callable[[str], object], most: int, also: Sequence[Schema] = ()
) -> FieldType:
    """Text that a parser must take; it stays text."""

    def read(value: object) -> str:
        if not isinstance(value, str) or len(value) > most:
            raise refusal(f"{shown(value)} is not text of at most {most:,} characters")
        try:
            parse(value)
        except ValueError as error:
            raise refusal(str(error)) from None
        return value

    schema = {"type": "string", "maxLength": most, "pattern": anchored(pattern)}
    return FieldType(read, {"anyOf": [schema, *also]} if also else schema)
