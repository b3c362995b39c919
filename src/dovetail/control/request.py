"""A job request: the body of `POST /api/v1/jobs`, which is the YAML job file as JSON.

Only the program is required: `run` is shell text, `command` an argument list, and one of them must be given.
Durations, memory and shares carry their unit; times of day without a zone are UTC.

Tenant. A queue *is* a tenant here, and the names that other systems use are read as a tenant: `queue`,
`tenant`, `account` (Slurm: the account that is charged), `partition` (Slurm: a set of nodes) and `qos`
(Slurm: a class of limits). If several are given, the first of tenant, queue, account, partition, qos counts.

Nodes. `resources` are for each task. Without `nodes` the job is one task, on one node. With `nodes: 4` it is
a gang of four equal tasks, which start together. Each task is a process of its own and whole on one node; two
tasks may be on the same node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from dovetail.control import arrays, dependencies
from dovetail.control.arrays import expand_array as expand_array
from dovetail.control.dependencies import Dependency as Dependency
from dovetail.control.dependencies import parse_dependency as parse_dependency
from dovetail.control.field_types import (
    COMMENT,
    DURATION,
    ENV,
    LABEL,
    LONGEST_WORD,
    MOMENT,
    NAME,
    PATH,
    PRIORITY,
    SHARE,
    SHELL,
    SWITCH,
    TENANT,
    TIME_LIMIT,
    FieldType,
    choice_field,
    count_field,
    list_field,
    moment,
    number,
    parsed_field,
    text_field,
    tidied,
)
from dovetail.control.problems import Problem as Problem
from dovetail.control.problems import RequestError as RequestError
from dovetail.control.problems import problems_of, refusal, refusals, shown, unfit_values
from dovetail.control.resources import Resources, shape_of
from dovetail.core.fitting import fitting
from dovetail.core.room import Room
from dovetail.model.cluster import Cluster
from dovetail.model.job import Checkpoint as SavedAs
from dovetail.model.job import Job, Traits
from dovetail.model.units import HOUR, SECOND, WHOLE

MOST_NODES = 10_000
DEFAULT_ESTIMATE = HOUR  # for a job with neither `expected` nor `time`
DEFAULT_NAME = "job"
DEFAULT_GRACE = 30 * SECOND
DEFAULT_WARNING = 120 * SECOND

_EXIT = "exit:(?:[1-9][0-9]?|1[0-9][0-9]|2[0-4][0-9]|25[0-5])"
_CAUSE = text_field(
    12,
    pattern=f"preempted|node-failure|timeout|{_EXIT}",
    remedy="write preempted, node-failure, timeout or exit:33",
)
_SIGNAL = choice_field(
    "TERM", "INT", "HUP", "USR1", "USR2", "SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"
)
_LATER = {
    "serve": "a plane does not run kind serve yet; write kind: train or kind: batch",
    "sweep": "a plane does not run kind sweep yet; write kind: train, with an array for the trials",
}


def _elastic(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"[0-9]+\.\.[0-9]*", value):
        return (
            f"{value[:20]} is a range of nodes; an elastic job says how many GPUs it runs with in all: "
            "write resources: {gpus: 2..8} and leave nodes out"
        )
    return ""


def _read_array(value: object) -> str:
    if isinstance(value, list):
        indices = [number(item) for item in value]
        if not all(isinstance(index, int) for index in indices):
            raise refusal("an array is a list of whole numbers, or text such as 0-99%8")
        try:
            return arrays.array_text(expand_array([int(index or 0) for index in indices])[0])
        except ValueError as error:
            raise refusal(str(error)) from None
    return str(_ARRAY_TEXT.read(str(value) if type(value) is int else value))


_ARRAY_TEXT = parsed_field(arrays.PATTERN, expand_array, 100_000)
_INDEX = {"type": "integer", "minimum": 0, "maximum": arrays.LARGEST_INDEX}
ARRAY = FieldType(
    _read_array,
    {
        "anyOf": [
            _ARRAY_TEXT.schema,
            _INDEX,
            {"type": "array", "items": _INDEX, "minItems": 1, "maxItems": arrays.MOST_MEMBERS},
        ]
    },
)
DEPENDENCY = parsed_field(dependencies.PATTERN, parse_dependency, 40_000)

# How an interpreter takes a program as an argument.
_TAKES = {
    "bash": "-c",
    "sh": "-c",
    "dash": "-c",
    "zsh": "-c",
    "ksh": "-c",
    "python": "-c",
    "perl": "-e",
    "ruby": "-e",
}


class Checkpoints(BaseModel):
    """Checkpoints of the job. A job that declares them must save its state when it is stopped."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="Checkpoint", json_schema_extra=tidied())

    every: Annotated[int | None, DURATION] = Field(
        default=None,
        description="Interval between checkpoints; 0 or none: only when the job is stopped.",
        examples=["20m"],
    )
    grace: Annotated[int, DURATION] = Field(
        default=DEFAULT_GRACE,
        description="Time between the stop signal and SIGKILL.",
        examples=["120s"],
        json_schema_extra={"default": "30s"},
    )
    signal: Annotated[str, _SIGNAL] = Field(default="TERM", description="Signal that stops the job.")
    path: Annotated[str, PATH] = Field(
        default="",
        description="Folder of the checkpoints; by default the one in DOVETAIL_CHECKPOINT_DIR.",
        examples=["$CKPT_DIR"],
    )


