"""The journal: one JSON line for each step, from which a run can be played again.

The first line says what was run: cluster, policy with options, seed. A job's description stands with its
`submitted` event, so a journal needs nothing beside it. Every line is written whole and in a fixed order:
equal runs give equal bytes.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from dovetail.core.core import Step
from dovetail.model.action import Action, Answer, Rent, Resize, SetPower, Start, Stop
from dovetail.model.cluster import Cluster, GpuType, Links, Node, Tenant
from dovetail.model.errors import JournalError
from dovetail.model.estimate_errors import EstimateErrors
from dovetail.model.event import SUBMITTED, Event
from dovetail.model.goodput import Goodput, StepTime
from dovetail.model.grant import FULL, Terms
from dovetail.model.job import Arch, Checkpoint, Job, Kind, Profile, Role, Shape, Traits
from dovetail.model.loss import LossCurve
from dovetail.model.server_speed import ServerSpeed

VERSION = 1
_ACTIONS = {kind.__name__: kind for kind in (Start, Stop, Resize, Answer, SetPower, Rent)}


@dataclass(frozen=True, slots=True)
class Header:
    """What was run."""

    cluster: Cluster
    policy: str
    options: Mapping[str, Any]
    seed: int = 0
    errors: EstimateErrors | None = None  # of the speeds that the policy was told


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _spare(value: Any, default: Any) -> dict[str, Any]:
    """The fields that differ from the default's."""
    plain = asdict(default)
    return {name: item for name, item in asdict(value).items() if item != plain[name]}


@lru_cache(maxsize=1024)  # many jobs share few of these
def _shape_to_json(shape: Shape) -> Mapping[str, Any]:
    return _spare(shape, Shape())


@lru_cache(maxsize=1024)
def _traits_to_json(traits: Traits) -> Mapping[str, Any]:
    written = _spare(traits, Traits())
    if traits.profile is not None:
        written["profile"] = profile = _spare(traits.profile, Profile())
        if traits.profile.goodput is not None:
            profile["goodput"] = _goodput_to_json(traits.profile.goodput)
    if "checkpoint" in written:
        written["checkpoint"] = _spare(traits.checkpoint, Checkpoint())
    return written


def _goodput_to_json(model: Goodput) -> dict[str, Any]:
    written = _spare(model, Goodput({"": _STEP}, 1))
    return written | {"steps": {kind: _spare(step, _STEP) for kind, step in model.steps.items()}}


_STEP = StepTime(compute=math.inf)  # no step takes that long: its compute is always written


def job_to_json(job: Job) -> dict[str, Any]:
    """A job with all that is not as usual about it."""
    written: dict[str, Any] = {"id": job.id, "arrived_at": job.arrived_at, "work": job.work}
    if job.estimate != job.work:
        written["estimate"] = job.estimate
    if shape := _shape_to_json(job.shape):
        written["shape"] = shape
    for name in ("tenant", "user", "model", "group", "priority"):
        if value := getattr(job, name):
            written[name] = value
    for name in ("deadline", "fails_after"):
        if (value := getattr(job, name)) is not None:
            written[name] = value
    if traits := _traits_to_json(job.traits):
        written["traits"] = traits
    return written


def job_from_json(read: Mapping[str, Any]) -> Job:
    shape = dict(read.get("shape", {}))
    if "roles" in shape:
        shape["roles"] = tuple(Role(**role) for role in shape["roles"])
    if "types" in shape:
        shape["types"] = tuple(shape["types"])
    traits = dict(read.get("traits", {}))
    if "profile" in traits:
        profile = dict(traits["profile"])
        if "curve" in profile:
            profile["curve"] = _curve_from(profile["curve"])
        if "curves" in profile:
            profile["curves"] = {kind: _curve_from(curve) for kind, curve in profile["curves"].items()}
        if "goodput" in profile:
            model = profile["goodput"]
            steps = {kind: StepTime(**step) for kind, step in model["steps"].items()}
            profile["goodput"] = Goodput(**(model | {"steps": steps}))
        if "server_speed" in profile:
            profile["server_speed"] = ServerSpeed(**profile["server_speed"])
        if "loss" in profile:
            profile["loss"] = LossCurve(**profile["loss"])
        traits["profile"] = Profile(**profile)
    if "checkpoint" in traits:
        traits["checkpoint"] = Checkpoint(**traits["checkpoint"])
    if "kind" in traits:
        traits["kind"] = Kind(traits["kind"])
    if "arch" in traits:
        traits["arch"] = Arch(traits["arch"])
    plain = {name: value for name, value in read.items() if name not in ("shape", "traits")}
    plain.setdefault("estimate", plain["work"])
    return Job(shape=Shape(**shape), traits=Traits(**traits), **plain)


def _curve_from(read: Mapping[str, float]) -> dict[int, float]:
    return {int(tasks): rate for tasks, rate in read.items()}


