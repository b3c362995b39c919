"""The registry of policies: every name and the function that makes its policy."""

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
        "slurm": "dovetail.policies.slurm:slurm",
        "openpbs": "dovetail.policies.slurm:openpbs",
        "delay-scheduling": "dovetail.policies.delay:delay_scheduling",
        "philly": "dovetail.policies.philly:philly",
        "ffdl": "dovetail.policies.ffdl:ffdl",
        "tiresias-l": "dovetail.policies.tiresias:tiresias_l",
        "tiresias-g": "dovetail.policies.tiresias:tiresias_g",
        "e-las": "dovetail.policies.elas:e_las",
        "drf": "dovetail.policies.drf:drf",
        "gandiva-fair": "dovetail.policies.gandiva_fair:gandiva_fair",
        "themis": "dovetail.policies.themis:themis",
        "astraea": "dovetail.policies.astraea:astraea",
        "mesos-drf": "dovetail.policies.mesos:mesos_drf",
        "yarn-cs": "dovetail.policies.yarn:yarn_cs",
        "k8s-default": "dovetail.policies.kubernetes:k8s_default",
        "volcano": "dovetail.policies.volcano:volcano",
        "kueue": "dovetail.policies.kueue:kueue",
        "gavel": "dovetail.policies.gavel:gavel",
        "pop": "dovetail.policies.gavel:pop",
        "dorm": "dovetail.policies.dorm:dorm",
        "allox": "dovetail.policies.allox:allox",
        "shockwave": "dovetail.policies.shockwave:shockwave",
    },
    plugins="dovetail.policies",
)
