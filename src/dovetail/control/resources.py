"""The resources that a job requests on each of its nodes, and the shape that they are on a cluster.

`accelerators` names how many GPUs and of which types: `A100:8`, `{A100: 8, H100: 8}` or `[H100:8, A100:8]`
(any of these, in the order of preference), `any:1`, or just `8`. `gpus` is the plain number instead. A job is
placed on GPUs of one type, whichever of those it names is free.

A range in place of a number, `2..8` or `A100:2..8`, makes the job elastic: it runs with any number of GPUs in
the range, and the number may change while it runs. The range is that of the whole job, on whichever nodes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dovetail.control.field_types import (
    CORES,
    MEMORY,
    SIZE,
    FieldType,
    anchored,
    choice_field,
    count_field,
    number,
    tidied,
)
from dovetail.control.problems import RequestError, refusal, shown
from dovetail.model.cluster import MOST_DEVICES, Cluster, GpuType, Node
from dovetail.model.errors import NeverFits
from dovetail.model.formats import size
from dovetail.model.job import Shape, gang
from dovetail.model.units import WHOLE, parse_memory

ANY = ("any", "gpu")  # names for any type
MOST_TYPES = 32

_TYPE = "[A-Za-z][A-Za-z0-9._+-]{0,63}"
_COUNT = "[1-9]|[1-5][0-9]|6[0-4]"  # up to MOST_DEVICES
_SPAN = r"[1-9][0-9]{0,3}\.\.[1-9][0-9]{0,3}"  # of an elastic job, on all its nodes
_ONE = f"{_TYPE}(?::(?:{_COUNT}|{_SPAN}))?"


@dataclass(frozen=True, slots=True)
class Accelerators:
    """A number of GPUs of one of these types; without types: of any."""

    count: int | str  # a number, or the range of an elastic job
    types: tuple[str, ...] = ()

    def text(self) -> str | list[str]:
        """As in a job file."""
        if len(self.types) <= 1:
            return f"{self.types[0] if self.types else 'any'}:{self.count}"
        return [f"{name}:{self.count}" for name in self.types]


def _read_span(value: object) -> str:
    """The range of an elastic job, as text; "" if it is none."""
    if not isinstance(value, str) or ".." not in value:
        return ""
    if re.fullmatch(_SPAN, value) is None:
        raise refusal(f"{shown(value)} is not a range of GPUs; write 2..8, whole numbers from 1 to 9999")
    least, most = span_of(value)
    if least > most:
        raise refusal(f"{value} has the larger number first; write {most}..{least}")
    return value


def span_of(text: str) -> tuple[int, int]:
    """
    >>> span_of("2..8")
    (2, 8)
    """
    least, _, most = text.partition("..")
    return int(least), int(most)


def _read_gpus(value: object) -> int | str:
    return _read_span(value) or int(str(_NUMBER_OF_GPUS.read(value)))


_NUMBER_OF_GPUS = count_field(0, MOST_DEVICES)
GPUS = FieldType(
    _read_gpus, {"anyOf": [_NUMBER_OF_GPUS.schema, {"type": "string", "pattern": anchored(_SPAN)}]}
)


def _read_one(value: object) -> tuple[str, int | str]:
    if isinstance(value, str):
        name, _, count = value.partition(":")
        if re.fullmatch(_TYPE, name) and (span := _read_span(count)):
            return name, span
        if re.fullmatch(_ONE, value):
            return name, int(count or 1)
    raise refusal(f"{shown(value)} is not a request for GPUs; write A100:8, any:1 or 8")


def _read_accelerators(value: object) -> Accelerators:
    whole = number(value)
    if isinstance(value, str) and re.fullmatch(_COUNT, value):
        whole = int(value)
    if isinstance(whole, int):
        if not 1 <= whole <= MOST_DEVICES:
            raise refusal(
                f"{whole} GPUs on a node; it must be from 1 to {MOST_DEVICES} (gpus: 0 asks for none)"
            )
        return Accelerators(whole)
    if isinstance(value, str) and ":" not in value and (span := _read_span(value)):
        return Accelerators(span)
    pairs: list[tuple[str, int | str]]
    if isinstance(value, dict):
        pairs = []
        for name, count in value.items():
            whole = number(count)
            if re.fullmatch(_TYPE, name) and (span := _read_span(count)):
                pairs.append((name, span))
                continue
            if (
                re.fullmatch(_TYPE, name) is None
                or not isinstance(whole, int)
                or not 1 <= whole <= MOST_DEVICES
            ):
                raise refusal(
                    f"{shown(name)}: {shown(count)} is not a request for GPUs; write {{A100: 8}}", name
                )
            pairs.append((name, whole))
    else:
        pairs = [_read_one(item) for item in (value if isinstance(value, list) else [value])]
    if not 1 <= len(pairs) <= MOST_TYPES:
        raise refusal(f"{len(pairs)} types of GPU; name 1 to {MOST_TYPES}")
    counts = sorted({count for _, count in pairs}, key=str)
    if len(counts) > 1:
        raise refusal(
            f"different counts ({', '.join(map(str, counts))}) for the types to choose from; "
            "write the same count for each, or submit one job for each"
        )
    if any(name.lower() in ANY for name, _ in pairs):
        return Accelerators(counts[0])
    return Accelerators(counts[0], tuple(dict.fromkeys(name for name, _ in pairs)))


ACCELERATORS = FieldType(
    _read_accelerators,
    {
        "anyOf": [
            {"type": "string", "pattern": anchored(f"{_ONE}|{_COUNT}|{_SPAN}")},
            {"type": "integer", "minimum": 1, "maximum": MOST_DEVICES},
            {
                "type": "array",
                "items": {"type": "string", "pattern": anchored(_ONE)},
                "minItems": 1,
                "maxItems": MOST_TYPES,
            },
            {
                "type": "object",
                "propertyNames": {"pattern": anchored(_TYPE)},
                "additionalProperties": {
                    "anyOf": [
                        {"type": "integer", "minimum": 1, "maximum": MOST_DEVICES},
                        {"type": "string", "pattern": anchored(_SPAN)},
                    ]
                },
                "minProperties": 1,
                "maxProperties": MOST_TYPES,
            },
        ]
    },
    lambda value: value and value.text(),
)

_RANGE = f"(?:{SIZE})(?:[+]|\\.\\.(?:{SIZE})?)?|\\.\\.(?:{SIZE})"


def gpu_memory_range(text: str) -> tuple[int, int | None]:
    """The least and the most bytes of `70GB..`, `24GB..48GB`, `..16GB`; a plain `70GB` is the least.

    GPUs are sold by round numbers and report somewhat less (an "80GB" one 79.6 GiB), so for the least, GB is
    1000**3; for the most it is 1024**3. Write GiB to be exact.
    """
    low, dots, high = text.rstrip("+").partition("..")
    least = parse_memory(low) if low else 0
    if low and "i" not in low.lower():
        unit = "bkmgt".index(next((c for c in low.lower() if c in "kmgt"), "b"))
        least = least * 1_000**unit // 1_024**unit
    most = parse_memory(high) if dots and high else None
    if most is not None and least > most:
        raise ValueError(f"{text!r} has the larger size first; write the smaller one first")
    return least, most


def _read_gpu_memory(value: object) -> str:
    if not isinstance(value, str) or len(value) > 80 or re.fullmatch(_RANGE, value) is None:
        raise refusal(f"{shown(value)} is not a range of GPU memory; write 70GB.. (at least) or 24GB..48GB")
    try:
        gpu_memory_range(value)
    except ValueError as error:
        raise refusal(str(error)) from None
    return value


GPU_MEMORY = FieldType(_read_gpu_memory, {"type": "string", "maxLength": 80, "pattern": anchored(_RANGE)})


class Resources(BaseModel):
    """Resources on each node. A request without GPUs is a CPU job."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, json_schema_extra=tidied({"not": {"required": ["accelerators", "gpus"]}})
    )

    accelerators: Annotated[Accelerators | None, ACCELERATORS] = Field(
        default=None,
        description="GPUs on each node: A100:8, {A100: 8, H100: 8} or [H100:8, A100:8] for any of these "
        "(equal counts), any:1, or 8. A100:2..8 is elastic: 2 to 8 GPUs for the whole job.",
        examples=["A100:8", {"A100": 8, "H100": 8}],
    )
    gpus: Annotated[int | str | None, GPUS] = Field(
        default=None,
        description="GPUs of any type on each node, instead of accelerators. 2..8 makes the job elastic: it "
        "runs with 2 to 8 GPUs, one for each task, and the number may change while it runs.",
        examples=[8, "2..8"],
    )
    gpu_memory: Annotated[str | None, GPU_MEMORY] = Field(
        default=None,
        description="Only GPUs with this much memory: 70GB.. (at least), 24GB..48GB.",
        examples=["70GB.."],
    )
    cpus: Annotated[int | None, CORES] = Field(
        default=None, description="CPU cores on each node; 32+ means the same as 32.", examples=[32, "32+"]
    )
    memory: Annotated[int | None, MEMORY] = Field(
        default=None,
        description="Memory on each node: 400GB; G is 1024**3.",
        examples=["400GB"],
    )
    topology: Annotated[str | None, choice_field("prefer rack", "require rack")] = Field(
        default=None,
        description="Distance of the nodes. 'prefer rack' is the default; 'require rack' is "
        "refused on a cluster of several racks, where it cannot be kept yet.",
    )

    @model_validator(mode="after")
    def _one_number(self) -> Self:
        if self.accelerators is not None and self.gpus is not None:
            raise refusal("both accelerators and gpus are given; leave gpus out", "gpus")
        return self

    @property
    def types(self) -> tuple[str, ...]:
        return self.accelerators.types if self.accelerators else ()

    @property
    def span(self) -> tuple[int, int] | None:
        """The fewest and the most GPUs of an elastic job, in all; None if the job is rigid."""
        asked = self.accelerators.count if self.accelerators else self.gpus
        return span_of(asked) if isinstance(asked, str) else None

    @property
    def count(self) -> int | None:
        """GPUs on each node; None if the request does not tell, or tells a range."""
        asked = self.accelerators.count if self.accelerators else self.gpus
        return None if isinstance(asked, str) else asked


