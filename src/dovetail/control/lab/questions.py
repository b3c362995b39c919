"""What may be asked of the Lab. Everything is bounded here, before anything is worked out.

Times are seconds, sizes of clusters are written as on the command line. A policy's options may be given as
JSON has them or as text, as `--set` takes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from dovetail.control.problems import refusal, refusals, shown

MOST_JOBS = 200  # that a queue is drawn of
MOST_GPUS = 256
MOST_HEAD = 20_000  # of a trace
MOST_COMPARED = 20_000  # GPUs, where nothing is drawn
LONGEST = 1e7  # seconds: four months
WORD = r"^[^\u0000-\u001f\u007f-\u009f]*$"
_PART = r"[0-9]{1,5}x[0-9]{1,2}(:[A-Za-z0-9_.+-]{1,40})?"
OPENB = "openb"
CLUSTER = rf"^{_PART}(,{_PART})*$"

Word = Annotated[str, Field(min_length=1, max_length=64, pattern=WORD)]
Speed = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


def _flat(value: Any) -> Any:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if len(inner) > 100 or any(isinstance(one, dict | list) for one in inner):
        raise refusal("lists and mappings hold at most a hundred plain values")
    return value


Options = Annotated[
    dict[Annotated[str, Field(max_length=64, pattern=WORD)], Annotated[Any, AfterValidator(_flat)]],
    Field(max_length=40, description="Of the policy; values as JSON has them, or as text."),
]


def _cluster(text: str) -> str:
    if text == OPENB or re.fullmatch(CLUSTER, text := text.replace(" ", "")):
        return text
    raise refusal(f"{shown(text)} describes no cluster; write 8x8 or 4x8:A100,16x4:V100")


ClusterText = Annotated[
    str,
    Field(
        min_length=3,
        max_length=200,
        description="Nodes x GPUs, and their type; openb is that of the trace.",
        examples=["2x1", "1x2:V100,1x2:K80"],
        json_schema_extra={"pattern": rf"{CLUSTER}|^{OPENB}$"},
    ),
    AfterValidator(_cluster),
]
Policy = Annotated[str, Field(min_length=1, max_length=64, pattern=WORD, examples=["fifo"])]
Faster = Annotated[float, Field(ge=0.01, le=1_000, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=1_000)]


class Asked(BaseModel):
    """A question; a key that it does not know is refused."""

    model_config = ConfigDict(extra="forbid")


class LabJob(Asked):
    """A job of a small queue."""

    id: Word
    submit: float = Field(default=0.0, ge=0, le=LONGEST, allow_inf_nan=False, description="Seconds.")
    gpus: int = Field(default=1, ge=1, le=MOST_GPUS)
    duration: float = Field(ge=0.001, le=LONGEST, allow_inf_nan=False, description="Seconds, at speed 1.")
    estimate: float | None = Field(
        default=None,
        ge=0.001,
        le=LONGEST,
        allow_inf_nan=False,
        description="What it says it takes; nothing: the truth.",
    )
    priority: int = Field(default=0, ge=-1_000_000, le=1_000_000)
    tenant: str = Field(default="", max_length=64, pattern=WORD)
    speeds: dict[Word, Speed] = Field(
        default={}, max_length=16, description="How fast it goes by GPU type; 1 where nothing is said."
    )


class Simulate(Asked):
    """A queue of a few jobs, a cluster and a policy."""

    cluster: ClusterText
    jobs: list[LabJob] = Field(min_length=1, max_length=MOST_JOBS)
    policy: Policy
    options: Options = {}
    restart_cost: float = Field(
        default=0.0,
        ge=0,
        le=86_400,
        allow_inf_nan=False,
        description="Seconds that a stopped job pays to come back.",
    )


class Compare(Asked):
    """One policy on a shipped trace, or on jobs of one's own; ask once for each policy."""

    trace: str | None = Field(
        default=None, max_length=64, pattern=WORD, description="See /traces.", examples=["philly"]
    )
    jobs: list[LabJob] | None = Field(default=None, min_length=1, max_length=MOST_JOBS)
    head: int = Field(default=2_000, ge=1, le=MOST_HEAD, description="The first so many jobs of the trace.")
    cluster: ClusterText
    policy: Policy
    options: Options = {}
    restart_cost: float = Field(default=0.0, ge=0, le=86_400, allow_inf_nan=False)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.trace is None) == (self.jobs is None):
            raise refusal("give either trace or jobs")
        return self