class Retry(BaseModel):
    """When a job is started again after it has ended, and how often."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=tidied())

    on: Annotated[tuple[str, ...], list_field(_CAUSE, 300)] = Field(
        default=("preempted", "node-failure"),
        description="preempted, node-failure, timeout, exit:CODE.",
        examples=[["preempted", "node-failure", "exit:33"]],
    )
    max: Annotated[int, count_field(0, 1_000)] = Field(default=3, description="Maximum number of restarts.")


def _read_retry(value: object) -> object:
    """`retry: 3` is short for `{max: 3}`."""
    times = number(value)
    if isinstance(times, int):
        return {"max": times}
    if isinstance(value, dict | Retry):
        return value
    raise refusal(f"{shown(value)} is not a valid retry; write 3, or {{max: 3, on: [preempted, exit:33]}}")


class JobRequest(BaseModel):
    """A job request. Durations: 90s, 45m, 2h30m, 1-12:00:00. Memory: 32G. A bare number is refused."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra=tidied(
            {
                "oneOf": [{"required": ["run"]}, {"required": ["command"]}],
                "not": {"required": ["nodes", "num_nodes"]},
                "examples": [
                    {
                        "name": "llama-sft",
                        "nodes": 2,
                        "resources": {"accelerators": {"H100": 8, "A100-80GB": 8}, "memory": "400GB"},
                        "time": "1-12:00:00",
                        "checkpoint": {"every": "20m", "grace": "120s"},
                        "run": "torchrun --nnodes=$NNODES --nproc-per-node=$NPROC_PER_NODE train.py",
                    }
                ],
            }
        ),
    )

    name: Annotated[str, NAME] = Field(
        default=DEFAULT_NAME, description="Name of the job; need not be unique."
    )
    kind: Annotated[str, choice_field("train", "batch", refused=_LATER)] = Field(
        default="train", description="train, or batch (no training; scheduled alike)."
    )
    queue: Annotated[str | None, TENANT] = Field(
        default=None, description="Tenant; by default that of the token."
    )
    tenant: Annotated[str | None, TENANT] = Field(default=None, description="Another name for queue.")
    account: Annotated[str | None, TENANT] = Field(default=None, description="Slurm's name; read as queue.")
    partition: Annotated[str | None, TENANT] = Field(default=None, description="Slurm's name; read as queue.")
    qos: Annotated[str | None, TENANT] = Field(default=None, description="Slurm's name; read as queue.")
    nodes: Annotated[int | None, count_field(1, MOST_NODES, _elastic)] = Field(
        default=None, description="Number of tasks, which start together; by default one."
    )
    num_nodes: Annotated[int | None, count_field(1, MOST_NODES, _elastic)] = Field(
        default=None, description="SkyPilot's name for nodes."
    )
    resources: Resources = Field(default=Resources(), description="Resources on each node.")
    gpu_share: Annotated[int, SHARE] = Field(
        default=WHOLE,
        description='Share of each GPU: "50%" or 0.5.',
        examples=["50%", 0.5],
        json_schema_extra={"default": 1},
    )
    time: Annotated[int | None, TIME_LIMIT] = Field(
        default=None,
        description="Time limit; 0 or none: no limit.",
        examples=["1-12:00:00", "2h30m"],
    )
    expected: Annotated[int | None, DURATION] = Field(
        default=None,
        description="Expected run time; by default `time`, or as long as it ran before, or an hour.",
    )
    priority: Annotated[int, PRIORITY] = Field(
        default=0,
        description="low (-100), normal (0), high (100), urgent (1000) or a number; higher goes first.",
    )
    preemptible: Annotated[bool, SWITCH] = Field(
        default=True, description="Whether the job may be preempted."
    )
    checkpoint: Checkpoints | None = Field(default=None, description="Checkpoints of the job.")
    retry: Annotated[
        Retry | None,
        BeforeValidator(_read_retry, json_schema_input_type=Retry | Annotated[int, Field(ge=0, le=1_000)]),
    ] = Field(
        default=None,
        description="When the job is started again after it has ended; 3 is short for {max: 3}.",
        examples=[3, {"on": ["preempted", "exit:33"], "max": 2}],
    )
    deadline: Annotated[str | None, MOMENT] = Field(
        default=None,
        description="Deadline: ISO 8601 (UTC unless a zone is given) or +2h from now.",
    )
    env: Annotated[dict[str, str], ENV] = Field(
        default={}, description="Environment variables, besides those that Dovetail sets."
    )
    setup: Annotated[str, SHELL] = Field(default="", description="Shell text that each task runs first.")
    run: Annotated[str | None, SHELL] = Field(
        default=None,
        description="Shell text to run; a first line #!/usr/bin/env python3 names another interpreter.",
    )
    command: Annotated[
        tuple[str, ...] | None,
        list_field(text_field(LONGEST_WORD), 10_000, first=text_field(LONGEST_WORD, least=1)),
    ] = Field(default=None, description="The program and its arguments, without a shell.")
    workdir: Annotated[str, PATH] = Field(
        default="", description="Working directory; by default a folder of the job."
    )
    output: Annotated[str, PATH] = Field(
        default="", description="Output file: %j job, %A array, %a index, %x name, %N node, %t rank.",
        examples=["logs/%x-%j.out"],
    )  # fmt: skip
    error: Annotated[str, PATH] = Field(default="", description="Error file; by default the output file.")
    array: Annotated[str | None, ARRAY] = Field(
        default=None,
        description="Array of jobs: 0-99%8 (eight at a time), 1,3,5-9:2, or a list.",
        examples=["0-99%8"],
    )
    dependency: Annotated[str | None, DEPENDENCY] = Field(
        default=None,
        description="Dependencies: afterok:ID:ID,afterany:ID or singleton; ? for any of them.",
    )
    begin: Annotated[str | None, MOMENT] = Field(
        default=None, description="Earliest start: ISO 8601 or +2h from now."
    )
    hold: Annotated[bool, SWITCH] = Field(default=False, description="Hold the job until it is released.")
    model: Annotated[str, LABEL] = Field(
        default="", description="Model that the job trains; measured speeds are stored by this name."
    )
    launch: Annotated[str, choice_field("node", "gpu")] = Field(
        default="node",
        description="One process per task (torchrun starts the others), or per GPU.",
    )
    slurm_env: Annotated[bool, SWITCH] = Field(default=False, description="Set SLURM_* variables too.")
    signal_before: Annotated[int | None, DURATION] = Field(
        default=None,
        description="Time between SIGUSR1 and the time limit; by default 120 s.",
        examples=["300s"],
    )
    comment: Annotated[str, COMMENT] = Field(default="", description="Comment.")

    @model_validator(mode="before")
    @classmethod
    def _plain_values(cls, data: Any) -> Any:
        if isinstance(data, JobRequest):
            return data
        if wrong := unfit_values(data):
            raise refusals(wrong)
        return data

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        wrong: list[tuple[tuple[str | int, ...], str]] = []
        if (self.run is None) == (self.command is None):
            both = "both run and command are given; leave one out"
            wrong.append(((), "nothing to run; give run (shell text) or command (a list)") if self.run is None
                         else (("command",), both))  # fmt: skip
        if self.run is not None and (problem := _unrunnable(self.run)):
            wrong.append((("run",), problem))
        if self.nodes is not None and self.num_nodes is not None:
            wrong.append((("num_nodes",), "both nodes and num_nodes are given; leave num_nodes out"))
        if self.gpu_share < WHOLE and self.resources.gpus == 0:
            wrong.append((("gpu_share",), "a share of no GPU; take resources.gpus: 0 out"))
        if self.resources.span is not None:
            text = "{}..{} GPUs".format(*self.resources.span)
            if self.gpu_share < WHOLE:
                wrong.append((("gpu_share",), f"a share of each of {text}; an elastic job holds whole GPUs"))
            if named := next((key for key in ("nodes", "num_nodes") if getattr(self, key) is not None), ""):
                wrong.append(
                    ((named,), f"{text} are those of the whole job, on any nodes; leave {named} out")
                )
        if wrong:
            raise refusals(wrong)
        return self

    @property
    def tenant_asked(self) -> str:
        """The tenant that the request names, in any of the fields; "" if none."""
        names = (self.tenant, self.queue, self.account, self.partition, self.qos)
        return next((name for name in names if name), "")

    @property
    def node_count(self) -> int:
        return self.nodes or self.num_nodes or 1

    @property
    def gpus_per_node(self) -> int:
        """Of an elastic job: the most that it may have there."""
        count = self.resources.span[1] if self.resources.span else self.resources.count
        return count if count is not None else int(bool(self.resources.gpu_memory) or self.gpu_share < WHOLE)

    @property
    def says_how_long(self) -> bool:
        """Whether the user gave an estimate or a time limit."""
        return bool(self.expected or self.time)

    @property
    def estimate(self) -> int:
        """Expected run time in microseconds, as far as the request says it (`run_times` knows more)."""
        return min(filter(None, (self.expected or self.time, self.time)), default=DEFAULT_ESTIMATE)

    @property
    def grace(self) -> int:
        return self.checkpoint.grace if self.checkpoint else DEFAULT_GRACE

    @property
    def warning(self) -> int:
        return DEFAULT_WARNING if self.signal_before is None else self.signal_before

    def begins_at(self, now: int) -> int | None:
        return moment(self.begin, now) if self.begin else None

    def document(self) -> dict[str, Any]:
        """The request as JSON, without the defaults."""
        return self.model_dump(mode="json", exclude_defaults=True)