def accepted_types(resources: Resources, cluster: Cluster) -> tuple[str, ...]:
    """The acceptable GPU types, by their names in the cluster; () is any.

    Names are compared without regard to case, `_` and `-` (Slurm's `a100` is `A100`). If only memory is
    requested, the smallest type that fits comes first: large GPUs are kept for jobs that need them.
    """
    here = {_plain(kind.name): kind for kind in cluster.types}
    kinds: Sequence[GpuType]
    if resources.types:
        kinds = [here[_plain(name)] for name in resources.types if _plain(name) in here]
        if not kinds:
            asked = " or ".join(resources.types)
            first = _plain(resources.types[0])  # H100 is no mistyped A100
            near = difflib.get_close_matches(first, [n for n in here if n[:1] == first[:1]], n=1, cutoff=0.4)
            hint = f"did you mean {here[near[0]].name}?" if near else "name one of these, or any"
            names = ", ".join(kind.name for kind in cluster.types)
            raise RequestError.at("/resources/accelerators", f"no node has {asked}; there is {names}; {hint}")
    else:
        kinds = sorted(here.values(), key=lambda kind: kind.memory)
    if resources.gpu_memory:
        least, most = gpu_memory_range(resources.gpu_memory)
        fitting = [k for k in kinds if least <= k.memory and (most is None or k.memory <= most)]
        if not fitting:
            sizes = ", ".join(f"{kind.name} {size(kind.memory)}" for kind in kinds)
            raise RequestError.at(
                "/resources/gpu_memory",
                f"no acceptable GPU has {resources.gpu_memory}; there is {sizes}; ask for another amount",
            )
        kinds = fitting
    everything = not resources.types and len(kinds) == len(here)
    return () if everything else tuple(dict.fromkeys(kind.name for kind in kinds))


