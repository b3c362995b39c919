"""`dovetail up`: a plane and its API in one process, by default on the loopback address."""

from __future__ import annotations

import getpass
import json
import logging
import os
import secrets
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dovetail.control import disk_reserve
from dovetail.control.binding import bind, check_binding
from dovetail.control.chosen_policy import ChosenPolicy, named_policy
from dovetail.control.election import DatabaseElection, Election, FileElection
from dovetail.control.high_water import HighWater, check_nothing_is_lost
from dovetail.control.plane import Plane
from dovetail.control.plane_settings import HIGH_WATER, Settings
from dovetail.control.retention import pruned
from dovetail.control.stand_in import LAST
from dovetail.control.steady_time import boot_id
from dovetail.control.store import Store, masked, url_of
from dovetail.control.tokens import Tokens, first_token
from dovetail.control.unix_accounts import root_is_allowed
from dovetail.control.unix_accounts import sentence as root_sentence
from dovetail.engines.local.devices import FoundDevices, discover
from dovetail.engines.local.engine import LocalEngine
from dovetail.engines.local.environment import check_passed
from dovetail.engines.local.processes import start_ticks
from dovetail.model.errors import DovetailError, InputError
from dovetail.model.units import GIB

if TYPE_CHECKING:
    from dovetail.control.api.server import Server

ADDRESS, TOKEN, LOG = "address.json", "token", "plane.log"
LAST_ANSWERS = 30.0  # seconds from the end of the loop to the end of the process, whatever hangs
SECRET_NAMES = ("DOVETAIL_TOKEN", "DOVETAIL_DATABASE", "PGPASSFILE", "PGPASSWORD")  # no job gets these

