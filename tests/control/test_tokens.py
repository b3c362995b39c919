"""Tokens: random, kept as hashes, for a while, until revoked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.control import harness

from dovetail.control.store import Store
from dovetail.control.tokens import ROLES, Caller, LastAdmin, Tokens, first_token, hash_of
from dovetail.model.errors import InputError
from dovetail.model.units import SECOND


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    database = request.getfixturevalue("database")() if request.param == "postgresql" else None
    with harness.stored(tmp_path, database, leads=False) as made:
        yield made


def test_a_token_opens_what_it_was_made_for(store: Store) -> None:
    tokens = Tokens(store)
    id, token = tokens.make("ci", tenant="red", user="ann", role="user")
    assert tokens.caller(token) == Caller(id, "red", "ann", "user") == tokens.cached(token)
    assert token.startswith("dt_")
    assert len(token) == 3 + 43  # 256 bits in base64
    for wrong in ("", "dt_", token[:-1], token + "x", token.upper(), "dt_" + "a" * 43, "dt_" + "\ud800" * 43):
        assert tokens.caller(wrong) is None


def test_the_store_holds_hashes_only(store: Store, tmp_path: Path) -> None:
    _, token = Tokens(store).make("ci", tenant="red", user="ann", role="user")
    if store.sqlite:
        kept = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        assert hash_of(token) in kept
        assert token[3:].encode() not in kept
    assert "token" not in Tokens(store).listed()[0]
    assert "hash" not in Tokens(store).listed()[0]


def test_no_two_are_alike(store: Store) -> None:
    tokens = Tokens(store)
    made = [tokens.make("", tenant="red", user="ann", role="viewer") for _ in range(50)]
    assert len({id for id, _ in made}) == len({token for _, token in made}) == 50
    assert len(tokens.listed(limit=20)) == 20
    assert len(tokens.listed(after=tokens.listed(limit=20)[-1]["id"])) == 30


def test_it_expires(store: Store) -> None:
    now = [1_000 * SECOND]
    tokens = Tokens(store, now=lambda: now[0])
    id, token = tokens.make("", tenant="red", user="ann", role="user", expires_in=10)
    now[0] += 9 * SECOND
    assert tokens.caller(token) is not None
    assert tokens.alive(id)
    now[0] += SECOND
    assert tokens.cached(token) is None  # though it was looked up a moment ago
    assert tokens.caller(token) is None
    assert not tokens.alive(id)


def test_a_revocation_acts_at_once(store: Store) -> None:
    tokens, told = Tokens(store, good_for=1e9), list[str]()
    tokens.on_revoke(told.append)
    id, token = tokens.make("", tenant="red", user="ann", role="user")
    assert tokens.caller(token) is not None
    assert tokens.revoke(id)
    assert tokens.cached(token) is None
    assert tokens.caller(token) is None
    assert told == [id]
    assert not tokens.alive(id)
    assert tokens.revoke(id)  # again, which changes nothing
    assert not tokens.revoke("nosuch")


def test_another_plane_learns_of_it_soon(store: Store) -> None:
    here, there = Tokens(store), Tokens(store, good_for=0.0)
    id, token = here.make("", tenant="red", user="ann", role="user")
    assert there.caller(token) is not None
    here.revoke(id)
    assert there.caller(token) is None


def test_a_look_up_that_was_under_way_is_not_remembered(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Tokens(store, good_for=1e9)
    id, token = tokens.make("", tenant="red", user="ann", role="user")
    expired = tokens._expired

    def meanwhile(at: int | None) -> bool:
        monkeypatch.setattr(tokens, "_expired", expired)
        tokens.revoke(id)  # after the row was read, before it is remembered
        return expired(at)

    monkeypatch.setattr(tokens, "_expired", meanwhile)
    assert tokens.caller(token) is not None
    assert tokens.cached(token) is None


def test_the_last_admin_stays(store: Store) -> None:
    now = [1_000 * SECOND]
    tokens = Tokens(store, now=lambda: now[0])
    one, _ = tokens.make("", tenant="default", user="a", role="admin")
    tokens.make("", tenant="default", user="u", role="user")
    with pytest.raises(LastAdmin, match="make another admin token first"):
        tokens.revoke(one)
    tokens.make("", tenant="default", user="b", role="admin", expires_in=5)
    now[0] += 6 * SECOND
    with pytest.raises(LastAdmin):  # the other one has expired
        tokens.revoke(one)
    tokens.make("", tenant="default", user="c", role="admin")
    assert tokens.revoke(one)


def test_two_admins_that_revoke_each_other_leave_one(store: Store) -> None:
    tokens, others = Tokens(store), Tokens(store)  # as two planes have them
    ids = [tokens.make("", tenant="default", user="a", role="admin")[0] for _ in range(6)]
    refused = []

    def revoke(id: str) -> None:
        try:
            (tokens if int.from_bytes(id.encode()) % 2 else others).revoke(id)
        except LastAdmin:
            refused.append(id)

    threads = [threading.Thread(target=revoke, args=(id,)) for id in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 1
    assert tokens.alive(refused[0])


def test_a_new_store_gets_one_admin(store: Store) -> None:
    token = first_token(store, user="root")
    assert token is not None
    caller = Tokens(store).caller(token)
    assert caller is not None
    assert (caller.tenant, caller.user, caller.role) == ("default", "root", "admin")
    assert first_token(store) is None


def test_roles_are_ordered() -> None:
    viewer, user, admin = (Caller("t", "red", "ann", role) for role in ROLES)
    assert [viewer.may(role) for role in ROLES] == [True, False, False]
    assert [user.may(role) for role in ROLES] == [True, True, False]
    assert [admin.may(role) for role in ROLES] == [True, True, True]
    assert (user.sees("red"), user.sees("blue"), admin.sees("blue")) == (True, False, True)


def test_an_unknown_role_is_refused(store: Store) -> None:
    with pytest.raises(InputError, match="viewer"):
        Tokens(store).make("", tenant="red", user="ann", role="root")
