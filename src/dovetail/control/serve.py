"""`dovetail up`: everything of a plane put together in one process, on loopback unless told otherwise."""

from __future__ import annotations

import getpass
import json
import logging
import os
import secrets
import signal
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail.control.clock import wall_now
from dovetail.control.election import DatabaseElection, Election, FileElection
from dovetail.control.plane import Plane, Settings
from dovetail.control.retention import pruned
from dovetail.control.store import Store, url_of
from dovetail.control.tokens import Tokens, first_token
from dovetail.engines.gpus import Found, discover
from dovetail.engines.local import LocalEngine
from dovetail.model.errors import DovetailError, InputError
from dovetail.model.units import DAY
from dovetail.policies.table import POLICIES

ADDRESS, TOKEN, LOG = "address.json", "token", "plane.log"
SECRET_NAMES = ("DOVETAIL_TOKEN", "DOVETAIL_DATABASE", "PGPASSWORD")  # no job inherits these

log = logging.getLogger("dovetail.plane")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What `dovetail up` was asked for."""

    folder: Path
    port: int = 8470
    host: str = "127.0.0.1"
    policy: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    database: str | None = None
    virtual: str | None = None
    scale: float = 1.0
    open_metrics: bool = False
    hosts: tuple[str, ...] = ()  # further names by which it is known
    keep_days: float = 30.0  # after which the output of a job that is over is removed; 0: never


@dataclass(frozen=True, slots=True)
class Up:
    """A plane that answers."""

    plane: Plane
    found: Found
    url: str
    first: str | None  # the first token, shown this once
    limits: str  # what is enforced on jobs, in a sentence


def checked(wanted: Wanted) -> Found:
    """What there is to schedule; a question that is wrong is refused before anything is written."""
    if wanted.policy is not None:
        POLICIES.make(wanted.policy, **dict(wanted.options))
    if not wanted.scale > 0:
        raise InputError(f"a time scale of {wanted.scale:g} stands still; give one above 0")
    if not 0 <= wanted.keep_days <= 36_500:
        raise InputError(f"{wanted.keep_days:g} days cannot be kept; give 0 (for ever) to 36500")
    found = discover(wanted.virtual)
    if wanted.scale != 1.0 and not found.virtual:
        raise InputError("a time scale is for virtual GPUs only; add --virtual 2x4")
    if os.path.exists(wanted.folder) and not os.path.isdir(wanted.folder):
        raise InputError(f"{wanted.folder} is a file, and the state is a folder; name another with --state")
    url = url_of(wanted.database, wanted.folder)
    if not url.startswith("sqlite"):
        store = Store(url)
        try:
            with store.reading():
                pass
        finally:
            store.close()
    return found


@contextmanager
def plane_up(wanted: Wanted, found: Found | None = None) -> Iterator[Up]:
    """A plane that leads, or waits to; without its HTTP server. `found` is what `checked` has found."""
    found = found or checked(wanted)
    folder = prepared(wanted.folder)
    url = url_of(wanted.database, folder)
    _private_database(url)
    store = Store(url)
    try:
        election = _election(store, folder)
        store.migrate()
        first = first_token(store, user=_user())
        engine = LocalEngine(folder / "attempts", secrets=SECRET_NAMES)
        address = f"http://{_bracketed(_reachable(wanted.host))}:{wanted.port}"
        plane = Plane(
            Settings(
                folder,
                found.cluster,
                found.devices,
                wanted.policy,
                wanted.options,
                wanted.scale,
                url=address,
                virtual=found.virtual,
            ),
            store,
            engine,
            election,
        )
        plane.start()
        try:
            _leave_address(folder, store, address, first)
            with _kept_for(wanted.keep_days, plane, folder):
                yield Up(plane, found, address, first, engine.describe_limits())
        finally:
            plane.close()
            engine.close()
            _take_address(folder)
    finally:
        store.close()


def _kept_for(days: float, plane: Plane, folder: Path) -> AbstractContextManager[None]:
    """Days are those of the wall, however fast the plane's time runs."""
    if not days:
        return nullcontext()
    span = round(days * DAY)
    return pruned(plane.store, folder, lambda: plane.clock.at(wall_now() - span))