def shape_of(resources: Resources, nodes: int, milli: int, cluster: Cluster) -> Shape:
    """The gang: a task for each node, whole on one node. What the empty cluster could not hold is refused.

    One GPU for each task and nothing else is the shape that the core's indexes are made for; more on one node
    is a task of so many devices, since the process that runs there expects all of them at hand. A job without
    GPUs takes one core unless it says how many, as in Slurm, so that it counts for something.
    """
    if resources.span is not None:
        return _elastic_shape(resources, resources.span, cluster)
    count = resources.count
    if count is None:
        count = 1 if resources.gpu_memory or milli < WHOLE else 0
    types = accepted_types(resources, cluster) if count else ()
    cpus = resources.cpus or (0 if count else 1_000)
    shape = Shape(nodes, count, milli, types=types, cpus=cpus, memory=resources.memory or 0)
    if reason := never_fits(shape, cluster):
        raise NeverFits(reason)
    if resources.topology == "require rack" and nodes > 1 and len({node.rack for node in cluster.nodes}) > 1:
        raise RequestError.at("/resources/topology", "one rack cannot be required yet; write prefer rack")
    return shape


def _elastic_shape(resources: Resources, span: tuple[int, int], cluster: Cluster) -> Shape:
    """The gang of an elastic job at its largest: a task for each GPU, with its part of CPUs and memory."""
    least, most = span
    types = accepted_types(resources, cluster)
    shape = gang(most, types, resources.cpus or 0, resources.memory or 0)
    if never_fits(shape.of(least), cluster):
        held = next((n for n in range(least - 1, 0, -1) if not never_fits(shape.of(n), cluster)), 0)
        beside = " with so much CPU and memory" if shape.cpus or shape.memory else ""
        kind = f" {'|'.join(types)}" if types else ""
        remedy = f"ask for fewer, as in --gpus 1..{held}" if held else "ask for less CPU and memory"
        raise NeverFits(
            f"at least {least}{kind} GPUs{beside}, but the empty cluster has room for {held}; {remedy}"
        )
    return shape