KNOWN_KEYS = {
    "": tuple(JobRequest.model_fields),
    "/resources": tuple(Resources.model_fields),
    "/checkpoint": tuple(Checkpoints.model_fields),
    "/retry": tuple(Retry.model_fields),
}


def parse_request(data: object) -> JobRequest:
    """The request in a JSON value. A RequestError lists all its problems."""
    try:
        return JobRequest.model_validate(data)
    except ValidationError as error:
        raise RequestError(problems_of(error.errors(), KNOWN_KEYS)) from None


# -- the job that it becomes ------------------------------------------------------------------------


def to_job(request: JobRequest, job_id: str, now: int, tenant: str, user: str, cluster: Cluster) -> Job:
    """The job as the core sees it.

    It raises RequestError for types of GPU that the cluster has not, and NeverFits for what it could not hold
    if it were empty. The plane counts retries; the core knows of none. An elastic job asks for as many GPUs
    of its range as the cluster has: it runs with those under a policy that resizes no job.
    """
    least, most = request.resources.span or (None, None)
    job = Job(
        id=job_id,
        arrived_at=now,
        shape=shape_of(request.resources, request.node_count, request.gpu_share, cluster),
        work=request.estimate,
        estimate=request.estimate,
        tenant=tenant,
        user=user,
        priority=request.priority,
        deadline=moment(request.deadline, now) if request.deadline else None,
        # Speeds are measured by model: those of another tenant's jobs must not count.
        model=f"{tenant}/{request.model}" if request.model else "",
        group=job_id.rpartition("_")[0] if request.array else "",
        traits=_traits(request.checkpoint and request.checkpoint.every, request.checkpoint is not None,
                       request.preemptible, least, most),
    )  # fmt: skip
    return job if least is None else fitting(Room(cluster), job) or job