def serve(wanted: Wanted, on_ready: Callable[[Up], None]) -> None:
    """Run a plane with its API until it is told to stop."""
    with bound(wanted.host, wanted.port) as listening:
        found = checked(wanted)
        prepared(wanted.folder)
        _log_to(wanted.folder / LOG)
        with plane_up(wanted, found) as up:
            # Half a second that a wrong question need not wait for.
            from dovetail.control.api.app import make_app  # noqa: PLC0415
            from dovetail.control.api.server import make_server  # noqa: PLC0415
            from dovetail.control.api.settings import Settings as ApiSettings  # noqa: PLC0415

            app = make_app(
                up.plane, ApiSettings(host=wanted.host, hosts=wanted.hosts, open_metrics=wanted.open_metrics)
            )
            server = make_server(app, wanted.host, wanted.port)
            up.plane.on_failure = lambda: setattr(server, "should_exit", True)
            on_ready(up)
            server.run(sockets=[listening])
            if up.plane.failed is not None:
                raise DovetailError(
                    f"the scheduler has failed ({up.plane.failed!r}); jobs go on, nothing recorded is lost: "
                    f"see {wanted.folder / LOG}, and start it again"
                )


@contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """The address, taken before anything is written."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP: asyncio lets small answers go at once (TCP_NODELAY) only where the protocol is said.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(512)
    except OSError as error:
        listening.close()
        raise InputError(
            f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}; "
            "is another plane running? choose another --port, or stop it with dovetail down"
        ) from None
    with listening:
        yield listening


def prepared(folder: Path) -> Path:
    """The state folder, there and ours alone."""
    new = not os.path.exists(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o711 if os.getuid() == 0 else 0o700)
        for name in ("attempts", "checkpoints"):
            (folder / name).mkdir(exist_ok=True, mode=0o700)
        probe = folder / f".probe-{secrets.token_hex(4)}"
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        with suppress(OSError):
            (folder / "attempts").rmdir()
            (folder / "checkpoints").rmdir()
        if new:
            with suppress(OSError):
                folder.rmdir()
        raise InputError(
            f"the state folder {folder} cannot be written: {os.strerror(error.errno or 0)}; "
            "mend that, or name another with --state"
        ) from None
    if stat.S_IMODE(folder.stat().st_mode) & 0o066:  # to pass through is no harm, and other accounts must
        folder.chmod(0o711 if os.getuid() == 0 else 0o700)
    return folder


def _private_database(url: str) -> None:
    """SQLite makes its files as readable as the first; so that one is made for its owner only."""
    if url.startswith("sqlite:///"):
        with suppress(OSError):  # what is wrong is told by the store
            os.close(os.open(url.removeprefix("sqlite:///"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _election(store: Store, folder: Path) -> Election:
    """With SQLite a second plane on one folder is a mistake; with PostgreSQL it waits to take over."""
    if not store.sqlite:
        return DatabaseElection(store.engine)
    election = FileElection(folder / "plane.lock")
    if not election.won():
        raise InputError(
            f"a plane already runs on {folder} (process {election.holder()}); "
            "stop it with dovetail down, or name another --state"
        )
    return election


def _leave_address(folder: Path, store: Store, url: str, first: str | None) -> None:
    """Let commands on this machine find the plane; the token is in a file that only its user can read."""
    token = first or _read_token(folder)
    if token is None or Tokens(store).caller(token) is None:
        token = Tokens(store).make("this machine", tenant="default", user=_user(), role="admin")[1]
    _write_private(folder / TOKEN, token + "\n")
    _write_private(folder / ADDRESS, json.dumps({"url": url, "token": token, "pid": os.getpid()}) + "\n")


def _take_address(folder: Path) -> None:
    with suppress(OSError, ValueError):
        if json.loads((folder / ADDRESS).read_text())["pid"] == os.getpid():
            (folder / ADDRESS).unlink()


def _read_token(folder: Path) -> str | None:
    try:
        return (folder / TOKEN).read_text().strip() or None
    except OSError:
        return None


def _write_private(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "w") as opened:
        opened.write(text)
    part.replace(path)


def running_at(folder: Path) -> int | None:
    """The process of the plane on this folder, if one runs."""
    try:
        pid = int(json.loads((folder / ADDRESS).read_text())["pid"])
        os.kill(pid, 0)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid


def tell_to_stop(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)


def _log_to(path: Path) -> None:
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    path.chmod(0o600)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    log.setLevel(logging.INFO)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid{os.getuid()}"


def _reachable(host: str) -> str:
    """How this machine reaches what listens on all its addresses."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
