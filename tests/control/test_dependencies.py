"""Dependencies as Slurm writes them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.control.dependencies import KINDS, PATTERN, Dependency, dependency_text, parse_dependency
from dovetail.model.units import MINUTE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("afterok:k3v9q2", [Dependency("afterok", "k3v9q2")]),
        (
            "afterok:a:b_7,afterany:c",
            [Dependency("afterok", "a"), Dependency("afterok", "b_7"), Dependency("afterany", "c")],
        ),
        ("singleton", [Dependency("singleton")]),
        ("aftercorr:a,singleton", [Dependency("aftercorr", "a"), Dependency("singleton")]),
        ("after:a+5:b", [Dependency("after", "a", 5 * MINUTE), Dependency("after", "b")]),
        (
            "afterok:a?afternotok:b",
            [Dependency("afterok", "a", either=True), Dependency("afternotok", "b", either=True)],
        ),
    ],
)
def test_a_dependency_is_read(text: str, expected: list[Dependency]) -> None:
    assert parse_dependency(text) == tuple(expected)
    assert dependency_text(expected) == text
    assert re.fullmatch(PATTERN, text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "write afterok:ID"),
        ("afterok", "write afterok:ID"),
        ("afterok:", "is no job id"),
        ("afterok:a,", "is not a dependency"),
        ("afterok:a b", "is no job id"),
        ("afterok:../x", "is no job id"),
        ("afterko:a", "with one of afterok, afterany"),
        ("singleton:a", "singleton stands alone"),
        ("afterok:a,afterok:b?afterok:c", "use one of the two"),
        ("afterok:a+5", "only after:ID"),
        ("after:a+", "only after:ID"),
        ("afterany:" + ":".join(["a"] * 1_001), "more than 1,000"),
    ],
)
def test_what_is_no_dependency_says_what_to_write(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_dependency(text)


_IDS = st.from_regex("[a-z0-9]{6}(?:_[0-9]{1,5})?", fullmatch=True)
_SOME = st.one_of(
    st.builds(Dependency, st.sampled_from([k for k in KINDS if k not in ("singleton", "after")]), _IDS),
    st.builds(Dependency, st.just("after"), _IDS, st.integers(0, 999).map(lambda n: n * MINUTE)),
    st.just(Dependency("singleton")),
)


@given(st.lists(_SOME, min_size=1, max_size=10), st.booleans())
def test_what_is_written_reads_the_same(found: list[Dependency], either: bool) -> None:
    kinds = {one.kind for one in found}
    either = either and len(kinds) > 1  # one kind alone is written with no separator that could say "any"
    all_of_them = tuple(Dependency(one.kind, one.job, one.delay, either) for one in found)
    assert parse_dependency(dependency_text(all_of_them)) == all_of_them


@given(st.text("afterokny:,?+_19 singleton", max_size=30))
def test_any_text_is_a_dependency_or_a_plain_error(text: str) -> None:
    try:
        found = parse_dependency(text)
    except ValueError:
        assert re.fullmatch(PATTERN, text) is None
        return
    assert re.fullmatch(PATTERN, text)
    assert parse_dependency(dependency_text(found)) == found