def to_jobs(
    request: JobRequest, first_id: str, now: int, tenant: str, user: str, cluster: Cluster
) -> Iterator[Job]:
    """The job, or all members of the array, `ID_INDEX` each: alike but for their ids."""
    if request.array is None:
        yield to_job(request, first_id, now, tenant, user, cluster)
        return
    indices, _ = expand_array(request.array)
    job = to_job(request, f"{first_id}_{indices[0]}", now, tenant, user, cluster)
    for index in indices:
        yield replace(job, id=f"{first_id}_{index}")


def command_of(request: JobRequest) -> tuple[tuple[str, ...], str]:
    """The command as an argument list, and the shell text that each node runs first."""
    return request.command or _interpreted(request.run or ""), request.setup


def output_of(pattern: str, job_id: str, array_id: str | None, index: int | None, name: str) -> str:
    """A file name with `%j %A %a %x` filled in (`%4a` pads with zeros); `%N`, `%t` and `%%` are the engine's.

    Slashes in the name of a job become underscores.

    >>> output_of("logs/%x-%A_%3a.out", "k3v9q2_7", "k3v9q2", 7, "fit/1")
    'logs/fit_1-k3v9q2_007.out'
    """
    plain_name = re.sub(r"[/%\\]", "_", name)
    values = {
        "j": job_id,
        "A": array_id or job_id,
        "a": "" if index is None else str(index),
        "x": "_" if plain_name in ("", ".", "..") else plain_name,
    }

    def filled(match: re.Match[str]) -> str:
        width, letter = match.groups()
        return values[letter].zfill(int(width or 0)) if letter in values else match[0]

    return re.sub(r"%([0-9]{0,2})([A-Za-z%])", filled, pattern)


