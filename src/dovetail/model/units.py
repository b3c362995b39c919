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
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?", re.IGNORECASE)


def micros(seconds: float) -> int:
    """Seconds as microseconds, the core's unit."""
    return round(seconds * SECOND)


def seconds(micros: int) -> float:
    """The core's microseconds as seconds for people and files."""
    return micros / SECOND


def parse_duration(text: str | float) -> int:
    """`90`, `1.5h`, `2h30m`, `1-12:00:00` or `10:00` (minutes and seconds) in microseconds.

    >>> parse_duration("2h30m") == parse_duration("02:30:00") == 9_000 * SECOND
    True
    """
    if not isinstance(text, str):
        return micros(text)
    plain = text.strip().lower()
    if clock := _CLOCK.fullmatch(plain):
        days, first, second, third = clock.groups()
        if third is None and days is None:
            return micros(int(first) * 60 + int(second))
        return int(days or 0) * DAY + int(first) * HOUR + int(second) * MINUTE + micros(float(third or 0))
    if plain and _PART.sub("", plain).strip() == "":
        return sum(round(float(number) * _STEP[unit]) for number, unit in _PART.findall(plain))
    try:
        return micros(float(plain))
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no duration; write 90, 45m, 2h30m or 1-12:00:00") from None


def parse_memory(text: str | int) -> int:
    """`32G`, `400GB`, `512MiB` or plain bytes; as in Slurm, G means GiB with or without the i.

    >>> parse_memory("32G") == 32 * GIB
    True
    """
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no amount of memory; write 32G or 400GB")
    number, prefix, _ = match.groups()
    return round(float(number) * (1 << (10 * " kmgtp".index(prefix.lower() or " "))))


def spoken(micros: float) -> str:
    """A duration as people read it.

    >>> spoken(9_000 * SECOND), spoken(0), spoken(1_500)
    ('2 h 30 min', '0 s', '2 ms')
    """
    return duration(micros / SECOND)
