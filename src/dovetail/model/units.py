"""Units: integer microseconds inside and seconds at the edges, bytes of memory, shares in milli-GPUs.

Times are integers because a float alarm would fire a rounding error early at some point, and then for ever.
"""

from __future__ import annotations

import re

from dovetail.model.formats import duration

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
WHOLE = 1_000  # milli-GPUs in a GPU
BOUNDLESS = 1 << 60  # more CPU or memory than any job asks for

_STEP = {"us": 1, "ms": 1_000, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d|w)")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d(?:\.\d+)?))?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)(b?)", re.IGNORECASE)
_PLAIN = re.compile(r"\d+(?:\.\d+)?")
_BARE = re.compile(r"\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+")


def micros(seconds: float) -> int:
    """Seconds as microseconds, the core's unit."""
    return round(seconds * SECOND)


def seconds(micros: int) -> float:
    """The core's microseconds as seconds for people and files."""
    return micros / SECOND


def parse_duration(text: str | float, *, bare: int | None = None) -> int:
    """`45m`, `2h30m`, `1-12:00:00`, `10:00` (minutes and seconds) or `0` in microseconds.

    A number without a unit is refused: Slurm would read minutes, others seconds. A format that says what it
    means gives that unit as `bare`.

    >>> parse_duration("2h30m") == parse_duration("02:30:00") == parse_duration(9_000, bare=SECOND)
    True
    """
    plain = _number(text) if isinstance(text, int | float) else text.strip().lower()
    if clock := _CLOCK.fullmatch(plain):
        days, first, second, third = clock.groups()
        if third is None and days is None:
            return micros(int(first) * 60 + int(second))
        return int(days or 0) * DAY + int(first) * HOUR + int(second) * MINUTE + micros(float(third or 0))
    if plain and _PART.sub("", plain).strip() == "":
        return sum(round(float(number) * _STEP[unit]) for number, unit in _PART.findall(plain))
    if not _BARE.fullmatch(plain):
        raise ValueError(f"{text!r} is not a duration; write 90s, 45m, 2h30m or 1-12:00:00")
    if float(plain) and bare is None:
        remedy = f"{plain}s, {plain}m or {plain}h" if _PLAIN.fullmatch(plain) else "90s, 45m or 2h30m"
        raise ValueError(f"{plain} has no unit; write {remedy}")
    try:
        return round(float(plain) * (bare or 1))
    except OverflowError:
        raise ValueError(f"{text!r} is too long for a duration") from None


def parse_memory(text: str | int, *, bare: int | None = None) -> int:
    """`32G`, `400GB`, `512MiB` or `0` in bytes; as in Slurm, G means GiB with or without the i.

    A number without a unit is refused: Slurm would read megabytes, SkyPilot gigabytes. A format that says
    what it means gives that unit as `bare`.

    >>> parse_memory("32G") == parse_memory(32, bare=GIB) == 32 * GIB
    True
    """
    plain = str(text).strip()
    match = _SIZE.fullmatch(plain)
    if match is None:
        raise ValueError(f"{text!r} is not an amount of memory; write 32G or 400GB")
    number, prefix, _, byte = match.groups()
    if not prefix and not byte and float(number):
        if bare is None:
            raise ValueError(f"{plain} has no unit; write {plain}G or {plain}M")
        return round(float(number) * bare)
    return round(float(number) * (1 << (10 * " kmgtp".index(prefix.lower() or " "))))


def parse_share(text: str | float) -> int:
    """`50%` or `0.5` of a GPU in thousandths. A whole number is refused, but for 1: 50 may be 50 % or 5 %.

    >>> parse_share("50%"), parse_share(0.5), parse_share("1")
    (500, 500, 1000)
    """
    plain = _number(text) if isinstance(text, int | float) else text.strip()
    number = plain.removesuffix("%").rstrip()
    if _BARE.fullmatch(number):
        value = float(number) / 100 if plain.endswith("%") else float(number)
        if 0.001 <= value <= 1:
            return round(value * WHOLE)
        if 1 < value <= 100 and value == value // 1:
            raise ValueError(f"{plain} of a GPU has no unit; write {plain}% or {value / 100:g}")
    raise ValueError(f"{text!r} is not a share of a GPU; write 50% or 0.5")


def _number(value: float) -> str:
    """A number as it is written: 2, not 2.0."""
    return str(int(value)) if value == value // 1 and abs(value) < 1e15 else str(value)


def spoken(micros: float) -> str:
    """A duration as people read it.

    >>> spoken(9_000 * SECOND), spoken(0), spoken(1_500)
    ('2 h 30 min', '0 s', '2 ms')
    """
    return duration(micros / SECOND)