def cluster_to_json(cluster: Cluster) -> dict[str, Any]:
    nodes = []
    for node in cluster.nodes:
        written = asdict(node)
        written["partitions"] = sorted(node.partitions)
        nodes.append(written)
    tenants = [asdict(tenant) for tenant in cluster.tenants.values()]
    return {"nodes": nodes, "links": asdict(cluster.links), "tenants": tenants}


def cluster_from_json(read: Mapping[str, Any]) -> Cluster:
    nodes = tuple(
        Node(**{**node, "type": GpuType(**node["type"]), "partitions": frozenset(node["partitions"])})
        for node in read["nodes"]
    )
    tenants = {tenant["name"]: Tenant(**tenant) for tenant in read["tenants"]}
    return Cluster(nodes, Links(**read["links"]), tenants)


def header_line(header: Header) -> str:
    written = {
        "dovetail": VERSION,
        "policy": header.policy,
        "options": dict(header.options),
        "seed": header.seed,
        "cluster": cluster_to_json(header.cluster),
    }
    if header.errors is not None:
        written["estimates"] = header.errors.as_json()
    return _dumps(written)


def step_line(step: Step) -> str:
    """One step as one line."""
    events = [
        (time, kind, subject, epoch, job_to_json(fact) if kind == SUBMITTED else fact)
        for time, kind, subject, epoch, fact in step.events
    ]
    actions = [action_to_json(action) for action in step.actions]
    line = {"n": step.number, "t": step.now, "decided": step.decided, "events": events, "actions": actions}
    if step.failure:
        line["failure"] = step.failure
    return _dumps(line)


def parse_header(line: str) -> Header:
    """What was run, from the first line."""
    read = json.loads(line)
    errors = EstimateErrors(**read["estimates"]) if "estimates" in read else None
    return Header(cluster_from_json(read["cluster"]), read["policy"], read["options"], read["seed"], errors)


def parse_step(line: str) -> Step:
    """One step from its line."""
    return _step_from(json.loads(line))


def _step_from(read: Mapping[str, Any]) -> Step:
    events = [_read_event(event) for event in read["events"]]
    actions = [action_from_json(action) for action in read["actions"]]
    return Step(read["n"], read["t"], events, read["decided"], actions, read.get("failure", ""))


def action_to_json(action: Action) -> list[Any]:
    fields = [
        (None if field is FULL or field == FULL else asdict(field)) if isinstance(field, Terms) else field
        for field in action
    ]
    return [type(action).__name__, *fields]


def action_from_json(read: list[Any]) -> Action:
    name, *fields = read
    if name in ("Start", "Resize"):
        job, epoch, spots, terms = fields
        fields = [job, epoch, tuple(tuple(spot) for spot in spots), FULL if terms is None else Terms(**terms)]
    made: Action = _ACTIONS[name](*fields)
    return made


def _read_event(read: list[Any]) -> Event:
    time, kind, subject, epoch, fact = read
    if kind == SUBMITTED:
        fact = job_from_json(fact)
    elif isinstance(fact, list):
        fact = tuple(fact)
    return (time, kind, subject, epoch, fact)


class JournalWriter:
    """Writes a journal beside its final name, and moves it there when it is whole."""

    def __init__(self, path: str | Path, header: Header) -> None:
        self._path = Path(path)
        self._part = self._path.with_name(self._path.name + ".part")
        self._header = header
        self._file: IO[str] | None = None

    def __enter__(self) -> JournalWriter:
        self._file = _open(self._part, "wt", compressed=self._path.suffix == ".gz")
        self._file.write(header_line(self._header) + "\n")
        return self

    def write(self, step: Step) -> None:
        assert self._file is not None
        self._file.write(step_line(step) + "\n")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None
        self._file.close()
        if kind is None:
            self._part.replace(self._path)
        else:
            self._part.unlink(missing_ok=True)


def read_journal(path: str | Path) -> tuple[Header, Iterator[Step]]:
    """What was run, and its steps one by one."""
    path = Path(path)
    try:
        with _open(path, "rt", compressed=path.suffix == ".gz") as file:
            first = file.readline()
    except (OSError, UnicodeDecodeError) as error:
        raise JournalError(f"{path}: cannot be read as a journal: {error}") from None
    read = _parse(path, 1, first)
    if not isinstance(read, dict) or read.get("dovetail") != VERSION:
        raise JournalError(
            f"{path}, line 1: no journal of version {VERSION}; make one with simulate --journal FILE"
        )
    return parse_header(first), _steps(path)


def _steps(path: Path) -> Iterator[Step]:
    with _open(path, "rt", compressed=path.suffix == ".gz") as file:
        next(file)  # the header
        for number, line in enumerate(file, start=2):
            read = _parse(path, number, line)
            try:
                yield _step_from(read)
            except (KeyError, TypeError, ValueError) as error:
                raise JournalError(f"{path}, line {number}: no step of a journal ({error!r})") from None


def _parse(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise JournalError(f"{path}, line {number}: broken ({error.msg}); was the run cut short?") from None


def _open(path: Path, mode: str, *, compressed: bool) -> IO[str]:
    opener: Any = gzip.open if compressed else open
    file: IO[str] = opener(path, mode, encoding="utf-8")
    return file
