"""Arrays as Slurm writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.control.arrays import LARGEST_INDEX, MOST_MEMBERS, array_text, expand_array


@pytest.mark.parametrize(
    ("text", "indices", "at_most"),
    [
        ("0-3", (0, 1, 2, 3), None),
        ("0-99%8", tuple(range(100)), 8),
        ("1,3,5-9:2", (1, 3, 5, 7, 9), None),
        ("7", (7,), None),
        ("5,1,5,1-2", (1, 2, 5), None),
        ("3-3%1", (3,), 1),
        (f"0-{MOST_MEMBERS - 1}", tuple(range(MOST_MEMBERS)), None),
    ],
)
def test_an_array_is_expanded(text: str, indices: tuple[int, ...], at_most: int | None) -> None:
    assert expand_array(text) == (indices, at_most)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not an array"),
        ("a-b", "is not an array"),
        ("1-", "is not an array"),
        ("-1", "is not an array"),
        ("0-9%0", "is not an array"),
        ("0-9:0", "is not an array"),
        ("1,,2", "is not an array"),
        ("٣", "is not an array"),
        ("1\n", "is not an array"),
        ("99999999", "is not an array"),
        ("9-1", "has the larger index first; write 1-9"),
        ("0-9999999", "submit it in parts"),
        (f"0-{MOST_MEMBERS}", "submit it in parts"),
        ("0-99999," * 40 + "0", None),
        ("0-9999998:2," * 40 + "0", "submit it in parts"),
    ],
)
def test_what_is_no_array_says_what_to_write(text: str, problem: str | None) -> None:
    if problem is None:
        assert len(expand_array(text)[0]) == MOST_MEMBERS
        return
    with pytest.raises(ValueError, match=problem):
        expand_array(text)


@pytest.mark.parametrize("indices", [[], [-1], [LARGEST_INDEX + 1], range(MOST_MEMBERS + 1)])
def test_a_list_has_bounds_too(indices: list[int]) -> None:
    with pytest.raises(ValueError):
        expand_array(list(indices))


@given(st.sets(st.integers(0, LARGEST_INDEX), min_size=1), st.none() | st.integers(1, 999_999))
def test_what_is_written_reads_the_same(indices: set[int], at_most: int | None) -> None:
    assert expand_array(array_text(indices, at_most)) == (tuple(sorted(indices)), at_most)


@given(st.text("0123456789-,:%", max_size=12))
def test_any_text_is_an_array_or_a_plain_error(text: str) -> None:
    try:
        indices, at_most = expand_array(text)
    except ValueError:
        return
    assert list(indices) == sorted(set(indices))
    assert expand_array(array_text(indices, at_most)) == (indices, at_most)
