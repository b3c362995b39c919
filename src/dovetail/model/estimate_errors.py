"""Errors of estimates: what policies are told is wrong by a known amount, in every run by the same.

A simulation knows how long jobs take and how fast they run. With `EstimateErrors` its policies are told
something else: other durations, other speeds, or nothing of the speed of a job that has not run yet. The
truth stays as it is. An error depends on the seed and on what it is an error of, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dovetail.model.chance import seeded_by
from dovetail.model.cluster import Cluster
from dovetail.model.estimate import ASSUMED, IMPOSSIBLE, Estimate, Estimator, may_run
from dovetail.model.job import Job

if TYPE_CHECKING:
    from dovetail.model.view import JobView, View


@dataclass(frozen=True, slots=True)
class EstimateErrors:
    """How wrong the estimates of a run are."""

    noise: float = 0.0  # durations and speeds are wrong by up to this part, either way
    bias: float = 1.0  # declared durations are this many times as long
    cold: bool = False  # the speed of a job that has never run is not known
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.noise < 1.0:
            raise ValueError(f"noise is a part of the true value: at least 0 and below 1, not {self.noise:g}")
        if not 0.0 < self.bias < float("inf"):
            raise ValueError(f"bias is a factor above 0, not {self.bias:g}")

    @classmethod
    def parsed(cls, text: str, seed: int) -> EstimateErrors:
        """The errors that an option describes.

        >>> EstimateErrors.parsed("noise=0.2,cold", seed=1)
        EstimateErrors(noise=0.2, bias=1.0, cold=True, seed=1)
        """
        figures, cold = {"noise": 0.0, "bias": 1.0}, False
        given = set[str]()
        for part in text.split(","):
            name, equals, value = (word.strip() for word in part.partition("="))
            if name in given:
                raise ValueError(f"{name} is given twice")
            given.add(name)
            if name == "cold" and not equals:
                cold = True
            elif name in figures and equals:
                try:
                    figures[name] = float(value)
                except ValueError:
                    raise ValueError(f"{name} is a number, not {value!r}") from None
            else:
                raise ValueError(f"{part.strip()!r} is not noise=X, bias=X or cold; write noise=0.2,bias=1.5")
        return cls(figures["noise"], figures["bias"], cold, seed)

    def told(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """The jobs with the durations that policies are told."""
        return _Told(jobs, self)

    def duration(self, job: Job) -> int:
        """The declared duration of a job, with its error."""
        return max(1, round(job.estimate * self.bias * self.factor("duration", job.id)))

    def estimator(self, base: Estimator) -> Estimator:
        """The estimates of another estimator, with these errors."""
        return WrongSpeeds(base, self) if self.noise or self.cold else base

    def factor(self, *of: object) -> float:
        """The estimated value over the true one."""
        return _factor(self.seed, self.noise, of) if self.noise else 1.0

    def described(self) -> str:
        """One line for people."""
        said = [f"wrong by up to {100 * self.noise:.3g} % either way"] if self.noise else []
        if self.bias != 1.0:
            said.append(f"durations {self.bias:.3g} times as long")
        if self.cold:
            said.append("speeds not known before a job has run")
        return ", ".join(said) or "right"

    def as_json(self) -> dict[str, float | bool | int]:
        """The fields that are not as usual, and the seed."""
        every = {each.name: (getattr(self, each.name), each.default) for each in fields(self)}
        return {name: value for name, (value, usual) in every.items() if value != usual or name == "seed"}


@dataclass(frozen=True, slots=True)
class WrongSpeeds:
    """An estimator whose speeds are wrong: by a factor of its own for each job, type and number of tasks."""

    base: Estimator
    errors: EstimateErrors
    individual: bool = True

    def estimate(
        self, cluster: Cluster, job: JobView, tasks: int, type: str, nodes: int | None, batch: int | None
    ) -> Estimate:
        if self.errors.cold and not job.epoch:
            if not may_run(job.shape, job.traits, tasks, type):
                return IMPOSSIBLE
            return Estimate(cluster.type_speeds.get(type, 1.0) * tasks / job.shape.tasks, ASSUMED)
        speed, certainty = self.base.estimate(cluster, job, tasks, type, nodes, batch)
        return Estimate(speed * self.errors.factor("speed", job.id, type, tasks), certainty)

    def observed(self, view: View) -> WrongSpeeds:
        base = self.base.observed(view)
        return self if base is self.base else replace(self, base=base)


class _Told(Sequence[Job]):
    """Jobs with wrong durations, made as they are read."""

    def __init__(self, jobs: Sequence[Job], errors: EstimateErrors) -> None:
        self._jobs, self._errors = jobs, errors

    def __len__(self) -> int:
        return len(self._jobs)

    def __getitem__(self, at: Any) -> Any:
        found = self._jobs[at]
        return _Told(found, self._errors) if isinstance(at, slice) else self._wrong(found)

    def __iter__(self) -> Iterator[Job]:
        return map(self._wrong, self._jobs)

    def _wrong(self, job: Job) -> Job:
        return replace(job, estimate=self._errors.duration(job))


@lru_cache(maxsize=65_536)  # a policy asks for the same speeds again at every decision
def _factor(seed: int, noise: float, of: Sequence[object]) -> float:
    return 1.0 + noise * (2.0 * seeded_by(seed, *of).random() - 1.0)