class DeviceType(Asked):
    name: Word
    count: Count


class Runner(Asked):
    """A job that could run on several types."""

    name: Word
    gpus: int = Field(default=1, ge=1, le=64)
    speeds: list[Speed] = Field(
        min_length=1, max_length=8, description="Throughput of each of its GPUs, by type; 0: not there."
    )


Sizes = Annotated[
    Literal["fixed", "flexible"],
    Field(description="fixed: a job holds as many GPUs as it asks for; flexible: any number."),
]


class Split(Asked):
    """Types of GPU and the jobs that compete for them."""

    types: list[DeviceType] = Field(min_length=1, max_length=8)
    jobs: list[Runner] = Field(min_length=1, max_length=12)
    sizes: Sizes = "fixed"

    @model_validator(mode="after")
    def _speeds_for_all(self) -> Self:
        wrong = [
            (
                ("jobs", i, "speeds"),
                f"{len(job.speeds)} speeds for {len(self.types)} types; give one for each",
            )
            for i, job in enumerate(self.jobs)
            if len(job.speeds) != len(self.types)
        ]
        if wrong:
            raise refusals(wrong)
        return self


class Throughput(Split):
    """Which job should run on which type, and for how much of the time."""

    objective: Literal["max-sum", "max-min"] = "max-sum"
    assignment: list[Annotated[int, Field(ge=0, le=7)] | None] | None = Field(
        default=None,
        max_length=12,
        description="By hand: for each job the place of a type in types, or null if it does not run.",
    )

    @model_validator(mode="after")
    def _known_types(self) -> Self:
        if self.assignment is None:
            return self
        if len(self.assignment) != len(self.jobs):
            raise refusal(f"{len(self.assignment)} places for {len(self.jobs)} jobs", "assignment")
        for i, type_ in enumerate(self.assignment):
            if type_ is not None and type_ >= len(self.types):
                raise refusal(f"type {type_} does not exist; they count from 0", "assignment", i)
        return self


class Frontier(Split):
    """From most throughput to most fair."""

    weights: list[Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]] = Field(
        default=[0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0],
        max_length=51,
        description="Of fairness; the rest is that of throughput.",
    )
    floors: list[Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]] = Field(
        default=[],
        max_length=51,
        description="Of the worst-off job: 0 is what it has with the largest total, 1 the most it can have.",
    )


LINKS: Mapping[str, float] = {"NVLink": 600.0, "InfiniBand": 25.0, "Ethernet": 10.0}


class Placement(Asked):
    """A step of training that computes, and then sends its gradients over a link."""

    compute_ms: float = Field(default=100.0, ge=0, le=1e7, allow_inf_nan=False)
    size_gb: float = Field(default=1.0, ge=0, le=1e6, allow_inf_nan=False, description="10^9 bytes.")
    gpus: int = Field(default=2, ge=1, le=100_000)
    pattern: Literal["one_way", "ring"] = Field(
        default="ring", description="All of it sent once, or a ring all-reduce: 2(n-1)/n of it."
    )
    links: dict[Word, Annotated[float, Field(gt=0.001, le=1e6, allow_inf_nan=False)]] = Field(
        default={}, max_length=12, description="GB/s by name; none: NVLink 600, InfiniBand 25, Ethernet 10."
    )


class MoreNodes(Asked):
    nodes: int = Field(ge=1, le=1_000)
    gpus: int = Field(ge=1, le=64, description="On each.")
    type: str = Field(default="gpu", min_length=1, max_length=40, pattern=r"^[A-Za-z0-9_.+-]+$")
    speed: Faster | None = Field(
        default=None, description="Of a new type: how fast its GPUs are; 1 is usual."
    )


class Replacement(Asked):
    """All nodes of a type get GPUs of another."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    old: str = Field(alias="from", min_length=1, max_length=64, pattern=WORD)
    new: str = Field(alias="to", min_length=1, max_length=40, pattern=r"^[A-Za-z0-9_.+-]+$")
    speed: Faster | None = Field(
        default=None, description="How many times as fast; 1 unless it is there already."
    )


class WhatIf(Asked):
    """What to change about the live cluster; nothing is changed for real."""

    policy: Policy | None = None
    options: Options = {}
    add: list[MoreNodes] = Field(default=[], max_length=8)
    replace: Replacement | None = None
