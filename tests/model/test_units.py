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
    parse_share,
    seconds,
    spoken,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", 90 * SECOND),
        ("1.5s", 1_500_000),
        ("0", 0),
        (0, 0),
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
    ],
)
def test_durations(text: str | float, expected: int) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "1:2:3:4", "h", "nan", "inf", "-1"])
def test_what_is_not_a_duration_is_refused_with_a_remedy(text: str) -> None:
    for bare in (None, SECOND):
        with pytest.raises(ValueError, match="is not a duration; write 90s"):
            parse_duration(text, bare=bare)


@pytest.mark.parametrize("text", ["2", "1.5", 2, 0.25, "1e3", "1e400"])
def test_a_bare_number_is_a_duration_only_where_a_format_says_so(text: str | float) -> None:
    with pytest.raises(ValueError, match="has no unit; write") as refused:
        parse_duration(text)
    for remedy in str(refused.value).partition("write ")[2].replace(" or ", ", ").split(", "):
        assert parse_duration(remedy) > 0
    if text != "1e400":
        assert parse_duration(text, bare=MINUTE) == round(float(text) * MINUTE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("32G", 32 * GIB),
        ("32GiB", 32 * GIB),
        ("400GB", 400 * GIB),
        ("512MiB", 512 * MIB),
        ("7B", 7),
        ("0", 0),
        ("1.5g", 3 * GIB // 2),
    ],
)
def test_memory(text: str | int, expected: int) -> None:
    assert parse_memory(text) == expected


@pytest.mark.parametrize("text", ["", "much", "-5G", "5 apples", "G"])
def test_what_is_no_memory_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an amount of memory"):
        parse_memory(text)


@pytest.mark.parametrize("text", ["32", 32, "1.5"])
def test_a_bare_number_is_memory_only_where_a_format_says_so(text: str | int) -> None:
    with pytest.raises(ValueError, match="has no unit; write") as refused:
        parse_memory(text)
    for remedy in str(refused.value).partition("write ")[2].split(" or "):
        assert parse_memory(remedy) > 0
    assert parse_memory(text, bare=GIB) == round(float(text) * GIB)


@pytest.mark.parametrize(
    ("text", "milli"), [("50%", 500), (0.5, 500), ("0.5", 500), (1, 1_000), ("12.5%", 125)]
)
def test_shares(text: str | float, milli: int) -> None:
    assert parse_share(text) == milli


@pytest.mark.parametrize("text", ["50", 50, 5, "100", 500, 0, "0%", "101%", "half", "-1", 1.5])
def test_a_share_that_may_be_read_in_two_ways_is_refused(text: str | float) -> None:
    with pytest.raises(ValueError, match="write") as refused:
        parse_share(text)
    for remedy in str(refused.value).partition("write ")[2].split(" or "):
        assert parse_share(remedy) > 0


def test_seconds_and_microseconds_are_inverse() -> None:
    assert [micros(seconds(n)) for n in (0, 1, 999_999, 10**15 + 1)] == [0, 1, 999_999, 10**15 + 1]


def test_durations_as_said() -> None:
    assert [spoken(amount) for amount in (0, 90 * SECOND, 36 * HOUR)] == ["0 s", "1 min 30 s", "1 d 12 h"]
