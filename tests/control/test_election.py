"""The lease of a leader on PostgreSQL: who may take over when, by real sessions and real clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from tests.control import harness

from dovetail.control import election
from dovetail.control.election import DatabaseElection
from dovetail.control.store import Batch, Deposed, Store, url_of

Planes = Callable[[], tuple[Store, DatabaseElection]]


@pytest.fixture
def planes(database: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Planes]:
    """Makes planes without a loop, on one database. They renew their lease often."""
    monkeypatch.setattr(election, "LEASE", 30.0)
    monkeypatch.setattr(election, "RENEWALS", 300)
    url, made = url_of(database(), Path()), []

    def plane() -> tuple[Store, DatabaseElection]:
        store = Store(url)
        store.migrate()
        made.append((store, DatabaseElection(store)))
        return made[-1]

    yield plane
    for store, elected in made:
        elected.leave()
        store.close()


def test_one_leads_and_the_next_leads_when_it_leaves(planes: Planes) -> None:
    (one, first), (two, second) = planes(), planes()
    assert first.won("http://one", 0)
    assert (one.term, second.led_by()) == (1, "http://one")
    assert not second.won("http://two", 0)
    first.check()
    first.leave()
    harness.eventually(lambda: second.won("http://two", 0), "that the other leads")
    assert two.term == 2
    with pytest.raises(Deposed):
        one.commit(Batch())


def test_a_term_is_newer_than_all_that_the_engine_has_seen(planes: Planes) -> None:
    """A database that was restored from a backup knows older terms than the engine."""
    store, elected = planes()
    assert elected.won("http://one", 41)
    assert store.term == 42
    store.commit(Batch())


def test_the_lease_is_renewed_while_the_loop_is_busy(planes: Planes) -> None:
    (_, first), (_, second) = planes(), planes()
    assert first.won("http://one", 0)
    first.check()
    renewed(first, by=1.0)
    assert second.led_by() == "http://one"
    assert not second.won("http://two", 0)
    first.check()


def test_a_loop_that_hangs_loses_the_lead(planes: Planes, monkeypatch: pytest.MonkeyPatch) -> None:
    (_, first), (_, second) = planes(), planes()
    monkeypatch.setattr(election, "LONGEST_TICK", 0.1)
    assert first.won("http://one", 0)
    renewed(first, by=1.0)  # it loads the jobs, which may take long
    first.check()
    harness.eventually(lambda: second.won("http://two", 0), "that the other leads")
    with pytest.raises(Deposed, match="the loop was busy"):
        first.check()


def renewed(elected: DatabaseElection, *, by: float) -> None:
    """Wait until the lease has been renewed for this time."""
    keeper = elected._keeper
    assert keeper is not None
    until = keeper._until + by
    harness.eventually(lambda: keeper._until > until, "that the lease is renewed")


def test_a_plane_that_cannot_renew_steps_down_before_its_lease_runs_out(
    planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(self: Store, connection: Connection, term: int, lease: float) -> bool:
        raise sa.exc.OperationalError("no", None, OSError("no route to host"))

    monkeypatch.setattr(Store, "renewed", cut)
    monkeypatch.setattr(election, "LEASE", 60.0)
    (store, first), (_, second) = planes(), planes()
    assert first.won("http://one", 0)
    first.check()
    asked = election.now()
    ends = asked + store.led().left  # not later than that, by the clock of this machine
    keeper = first._keeper
    assert keeper is not None
    assert asked < keeper._until < ends
    monkeypatch.setattr(election, "now", lambda: keeper._until)
    with pytest.raises(Deposed, match="could not be renewed"):
        first.check()
    assert not second.won("http://two", 0), "its lease still runs"


def test_a_leader_whose_session_is_cut_goes_on_if_no_other_plane_waits(planes: Planes) -> None:
    (store, first), (_, second) = planes(), planes()
    assert first.won("http://one", 0)
    keeper = first._keeper
    assert keeper is not None
    session = keeper._session
    with store.transaction() as connection:
        holders = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = :key"
        query = sa.text(f"SELECT count(pg_terminate_backend(pid)) FROM ({holders}) AS h")
        assert connection.execute(query, {"key": election.KEY}).scalar() == 1
    harness.eventually(lambda: keeper._session not in (None, session), "another session")
    harness.eventually(lambda: second.led_by() == "http://one", "that it has the lock again")
    assert not second.won("http://two", 0)
    first.check()
    store.commit(Batch())
    assert store.term == 1
