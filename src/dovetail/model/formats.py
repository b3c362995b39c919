"""Amounts as people read them: `1 min 16 s`, `0.1 GPU h`, `512 GiB`, `71 %`.

Every text for people takes its amounts from here: the command line, reasons, reports. The page has the same
rules in `dashboard/format.js`; a test compares the two. Programs get plain numbers, in JSON.
"""

from __future__ import annotations

from math import isfinite

MINUTE, HOUR, DAY = 60, 3_600, 86_400
LEAST_HOURS = 0.001
UNITS = ((float(HOUR), "h"), (float(MINUTE), "min"), (1.0, "s"))
SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def number(value: float, digits: int = 2) -> str:
    """A number with at most this many digits after the point, never with an exponent.

    >>> number(1234.56), number(12.5), number(0.071), number(3.0), number(5.9e-05)
    ('1,234.6', '12.5', '0.07', '3', '0')
    """
    if not isfinite(value):
        return "-"
    from decimal import ROUND_HALF_UP, Decimal  # noqa: PLC0415  most commands print no such number

    places = min(digits, 1) if abs(value) >= 100 else digits
    exact = Decimal(repr(value)).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    text = f"{exact:,f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def figure(value: float) -> str:
    """A number with about three significant digits, for columns of numbers that are compared.

    >>> figure(1234.5), figure(88.04), figure(6.4), figure(0.0), figure(0.004)
    ('1,234', '88.0', '6.40', '0', '0.004')
    """
    size = abs(value)
    if size == 0 or not isfinite(size):
        return f"{value:g}"
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.0995:
        return f"{value:.2f}"
    return f"{value:.3f}" if size >= 0.0005 else "<0.001"


def percent(share: float) -> str:
    """A share of one.

    >>> percent(0.713), percent(0.052), percent(0.0001), percent(0.0)
    ('71 %', '5.2 %', '<0.1 %', '0 %')
    """
    if 0 < share < 0.0005:
        return "<0.1 %"
    return f"{number(100 * share, 1 if abs(share) < 0.1 else 0)} %"


def count(amount: float, thing: str) -> str:
    """A number of things.

    >>> count(1, "job"), count(1_203.0, "job"), count(2.5, "GPU")
    ('1 job', '1,203 jobs', '2.5 GPUs')
    """
    told = f"{amount:,.0f}" if amount == round(amount) else number(amount, 3)
    return f"{told} {thing}{'' if amount == 1 else 's'}"


def duration(seconds: float) -> str:
    """A duration in at most two units.

    >>> [duration(s) for s in (0, 0.25, 45, 76.4, 750, 3_900, 180_000)]
    ['0 s', '0.3 s', '45 s', '1 min 16 s', '13 min', '1 h 5 min', '2 d 2 h']
    """
    if not isfinite(seconds):
        return "-"
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if 0 < seconds < 0.1:
        whole = _rounded(1_000 * seconds)
        return f"{whole} ms" if whole else "<1 ms"
    if seconds < 9.95:
        tenths = _rounded(10 * seconds)
        return f"{tenths / 10:g} s"
    if seconds < MINUTE - 0.5:
        return f"{_rounded(seconds)} s"
    if seconds < 10 * MINUTE:
        return _parts(seconds, MINUTE, "min", 1, "s")
    if seconds < HOUR - 30:
        return f"{_rounded(seconds / MINUTE)} min"
    if seconds < DAY - 30:
        return _parts(seconds, HOUR, "h", MINUTE, "min")
    return _parts(seconds, DAY, "d", HOUR, "h")


def _parts(seconds: float, large: int, one: str, small: int, other: str) -> str:
    whole, rest = divmod(_rounded(seconds / small), large // small)
    return f"{whole:,} {one} {rest} {other}" if rest else f"{whole:,} {one}"


def _rounded(value: float) -> int:
    """Halves go up, as on the page."""
    return int(value + 0.5)


def hours(amount: float) -> str:
    """A number of GPU hours, for a column that names the unit.

    >>> hours(12.34), hours(1_234.5), hours(0.1), hours(0.0226), hours(5.9e-05), hours(0.0)
    ('12.3', '1,234.5', '0.1', '0.023', '<0.001', '0')
    """
    if 0 < amount < LEAST_HOURS / 2:
        return f"<{LEAST_HOURS}"
    return number(amount, 3 if abs(amount) < 1 else 1)


def gpu_hours(gpu_seconds: float) -> str:
    """GPU-seconds as GPU hours.

    >>> gpu_hours(360), gpu_hours(0.2)
    ('0.1 GPU h', '<0.001 GPU h')
    """
    return f"{hours(gpu_seconds / HOUR)} GPU h"


def size(amount: float) -> str:
    """An amount of memory.

    >>> size(512 << 30), size(79.6 * (1 << 30)), size(3 << 29), size(0)
    ('512 GiB', '80 GiB', '1.5 GiB', '0 B')
    """
    at = 0
    while amount >= 1024 and at < len(SIZES) - 1:
        amount /= 1024
        at += 1
    return f"{number(amount, 1 if amount < 10 else 0)} {SIZES[at]}"


def unit_for(*seconds: float) -> tuple[float, str]:
    """One unit for all these times: the largest that fits at least twice into the first positive one.

    A table in which times are compared shows them in one unit.
    """
    first = next((value for value in seconds if value > 0), 0.0)
    return next(((length, name) for length, name in UNITS if first >= 2 * length), UNITS[-1])