def _interpreter(text: str) -> tuple[str, ...]:
    """The words of a `#!` line; bash without one. As in Linux, all that follows the program is one word."""
    if not text.startswith("#!"):
        return ("/bin/bash",)
    return tuple(text.partition("\n")[0][2:].strip().split(maxsplit=1))


def _program(words: tuple[str, ...]) -> str:
    """The interpreter's plain name: `python` for `/usr/bin/env python3.11`."""
    name = words[0].rpartition("/")[2] if words else ""
    if name == "env" and len(words) > 1:
        name = words[1].removeprefix("-S ").split()[0].rpartition("/")[2]
    return name.rstrip("0123456789.")


def _unrunnable(text: str) -> str:
    words = _interpreter(text)
    program = _program(words)
    if program not in _TAKES:
        line = shown(text.partition("\n")[0])
        return f"the first line {line} names none of {', '.join(_TAKES)}; put it in a file and run that"
    if program != "bash" and len(text) > LONGEST_WORD:
        return (
            f"{len(text):,} characters for {program}; put more than {LONGEST_WORD:,} in a file and run that"
        )
    return ""


def _interpreted(text: str) -> tuple[str, ...]:
    words = _interpreter(text)
    program = (*words, _TAKES[_program(words)])
    if len(text) <= LONGEST_WORD:
        return (*program, text)
    # An argument has at most 128 kB: a longer text is passed in pieces, which bash joins.
    pieces = (text[i : i + LONGEST_WORD] for i in range(0, len(text), LONGEST_WORD))
    return (*program, 'printf -v DOVETAIL_RUN %s "$@"; set --; eval "$DOVETAIL_RUN"', "bash", *pieces)


@lru_cache(maxsize=1_024)
def _traits(every: int | None, saves: bool, preemptible: bool, least: int | None, most: int | None) -> Traits:
    saved = SavedAs(every=every or None, on_stop=saves)
    return Traits(checkpoint=saved, preemptible=preemptible, least=least, most=most)
