"""The registry of policies: every name and the function that makes its policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dovetail.model.code_files import said
from dovetail.model.errors import BadOption, DovetailError
from dovetail.model.registry import Registry
from dovetail.model.view import Policy

POLICIES: Registry[Policy] = Registry(
    "policy",
    {
        "dovetail": "dovetail.policies.dovetail:dovetail",
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
        "afs": "dovetail.policies.afs:afs",
        "genie": "dovetail.policies.genie:genie",
        "chronus": "dovetail.policies.chronus:chronus",
        "pollux": "dovetail.policies.pollux:pollux",
        "marble": "dovetail.policies.marble:marble",
        "wang": "dovetail.policies.wang:wang",
        "elasticflow": "dovetail.policies.elasticflow:elasticflow",
        "dragon": "dovetail.policies.dragon:dragon",
        "edl": "dovetail.policies.edl:edl",
        "elan": "dovetail.policies.elan:elan",
        "vaibhav": "dovetail.policies.vaibhav:vaibhav",
        "oasis": "dovetail.policies.oasis:oasis",
        "optimus": "dovetail.policies.optimus:optimus",
        "singularity": "dovetail.policies.singularity:singularity",
        "aonline": "dovetail.policies.aonline:aonline",
        "sia": "dovetail.policies.sia:sia",
    },
    plugins="dovetail.policies",
    remedy="install its plug-in where it is to decide, or name a file: FILE.py:FUNCTION",
)

# The same table, and policies in files (`my_policy.py:mine`). A file is code: use this registry for names
# from the command line of this machine, from an admin of a plane, or from a journal, never for a name that a
# user of a plane sent.
TRUSTED_POLICIES: Registry[Policy] = replace(POLICIES, files=True)

_WRONG = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    ArithmeticError,
)  # what our factories raise for a value


def made_policy(name: str, options: Mapping[str, Any]) -> Policy:
    """The policy of a trusted name. Whatever is wrong with it is an InputError in one line."""
    try:
        made = TRUSTED_POLICIES.make(name, **options)
    except DovetailError:
        raise
    except Exception as error:
        if name in POLICIES.paths and not isinstance(error, _WRONG):
            raise
        told = " ".join([name, *(f"{option}={value}" for option, value in options.items())])
        where = f"; see dovetail policies {name}" if name in POLICIES.paths else ""
        raise BadOption(f"policy {told} cannot be made: {said(error)}{where}") from error
    if missing := [part for part in ("decide", "order", "group", "quantum") if not hasattr(made, part)]:
        raise BadOption(
            f"policy {name} is a {type(made).__name__} without {' and '.join(missing)}; "
            "see docs/guides/write-a-policy.md"
        )
    return made
