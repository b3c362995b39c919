"""The policies by name: the one place where a name meets its code."""

from __future__ import annotations

from dovetail.model.registry import Registry
from dovetail.model.view import Policy

POLICIES: Registry[Policy] = Registry(
    "policy",
    {
        "fifo": "dovetail.policies.classic:fifo",
        "sjf": "dovetail.policies.classic:sjf",
        "srtf": "dovetail.policies.classic:srtf",
        "srsf": "dovetail.policies.classic:srsf",
        "priority": "dovetail.policies.classic:priority",
        "backfill": "dovetail.policies.backfill:backfill",
        "tiresias-l": "dovetail.policies.tiresias:tiresias_l",
        "tiresias-g": "dovetail.policies.tiresias:tiresias_g",
        "e-las": "dovetail.policies.elas:e_las",
    },
    plugins="dovetail.policies",
)
