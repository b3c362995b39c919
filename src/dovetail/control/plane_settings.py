"""What a plane is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dovetail.control.chosen_policy import ChosenPolicy
from dovetail.control.launching import DeviceNames
from dovetail.control.unix_accounts import root_is_allowed
from dovetail.model.cluster import Cluster

HIGH_WATER = "high-water"  # in the folder


@dataclass(frozen=True, slots=True)
class Settings:
    """The folder, the cluster and the policy of a plane."""

    folder: Path
    cluster: Cluster
    devices: DeviceNames = field(default_factory=dict)
    policy: ChosenPolicy | None = None  # None: as before, or the default
    stand_in: str = ""  # decides while the chosen policy fails; "": a plain policy, "last": the one before
    scale: float = 1.0
    seed: int = 0
    url: str = ""
    virtual: bool = False  # GPUs are pretended
    set_clock: bool = False  # take the time from the wall clock, also if it was set since the plane last ran
    # Users of tenants without an account may run jobs as root, if the plane does.
    allow_root: bool = field(default_factory=root_is_allowed)
