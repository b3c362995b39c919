"""The core at one moment, for questions that are answered beside the loop."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from dovetail.core.core import Core
from dovetail.core.record import Record, rebuilt
from dovetail.model.cluster import Cluster
from dovetail.model.estimate import Estimator
from dovetail.model.view import Policy


class Standing(NamedTuple):
    """The core at one moment: quickly taken down by the loop, and made a core again where there is time."""

    record: Record
    cluster: Cluster
    policy: Policy
    seed: int
    estimator: Estimator
    took: float  # seconds of CPU

    def core(self, now: int = 0) -> Core:
        """The core as it is now: its last step may be long ago, and jobs have gone on since."""
        alarm = self.record.promises.alarm
        record = replace(self.record, now=max(self.record.now, now if alarm is None else min(now, alarm)))
        return rebuilt(Core(self.cluster, self.policy, self.seed, self.estimator), record)
