"""Amounts as people write them."""

from __future__ import annotations

import pytest

from dovetail.model.units import (
    DAY,
    GIB,
    HOUR,
    MIB,
    MINUTE,
    SECOND,
    micros,
    parse_duration,
    parse_memory,
    seconds,
    spoken,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90 * SECOND),
        ("1.5", 1_500_000),
        (90, 90 * SECOND),
        (0.25, 250_000),
        ("45m", 45 * MINUTE),
        ("1.5h", 90 * MINUTE),
        ("2h30m", 150 * MINUTE),
        ("2h 30m", 150 * MINUTE),
        ("1w", 7 * DAY),
        ("250ms", 250_000),
        ("7us", 7),
        ("10:00", 10 * MINUTE),
        ("02:30:00", 150 * MINUTE),
        ("1-12:00:00", 36 * HOUR),
        ("1-12:30", 36 * HOUR + 30 * MINUTE),
        ("00:00:01.5", 1_500_000),
        ("1e3", 1_000 * SECOND),
    ],
)
def test_durations(text: str | float, expected: int) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "1:2:3:4", "h", "nan", "inf", "1e400"])
def test_what_is_no_duration_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration; write 90"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("32G", 32 * GIB),
        ("32GiB", 32 * GIB),
        ("400GB", 400 * GIB),
        ("512MiB", 512 * MIB),
        ("7", 7),
        (7, 7),
        ("1.5g", 3 * GIB // 2),
    ],
)
def test_memory(text: str | int, expected: int) -> None:
    assert parse_memory(text) == expected


@pytest.mark.parametrize("text", ["", "much", "-5G", "5 apples", "G"])
def test_what_is_no_memory_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no amount of memory"):
        parse_memory(text)


def test_seconds_and_microseconds_are_inverse() -> None:
    assert [micros(seconds(n)) for n in (0, 1, 999_999, 10**15 + 1)] == [0, 1, 999_999, 10**15 + 1]


def test_durations_as_said() -> None:
    assert [spoken(amount) for amount in (0, 90 * SECOND, 36 * HOUR)] == ["0 s", "1 min 30 s", "1 d 12 h"]