log = logging.getLogger("dovetail.plane")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The settings of `dovetail up`."""

    folder: Path
    port: int = 8470
    host: str = "127.0.0.1"
    policy: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    stand_in: str = ""  # decides while the policy fails; "": a plain policy, "last": the one before
    database: str | None = None
    virtual: str | None = None
    scale: float = 1.0
    open_metrics: bool = False
    hosts: tuple[str, ...] = ()  # further host names, for example behind a proxy
    pass_env: tuple[str, ...] = ()  # variables that jobs get besides the usual ones
    output_limit: int = GIB  # bytes of output that the plane keeps of an attempt; 0: no limit
    rebind: bool = False  # this folder and this database belong together from now on
    keep_days: float = 30.0  # output of ended jobs is removed after this time; 0: never
    set_clock: bool = False  # take the time from the wall clock, also if it was set since the plane last ran
    accept_loss: bool = False  # go on though the database is older than the folder
    migrating: Callable[[int, int], None] | None = None  # told of the steps of a migration: done, and all
    # Users of tenants without an account may run jobs as root, if the plane does.
    allow_root: bool = field(default_factory=root_is_allowed)


class Checked(NamedTuple):
    """Settings that were checked: the GPUs found, and the policy if one was named."""

    found: FoundDevices
    policy: ChosenPolicy | None


@dataclass(frozen=True, slots=True)
class Up:
    """A plane that runs."""

    plane: Plane
    found: FoundDevices
    url: str
    first: str | None  # the first token, shown this once
    limits: str  # that are enforced on jobs, as a sentence
    root: str = ""  # whose jobs run as root, as a sentence


def checked(wanted: Wanted) -> Checked:
    """The GPUs and the policy. Wrong settings are refused before anything is written."""
    policy = None if wanted.policy is None else named_policy(wanted.policy, wanted.options).make()
    if wanted.stand_in and wanted.stand_in != LAST:
        named_policy(wanted.stand_in, {}).make()
    if not wanted.scale > 0:
        raise InputError(f"a time scale of {wanted.scale:g} is not positive; give one above 0")
    if not 0 <= wanted.keep_days <= 36_500:
        raise InputError(f"output cannot be kept for {wanted.keep_days:g} days; give 0 (for ever) to 36500")
    check_passed(wanted.pass_env, SECRET_NAMES)
    found = discover(wanted.virtual)
    if wanted.scale != 1.0 and not found.virtual:
        raise InputError("a time scale is for virtual GPUs only; add --virtual 2x4")
    if os.path.exists(wanted.folder) and not os.path.isdir(wanted.folder):
        raise InputError(f"the state folder {wanted.folder} is a file; name another with --state")
    url = url_of(wanted.database, wanted.folder)
    if not url.startswith("sqlite"):
        store = Store(url)
        try:
            _check_database(store, wanted.folder, wanted.rebind)
        finally:
            store.close()
    elif not wanted.rebind and _missing(url):
        check_binding(wanted.folder, url, None)
    return Checked(found, policy)


@contextmanager
def plane_up(wanted: Wanted, ready: Checked | None = None) -> Iterator[Up]:
    """A plane that leads, or waits to, without its HTTP server. `ready` is the result of `checked`."""
    found, policy = ready or checked(wanted)
    folder = prepared(wanted.folder)
    url = url_of(wanted.database, folder)
    _private_database(url)
    store = Store(url)
    try:
        election = _election(store, folder)
    except BaseException:
        store.close()
        raise
    try:
        mark = HighWater(folder / HIGH_WATER).read()
        engine = LocalEngine(
            folder / "attempts", passed=wanted.pass_env, output_limit=wanted.output_limit, resizes=True
        )
        known = engine.known()
        _check_database(store, folder, wanted.rebind)
        store.migrate(told=wanted.migrating)
        store.folder = bind(folder, store, rebind=wanted.rebind)
        if not (wanted.accept_loss or wanted.rebind):
            check_nothing_is_lost(store, folder, known, mark)
        first = first_token(store, user=_user())
        address = f"http://{_bracketed(_reachable(wanted.host))}:{wanted.port}"
        plane = Plane(
            Settings(
                folder,
                found.cluster,
                found.devices,
                policy,
                wanted.stand_in,
                wanted.scale,
                url=address,
                virtual=found.virtual,
                allow_root=wanted.allow_root,
                set_clock=wanted.set_clock,
            ),
            store,
            engine,
            election,
        )
        plane.start()
        try:
            _leave_address(folder, store, address, first)
            with disk_reserve.kept(folder), _kept_for(wanted.keep_days, plane, folder):
                root = root_sentence(wanted.allow_root)
                if root:
                    log.info("%s", " ".join(root.split()))
                yield Up(plane, found, address, first, engine.describe_limits(), root)
        finally:
            plane.close()
            engine.close()
            _take_address(folder)
    finally:
        election.leave()
        store.close()


def _kept_for(days: float, plane: Plane, folder: Path) -> AbstractContextManager[None]:
    """Remove what is old in the background. Days are real ones, at any time scale."""
    if not days:
        return nullcontext()

    def now() -> int:
        return plane.clock.now()

    return pruned(plane.store, folder, days, now, lambda: plane.leads, plane.clock.scale)


def serve(wanted: Wanted, on_ready: Callable[[Up], None]) -> None:
    """Run a plane with its API until it is stopped."""
    with bound(wanted.host, wanted.port) as listening:
        ready = checked(wanted)
        prepared(wanted.folder)
        _log_to(wanted.folder / LOG)
        with plane_up(wanted, ready) as up:
            # These imports take half a second, which wrong settings need not wait for.
            from dovetail.control.api.app import make_app  # noqa: PLC0415
            from dovetail.control.api.server import make_server  # noqa: PLC0415
            from dovetail.control.api.settings import Settings as ApiSettings  # noqa: PLC0415

            app = make_app(
                up.plane, ApiSettings(host=wanted.host, hosts=wanted.hosts, open_metrics=wanted.open_metrics)
            )
            server = make_server(app, wanted.host, wanted.port)
            with _ends_with(up.plane, server):
                on_ready(up)
                if up.plane.failed is None:
                    server.run(sockets=[listening])
            if up.plane.failed is not None:
                raise DovetailError(
                    f"the scheduler failed ({up.plane.failed!r}); jobs go on and nothing recorded is lost: "
                    f"see {wanted.folder / LOG}, and start it again"
                )


@contextmanager
def _ends_with(plane: Plane, server: Server) -> Iterator[None]:
    """A loop that fails ends the server, and the process if the server does not end: then it is restarted."""
    last_resort = threading.Timer(LAST_ANSWERS, os._exit, (1,))
    last_resort.daemon = True

    def end() -> None:
        server.should_exit = True
        with suppress(RuntimeError):  # it was started already
            last_resort.start()

    plane.on_failure(end)
    try:
        yield
    finally:
        last_resort.cancel()


@contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket, bound before anything is written."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol given, asyncio sets TCP_NODELAY, so that small answers are sent at once.
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
    """The state folder, made if needed, writable, and closed to other accounts."""
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
            "fix that, or name another with --state"
        ) from None
    for path in (folder, folder / "attempts", folder / "checkpoints"):
        if os.geteuid() == 0 and path.stat().st_uid != 0:
            raise InputError(
                f"{path} belongs to another account, which could make root run its programs; "
                "give it to root (chown -R root), or name another folder with --state"
            )
    if stat.S_IMODE(folder.stat().st_mode) & 0o066:  # other accounts may pass through it, as their jobs must
        folder.chmod(0o711 if os.getuid() == 0 else 0o700)
    return folder


def _private_database(url: str) -> None:
    """Make the database file readable for its owner only; SQLite gives its other files the same mode."""
    if url.startswith("sqlite:///"):
        with suppress(OSError):  # the store reports the problem
            os.close(os.open(url.removeprefix("sqlite:///"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _missing(url: str) -> bool:
    """Whether this is a database of SQLite that does not exist yet."""
    return url.startswith("sqlite:///") and not os.path.exists(url.removeprefix("sqlite:///"))


def _check_database(store: Store, folder: Path, rebind: bool) -> None:
    """Refuse the database of another state folder before anything is written to it."""
    if not rebind:
        check_binding(folder, store.url, store)
    elif not store.sqlite and store.has_tables() and (leader := DatabaseElection(store).led_by()):
        raise InputError(
            f"the plane at {leader} leads on the database {masked(store.url)}; stop it before --rebind"
        )


def _election(store: Store, folder: Path) -> Election:
    """With SQLite a second plane on a folder is refused; with PostgreSQL it waits to take over."""
    if not store.sqlite:
        return DatabaseElection(store)
    election = FileElection(folder / "plane.lock", store)
    if not election.locked():
        raise InputError(
            f"a plane already runs on {folder} (process {election.holder()}); "
            "stop it with dovetail down, or name another --state"
        )
    return election


def _leave_address(folder: Path, store: Store, url: str, first: str | None) -> None:
    """Write the address and a token to files that only their owner can read, for commands on this machine."""
    token = first or _read_token(folder)
    if token is None or Tokens(store).caller(token) is None:
        token = Tokens(store).make("this machine", tenant="default", user=_user(), role="admin")[1]
    _write_private(folder / TOKEN, token + "\n")
    kept = {"url": url, "token": token, "pid": os.getpid(), "started": _started(os.getpid())}
    _write_private(folder / ADDRESS, json.dumps(kept) + "\n")


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
    """The process id of the plane on this folder, if one runs."""
    try:
        kept = json.loads((folder / ADDRESS).read_text())
        pid = int(kept["pid"])
        same = kept["started"] == _started(pid)  # or another process has its number now
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if same else None


def tell_to_stop(folder: Path) -> None:
    """Ask the plane on this folder to stop, if one runs."""
    pid = running_at(folder)
    if pid is None:
        return
    with suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            if (
                running_at(folder) == pid
            ):  # so the handle is that of the plane, whatever becomes of its number
                signal.pidfd_send_signal(process, signal.SIGTERM)
        finally:
            os.close(process)


def _started(pid: int) -> str:
    """Tells a process from all others that have or had its number; OSError if there is none."""
    return f"{boot_id()} {start_ticks(pid)}"


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
    """The address by which this machine reaches a server that listens on all addresses."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
