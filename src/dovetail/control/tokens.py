"""Tokens of 256 random bits, stored as hashes, each for one tenant, user and role.

A token is random, so a fast hash is as safe as a slow one. It is looked up by that hash, so the time of a
look-up tells nothing about tokens, and a reader of the database learns none. Roles: a *viewer* sees the jobs
of its tenant, a *user* also submits and acts on all jobs of its tenant, an *admin* may do everything. A
viewer of the tenant "" is for monitoring: it sees the metrics and no jobs.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from dovetail.control import tables
from dovetail.control.clock import wall_now
from dovetail.control.store import Store
from dovetail.model.errors import InputError
from dovetail.model.units import SECOND

PREFIX = "dt_"
ROLES = ("viewer", "user", "admin")  # each includes the ones before it
MOST_CACHED = 10_000
_SHAPE = re.compile(r"dt_[A-Za-z0-9_-]{43}")
_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"


class LastAdmin(InputError):
    """The last token of an admin, without which no token could be made any more."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The tenant, the user and the role behind a request."""

    token: str  # its id, never the token itself
    tenant: str
    user: str
    role: str

    @property
    def admin(self) -> bool:
        return self.role == "admin"

    def may(self, role: str) -> bool:
        """Whether this role is enough where `role` is needed."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def sees(self, tenant: str) -> bool:
        return self.role == "admin" or tenant == self.tenant


@dataclass(frozen=True, slots=True)
class Known:
    """A caller in the cache."""

    caller: Caller
    expires_at: int | None  # on the wall clock
    until: float  # on the monotonic clock: read the database again then


def hash_of(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


class Tokens:
    """The tokens of a plane. Look-ups are cached for some seconds; a revocation here acts at once."""

    def __init__(self, store: Store, *, good_for: float = 5.0, now: Callable[[], int] = wall_now) -> None:
        self._store = store
        self._good_for = good_for
        self._now = now
        self._cache: dict[bytes, Known] = {}
        self._turn = threading.Lock()
        self._changes = 0  # a look-up that began before a change must not be cached
        self._watchers: list[Callable[[str], None]] = []

    # -- looking up

    def cached(self, token: str) -> Caller | None:
        """The caller, if it is in the cache. Never waits for the database."""
        known = self._cache.get(hash_of(token))
        if known is None or known.until < time.monotonic() or self._expired(known.expires_at):
            return None
        return known.caller

    def caller(self, token: str) -> Caller | None:
        """The caller with this token; None if the token is unknown, expired or revoked."""
        if (found := self.cached(token)) is not None:
            return found
        if _SHAPE.fullmatch(token) is None:
            return None
        key, changes = hash_of(token), self._changes
        with self._store.reading() as connection:
            row = connection.execute(sa.select(tables.tokens).where(tables.tokens.c.hash == key)).first()
        if row is None or row.revoked_at is not None or self._expired(row.expires_at):
            return None
        made = Caller(row.id, row.tenant, row.user, row.role)
        with self._turn:
            if changes == self._changes:
                if len(self._cache) >= MOST_CACHED:
                    self._cache.clear()
                self._cache[key] = Known(made, row.expires_at, time.monotonic() + self._good_for)
        return made

    def alive(self, id: str) -> bool:
        """Whether the token of this id is still valid; for connections that stay open."""
        query = sa.select(tables.tokens.c.revoked_at, tables.tokens.c.expires_at).where(
            tables.tokens.c.id == id
        )
        with self._store.reading() as connection:
            row = connection.execute(query).first()
        return row is not None and row.revoked_at is None and not self._expired(row.expires_at)

    def about(self, id: str) -> tuple[str, int | None]:
        """The name of a token, and when it expires on the wall clock."""
        c = tables.tokens.c
        with self._store.reading() as connection:
            row = connection.execute(sa.select(c.name, c.expires_at).where(c.id == id)).first()
        return ("", None) if row is None else (row.name, row.expires_at)

    def _expired(self, expires_at: int | None) -> bool:
        return expires_at is not None and expires_at <= self._now()

    # -- making and revoking

    def make(
        self, name: str, *, tenant: str, user: str, role: str, expires_in: float | None = None
    ) -> tuple[str, str]:
        """A new token: its id and the token itself, which is not stored."""
        if role not in ROLES:
            raise InputError(f"no role is named {role!r}; choose {' | '.join(ROLES)}")
        token, id = PREFIX + secrets.token_urlsafe(32), "".join(secrets.choice(_LETTERS) for _ in range(10))
        now = self._now()
        with self._store.transaction() as connection:
            connection.execute(
                sa.insert(tables.tokens).values(
                    id=id,
                    hash=hash_of(token),
                    name=name,
                    tenant=tenant,
                    user=user,
                    role=role,
                    created_at=now,
                    expires_at=None if expires_in is None else now + round(expires_in * SECOND),
                )
            )
        return id, token

    def revoke(self, id: str) -> bool:
        """Revoke a token, also for open connections; whether there was such a token."""
        this, other = tables.tokens, tables.tokens.alias()
        now = self._now()
        live = sa.or_(other.c.expires_at.is_(None), other.c.expires_at > now)
        others = (
            sa.select(other.c.id)
            .where(other.c.role == "admin", other.c.id != id, other.c.revoked_at.is_(None), live)
            .exists()
        )
        with self._turn:
            with self._store.transaction() as connection:
                if not self._store.sqlite:  # or two revocations at once could leave no admin
                    connection.execute(
                        sa.select(this.c.id)
                        .where(this.c.role == "admin")
                        .order_by(this.c.id)
                        .with_for_update()
                    )
                done = connection.execute(
                    sa.update(this)
                    .where(
                        this.c.id == id, this.c.revoked_at.is_(None), sa.or_(this.c.role != "admin", others)
                    )
                    .values(revoked_at=now)
                ).rowcount
                row = connection.execute(sa.select(this.c.revoked_at).where(this.c.id == id)).first()
            self._changes += 1
            self._cache.clear()
        if row is None:
            return False
        if not done and row.revoked_at is None:
            raise LastAdmin(f"token {id} is the last one of an admin: make another admin token first")
        for tell in list(self._watchers):
            tell(id)
        return True

    def on_revoke(self, call: Callable[[str], None]) -> None:
        """Call this with the id of each token that is revoked here."""
        self._watchers.append(call)

    def listed(self, after: str | None = None, limit: int = 200) -> list[dict[str, Any]]:
        """All tokens by id, without the tokens themselves and their hashes."""
        c = tables.tokens.c
        query = sa.select(
            c.id, c.name, c.tenant, c.user, c.role, c.created_at, c.expires_at, c.revoked_at
        ).order_by(c.id)
        if after is not None:
            query = query.where(c.id > after)
        with self._store.reading() as connection:
            return [dict(row._mapping) for row in connection.execute(query.limit(limit))]


def first_token(store: Store, *, tenant: str = "default", user: str = "admin") -> str | None:
    """An admin token for a new store; None if the store has ever had a token."""
    with store.reading() as connection:
        if connection.execute(sa.select(tables.tokens.c.id).limit(1)).first() is not None:
            return None
    return Tokens(store).make("first", tenant=tenant, user=user, role="admin")[1]
