"""Amounts as people read them; never an exponent, never a part of a unit that has a smaller one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.model import formats

MINUTE, HOUR, DAY = 60, 3_600, 86_400


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"), (0.0003, "<1 ms"), (0.0015, "2 ms"), (0.25, "0.3 s"), (2.04, "2 s"), (9.96, "10 s"),
        (45, "45 s"), (59.4, "59 s"), (59.6, "1 min"), (76.4, "1 min 16 s"), (120, "2 min"),
        (599.7, "10 min"), (750, "13 min"),
        (HOUR - 20, "1 h"), (HOUR + 300, "1 h 5 min"), (DAY - 10, "1 d"), (50 * HOUR, "2 d 2 h"),
        (10_000 * DAY, "10,000 d"), (-76, "-1 min 16 s"), (float("inf"), "-"), (float("nan"), "-"),
    ],
)  # fmt: skip
def test_durations(seconds: float, said: str) -> None:
    assert formats.duration(seconds) == said


@given(st.floats(0, 1e9))
def test_a_duration_is_near_what_it_says(seconds: float) -> None:
    """To within half of its smallest unit."""
    unit = {"ms": 0.001, "s": 1, "min": MINUTE, "h": HOUR, "d": DAY}
    said = formats.duration(seconds)
    if said == "<1 ms":
        assert seconds < 0.001
        return
    pairs = re.findall(r"([\d,.]+) (ms|s|min|h|d)", said)
    told = sum(float(amount.replace(",", "")) * unit[name] for amount, name in pairs)
    smallest = 0.1 if "." in pairs[-1][0] else unit[pairs[-1][1]]
    allowed = (
        smallest
        if len(pairs) > 1 or seconds < MINUTE
        else {"min": MINUTE, "h": MINUTE, "d": HOUR}[pairs[0][1]]
    )
    assert abs(told - seconds) <= 0.5 * allowed + 1e-6


@pytest.mark.parametrize(
    ("gpu_seconds", "said"),
    [(0, "0 GPU h"), (0.212, "<0.001 GPU h"), (360, "0.1 GPU h"), (81.4, "0.023 GPU h"),
     (45_000, "12.5 GPU h"), (4_444_200, "1,234.5 GPU h")],
)  # fmt: skip
def test_gpu_hours(gpu_seconds: float, said: str) -> None:
    assert formats.gpu_hours(gpu_seconds) == said


@pytest.mark.parametrize(
    ("amount", "said"),
    [(0, "0 B"), (512, "512 B"), (1 << 20, "1 MiB"), (512 << 30, "512 GiB"), (3 << 29, "1.5 GiB"),
     (2 << 40, "2 TiB"), (9 << 60, "9,216 PiB")],
)  # fmt: skip
def test_memory(amount: float, said: str) -> None:
    assert formats.size(amount) == said


@given(st.floats(-1e15, 1e15), st.integers(0, 6))
def test_a_number_has_no_exponent(value: float, digits: int) -> None:
    for text in (formats.number(value, digits), formats.hours(abs(value)), formats.figure(abs(value))):
        assert re.fullmatch(r"<?-?[\d,]+(\.\d+)?", text), text
