"""Waiting time: one figure, whether it is worked out at the end or added up event by event."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dovetail.model.waiting import Waits, first_start_after, waiting_time

PHASES = ("waiting", "running", "held")


@given(
    st.lists(st.tuples(st.sampled_from(PHASES), st.integers(0, 10_000)), max_size=20), st.integers(0, 10**9)
)
def test_what_is_added_up_is_what_is_left_of_the_life_of_a_job(
    lived: list[tuple[str, int]], eligible_at: int
) -> None:
    waits, now = Waits().begun(eligible_at), eligible_at
    for phase, lasted in lived:
        waits = waits.begun(now) if phase == "waiting" else waits.ended(now)
        now += lasted
    spent = {name: sum(lasted for phase, lasted in lived if phase == name) for name in PHASES}

    assert waits.total(now) == spent["waiting"]
    assert waits.total(now) == waiting_time(eligible_at, now, spent["running"], spent["held"])
    assert waits.ended(now).total(now + 5_000) == spent["waiting"]


def test_time_after_a_preemption_counts_and_the_first_start_is_another_figure() -> None:
    waits = Waits().begun(100).ended(160)  # started after a minute,
    waits = waits.begun(1_000)  # preempted,

    assert waits.total(now=22_600) == 60 + 21_600  # and six hours later it still waits
    assert first_start_after(100, 160) == 60
