"""A job as it is asked for: the body of `POST /api/v1/jobs`, which is the YAML job file as JSON.

Everything but what to run is optional; `run` is shell text, `command` an argument list, and one of them is
needed. Numbers without a unit are seconds (times) and bytes (memory); moments without a zone are UTC.

Who it is for. Here a queue *is* a tenant, so all the names that other systems have for it are taken for it:
`queue` and `tenant` say it outright; `account` (Slurm: who pays) is the same thing; `partition` (Slurm: a set
of nodes) and `qos` (Slurm: a class of limits) come nearest to it where a script says nothing else. If several
are given the first of tenant, queue, account, partition, qos counts and the others are noted only.

One node or several. `resources` are for each node. Without `nodes` it is one node: a process is started on
each node, and a script that does not know of others expects all its GPUs at hand. With `nodes: 4` it is a
gang of four equal parts that start together or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dovetail.control import arrays, dependencies
from dovetail.control.arrays import expand_array as expand_array
from dovetail.control.dependencies import Dependency as Dependency
from dovetail.control.dependencies import parse_dependency as parse_dependency
from dovetail.control.forms import (
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
    Form,
    choice_form,
    count_form,
    list_form,
    moment,
    number,
    parsed_form,
    text_form,
    tidied,
)
from dovetail.control.problems import Problem as Problem
from dovetail.control.problems import RequestError as RequestError
from dovetail.control.problems import problems_of, refusal, refusals, shown, unfit_values
from dovetail.control.resources import Resources, shape_of
from dovetail.model.cluster import Cluster
from dovetail.model.job import Checkpoint as SavedAs
from dovetail.model.job import Job, Traits
from dovetail.model.units import HOUR, SECOND, WHOLE

MOST_NODES = 10_000
DEFAULT_ESTIMATE = HOUR  # for who says neither `expected` nor `time`
DEFAULT_GRACE = 30 * SECOND
DEFAULT_WARNING = 120 * SECOND

_EXIT = "exit:(?:[1-9][0-9]?|1[0-9][0-9]|2[0-4][0-9]|25[0-5])"
_CAUSE = text_form(
    12,
    pattern=f"preempted|node-failure|timeout|{_EXIT}",
    remedy="write preempted, node-failure, timeout or exit:33",
)
_SIGNAL = choice_form(
    "TERM", "INT", "HUP", "USR1", "USR2", "SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"
)
_LATER = {
    "serve": "kind serve is not run live yet; write kind: train or kind: batch",
    "sweep": "kind sweep is not run live yet; write kind: train, with an array for the trials",
}


def _elastic(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"[0-9]+\.\.[0-9]*", value):
        return f"{value[:20]} nodes would make it elastic, which is not run live yet; write one number"
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


_ARRAY_TEXT = parsed_form(arrays.PATTERN, expand_array, 100_000)
_INDEX = {"type": "integer", "minimum": 0, "maximum": arrays.LARGEST_INDEX}
ARRAY = Form(
    _read_array,
    {
        "anyOf": [
            _ARRAY_TEXT.schema,
            _INDEX,
            {"type": "array", "items": _INDEX, "minItems": 1, "maxItems": arrays.MOST_MEMBERS},
        ]
    },
)
DEPENDENCY = parsed_form(dependencies.PATTERN, parse_dependency, 40_000)

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
    """How the job saves its work. To declare it is to promise that a stopped job saves before it leaves."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="Checkpoint", json_schema_extra=tidied())

    every: Annotated[int | None, DURATION] = Field(
        default=None,
        description="It saves by itself each so often; 0 or nothing: only when told to stop.",
        examples=["20m"],
    )
    grace: Annotated[int, DURATION] = Field(
        default=DEFAULT_GRACE,
        description="Between being told to stop and being killed.",
        examples=["120s"],
        json_schema_extra={"default": "30s"},
    )
    signal: Annotated[str, _SIGNAL] = Field(default="TERM", description="How it is told to stop.")
    path: Annotated[str, PATH] = Field(
        default="",
        description="Where it saves; nothing: the folder in DOVETAIL_CHECKPOINT_DIR.",
        examples=["$CKPT_DIR"],
    )


