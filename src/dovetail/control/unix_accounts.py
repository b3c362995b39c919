"""The UNIX accounts that jobs run as.

The jobs of a tenant run as the account of the tenant, or as the plane itself if the tenant has none. A plane
that runs as root would run them as root, so a user of such a tenant is refused, unless an admin has allowed
it: for one tenant (`account: root` with `allow_root`), or for all (`dovetail up --allow-root`). What an admin
submits runs as the plane does: an admin can set accounts, and so gains nothing by it.

A job keeps the account that it was accepted with, whatever becomes of its tenant.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass, field

from dovetail.control.problems import RequestError
from dovetail.model.errors import InputError

ALLOW_ROOT = "DOVETAIL_ALLOW_ROOT"  # 1 in the environment of a plane: as --allow-root


class NoAccount(InputError):
    """A job would run as root, and no admin has allowed that."""


def runs_as_root() -> bool:
    return os.geteuid() == 0


def own_account() -> str:
    """The account of the plane."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid{os.geteuid()}"


def root_is_allowed() -> bool:
    """Whether the environment allows all tenants to run jobs as root."""
    return os.environ.get(ALLOW_ROOT) == "1"


@dataclass(slots=True)
class Accounts:
    """The accounts of the tenants that have one."""

    allow_root: bool
    of_tenant: dict[str, str] = field(default_factory=dict)

    def accepted(self, tenant: str, *, admin: bool) -> str:
        """The account that a new job will run as."""
        if account := self.of_tenant.get(tenant):
            return account
        if runs_as_root() and not self.allow_root and not admin:
            raise NoAccount(
                f"tenant {tenant} has no account, and this plane runs as root; an admin can give it one "
                f"(dovetail tenant set {tenant} --account USER), or allow root (--account root --allow-root)"
            )
        return own_account()

    def at_start(self, tenant: str, accepted: str | None) -> str:
        """The account for an order to the engine; "": that of the plane. `accepted` is None for old jobs."""
        account = self.accepted(tenant, admin=tenant == "default") if accepted is None else accepted
        return "" if account == own_account() else account


def checked_account(tenant: str, account: str, allow_root: bool) -> str:
    """The account that a tenant is given, if it exists and jobs can run as it."""
    try:
        uid = pwd.getpwnam(account).pw_uid if account else None
    except KeyError:
        detail = f"no account is named {account} on this machine; make it first"
        raise RequestError.at("/account", detail) from None
    if allow_root and uid != 0:
        raise RequestError.at("/allow_root", "it goes with the account root; name that too, or leave it out")
    if uid == 0 and not allow_root:
        raise RequestError.at(
            "/account", f"jobs of {tenant} would run as root; if you mean that, add --allow-root (allow_root)"
        )
    if uid is not None and not runs_as_root() and uid != os.geteuid():
        raise RequestError.at(
            "/account", f"the plane runs as {own_account()}, not as root, so no job can run as {account}"
        )
    return account


def sentence(allow_root: bool) -> str:
    """Which jobs run as root, for the admin that starts a plane; "" if none do."""
    if not runs_as_root():
        return ""
    if allow_root:
        return "Jobs of tenants without an account run as root, as --allow-root says."
    return (
        "The plane runs as root, so jobs of admins run as root; other users need an account:\n"
        "  dovetail tenant set NAME --account USER"
    )