def never_fits(shape: Shape, cluster: Cluster) -> str:
    """Why the empty cluster could not hold a shape, and what to request instead; "" if it could."""
    nodes = [n for n in cluster.nodes if not shape.each or not shape.types or n.type.name in shape.types]
    room: dict[GpuType, int] = {}
    for node in nodes:
        held = node.gpus // shape.each if shape.each else shape.tasks
        held = min(held, node.cpus // shape.cpus) if shape.cpus else held
        held = min(held, node.memory // shape.memory) if shape.memory else held
        room[node.type] = room.get(node.type, 0) + held
    most = max(room.values(), default=0)
    if most >= shape.tasks:
        return ""
    kind = f" {'|'.join(shape.types)}" if shape.types else ""
    if too_many := _too_many_gpus(shape, nodes, kind):
        return too_many
    if (largest := max(n.cpus for n in nodes)) < shape.cpus:
        return (
            f"{shape.cpus / 1_000:g} CPUs on one node, but the largest has {largest / 1_000:g}; ask for fewer"
        )
    if (largest := max(n.memory for n in nodes)) < shape.memory:
        return (
            f"{size(shape.memory)} of memory on one node, but the largest has {size(largest)}; ask for less"
        )
    each = ", ".join(
        part
        for part in (
            f"{shape.each}{kind} GPUs" if shape.each else "",
            f"{shape.cpus / 1_000:g} CPUs" if shape.cpus else "",
            size(shape.memory) if shape.memory else "",
        )
        if part
    )
    return f"{shape.tasks} times {each} of one type, but the empty cluster has room for {most}; ask for fewer"


def _too_many_gpus(shape: Shape, nodes: Sequence[Node], kind: str) -> str:
    """What to ask for instead, if GPUs are short; it is something that the empty cluster holds."""
    by_type: dict[GpuType, list[int]] = {}
    for node in nodes:
        by_type.setdefault(node.type, []).append(node.gpus)
    has = max((sum(sizes) for sizes in by_type.values()), default=0)
    largest = max((max(sizes) for sizes in by_type.values()), default=0)
    if not largest or not shape.each:
        return ""
    if (total := shape.tasks * shape.each) > has:
        asked = (
            f"{shape.tasks} tasks of {shape.each}{kind} GPUs are {total}"
            if shape.tasks > 1
            else f"{total}{kind} GPUs"
        )
        one = " of one type" if len(by_type) > 1 else ""
        return f"{asked}, but the cluster has {has}{one}; ask for at most {has}, as in {_most(by_type)}"
    if largest < shape.each:
        asked = (
            f"{shape.each}{kind} GPUs for each task" if shape.tasks > 1 else f"{total}{kind} GPUs on one node"
        )
        return f"{asked}, but the largest such node has {largest}; {_spread(by_type, total)}"
    return ""


def _spread(by_type: Mapping[GpuType, Sequence[int]], total: int) -> str:
    """The fewest tasks of equal size that hold as many GPUs."""
    for tasks in range(2, total + 1):
        each = total // tasks
        if total % tasks == 0 and any(sum(n // each for n in sizes) >= tasks for sizes in by_type.values()):
            return f"spread them, as in --nodes {tasks} --gpus {each}: --gpus is per task"
    return "ask for fewer"


def _most(by_type: Mapping[GpuType, Sequence[int]]) -> str:
    """All GPUs of the most frequent type, in tasks as large as possible."""
    sizes = max(by_type.values(), key=sum)
    each = next(size for size in range(max(sizes), 0, -1) if all(n % size == 0 for n in sizes))
    tasks = sum(sizes) // each
    return f"--nodes {tasks} --gpus {each}" if tasks > 1 else f"--gpus {each}"


def _plain(name: str) -> str:
    return re.sub("[-_ ]", "", name).lower()