class Retry(BaseModel):
    """After which ends the job is started again, and how often at most."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=tidied())

    on: Annotated[tuple[str, ...], list_form(_CAUSE, 300)] = Field(
        default=("preempted", "node-failure"),
        description="preempted, node-failure, timeout, exit:CODE.",
        examples=[["preempted", "node-failure", "exit:33"]],
    )
    max: Annotated[int, count_form(0, 1_000)] = Field(
        default=3, description="Starts beyond the first, at most."
    )


class JobRequest(BaseModel):
    """A job as it is asked for. Durations: 90 (seconds), 45m, 2h30m, 1-12:00:00. Memory: 32G."""

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

    name: Annotated[str, NAME] = Field(default="job", description="For people; need not be unique.")
    kind: Annotated[str, choice_form("train", "batch", refused=_LATER)] = Field(
        default="train", description="train, or batch (no gradients; scheduled alike)."
    )
    queue: Annotated[str | None, TENANT] = Field(
        default=None, description="The tenant it is for; nothing: that of the token."
    )
    tenant: Annotated[str | None, TENANT] = Field(default=None, description="Another name for queue.")
    account: Annotated[str | None, TENANT] = Field(default=None, description="Slurm's word; read as queue.")
    partition: Annotated[str | None, TENANT] = Field(default=None, description="Slurm's word; read as queue.")
    qos: Annotated[str | None, TENANT] = Field(default=None, description="Slurm's word; read as queue.")
    nodes: Annotated[int | None, count_form(1, MOST_NODES, _elastic)] = Field(
        default=None, description="Nodes that start together; nothing: one."
    )
    num_nodes: Annotated[int | None, count_form(1, MOST_NODES, _elastic)] = Field(
        default=None, description="SkyPilot's word for nodes."
    )
    resources: Resources = Field(default=Resources(), description="What each node must give.")
    gpu_share: Annotated[int, SHARE] = Field(
        default=WHOLE,
        description='Of each GPU, so much: "50%", 0.5 or 500 (thousandths).',
        examples=["50%", 0.5],
    )
    time: Annotated[int | None, TIME_LIMIT] = Field(
        default=None,
        description="It is ended after so long; 0 or nothing: never.",
        examples=["1-12:00:00", "2h30m"],
    )
    expected: Annotated[int | None, DURATION] = Field(
        default=None, description="How long it will probably take; nothing: as long as `time`, or an hour."
    )
    priority: Annotated[int, PRIORITY] = Field(
        default=0,
        description="low (-100), normal (0), high (100), urgent (1000) or a number; more goes first.",
    )
    preemptible: Annotated[bool, SWITCH] = Field(
        default=True, description="It may be stopped for another and started again."
    )
    checkpoint: Checkpoints | None = Field(default=None, description="How it saves its work.")
    retry: Retry | None = Field(default=None, description="After which ends it is started again.")
    deadline: Annotated[str | None, MOMENT] = Field(
        default=None,
        description="When it should be done: ISO 8601 (UTC unless it says otherwise) or +2h from now.",
    )
    env: Annotated[dict[str, str], ENV] = Field(
        default={}, description="Its environment, besides what Dovetail sets."
    )
    setup: Annotated[str, SHELL] = Field(default="", description="Shell text that each node runs first.")
    run: Annotated[str | None, SHELL] = Field(
        default=None,
        description="Shell text to run; a first line #!/usr/bin/env python3 names another interpreter.",
    )
    command: Annotated[
        tuple[str, ...] | None,
        list_form(text_form(LONGEST_WORD), 10_000, first=text_form(LONGEST_WORD, least=1)),
    ] = Field(default=None, description="Or the program and its arguments, with no shell between.")
    workdir: Annotated[str, PATH] = Field(
        default="", description="Where it runs; nothing: a folder of its own."
    )
    output: Annotated[str, PATH] = Field(
        default="", description="File for its output: %j job, %A array, %a index, %x name, %N node, %t rank.",
        examples=["logs/%x-%j.out"],
    )  # fmt: skip
    error: Annotated[str, PATH] = Field(
        default="", description="File for its errors; nothing: with the output."
    )
    array: Annotated[str | None, ARRAY] = Field(
        default=None,
        description="Many jobs in one: 0-99%8 (eight at a time), 1,3,5-9:2, or a list.",
        examples=["0-99%8"],
    )
    dependency: Annotated[str | None, DEPENDENCY] = Field(
        default=None,
        description="What must happen first: afterok:ID:ID,afterany:ID or singleton; ? for any of them.",
    )
    begin: Annotated[str | None, MOMENT] = Field(
        default=None, description="Not before: ISO 8601 or +2h from now."
    )
    hold: Annotated[bool, SWITCH] = Field(default=False, description="Wait until it is released.")
    model: Annotated[str, LABEL] = Field(
        default="", description="What it trains: speeds are remembered by this name."
    )
    launch: Annotated[str, choice_form("node", "gpu")] = Field(
        default="node",
        description="One process for each node (torchrun starts the others), or for each GPU if any.",
    )
    slurm_env: Annotated[bool, SWITCH] = Field(default=False, description="Set SLURM_* variables too.")
    signal_before: Annotated[int | None, DURATION] = Field(
        default=None, description="USR1 so long before the time limit; nothing: 120 s.", examples=[300]
    )
    comment: Annotated[str, COMMENT] = Field(default="", description="For people.")

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
        if wrong:
            raise refusals(wrong)
        return self

    @property
    def tenant_asked(self) -> str:
        """The tenant it names, by whichever word; "" if none."""
        names = (self.tenant, self.queue, self.account, self.partition, self.qos)
        return next((name for name in names if name), "")

    @property
    def node_count(self) -> int:
        return self.nodes or self.num_nodes or 1

    @property
    def gpus_per_node(self) -> int:
        count = self.resources.count
        return count if count is not None else int(bool(self.resources.gpu_memory) or self.gpu_share < WHOLE)

    @property
    def estimate(self) -> int:
        """How long it is said to take, microseconds."""
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
        """As JSON that reads the same; what was not said is left out."""
        return self.model_dump(mode="json", exclude_defaults=True)


KNOWN_KEYS = {
    "": tuple(JobRequest.model_fields),
    "/resources": tuple(Resources.model_fields),
    "/checkpoint": tuple(Checkpoints.model_fields),
    "/retry": tuple(Retry.model_fields),
}


def parse_request(data: object) -> JobRequest:
    """The request in this JSON value, or a RequestError with all that is wrong with it."""
    try:
        return JobRequest.model_validate(data)
    except ValidationError as error:
        raise RequestError(problems_of(error.errors(), KNOWN_KEYS)) from None


# -- what becomes of it ----------------------------------------------------------------------------


def to_job(request: JobRequest, job_id: str, now: int, tenant: str, user: str, cluster: Cluster) -> Job:
    """The job that the core is told of.

    It raises RequestError for types of GPU that the cluster has not, and NeverFits for what it could not hold
    if it were empty. The plane counts retries itself, so the core is told of none.
    """
    return Job(
        id=job_id,
        arrived_at=now,
        shape=shape_of(request.resources, request.node_count, request.gpu_share, cluster),
        work=request.estimate,
        estimate=request.estimate,
        tenant=tenant,
        user=user,
        priority=request.priority,
        deadline=moment(request.deadline, now) if request.deadline else None,
        model=request.model,
        group=job_id.rpartition("_")[0] if request.array else "",
        traits=_traits(request.checkpoint and request.checkpoint.every, request.checkpoint is not None,
                       request.preemptible),
    )  # fmt: skip


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
    """What to run as an argument list, and the shell text each node runs first."""
    return request.command or _interpreted(request.run or ""), request.setup


def output_of(pattern: str, job_id: str, array_id: str | None, index: int | None, name: str) -> str:
    """A file name with `%j %A %a %x` filled in (`%4a` pads with zeros); `%N`, `%t` and `%%` are the engine's.

    A job's name is no path: its slashes become underscores.

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
    """The words of a `#!` line; bash without one. As in Linux all behind the program is one word."""
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
    # One word of a command is at most 128 kB: a longer text goes in pieces, which bash puts together.
    pieces = (text[i : i + LONGEST_WORD] for i in range(0, len(text), LONGEST_WORD))
    return (*program, 'printf -v DOVETAIL_RUN %s "$@"; set --; eval "$DOVETAIL_RUN"', "bash", *pieces)


@lru_cache(maxsize=1_024)
def _traits(every: int | None, saves: bool, preemptible: bool) -> Traits:
    return Traits(checkpoint=SavedAs(every=every or None, on_stop=saves), preemptible=preemptible)
