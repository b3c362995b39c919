"""YAML job files, ours and SkyPilot's, as requests.

Scalars follow YAML 1.2: only `true` and `false` are booleans (`retry: {on: [...]}` has the key `on`), and
dates, times and `0123` stay text. A number without a unit is refused, except in a file that only SkyPilot
could have written: there `memory: 32` is GB, and so is `memory: 32+` everywhere. A time without a zone is in
the zone of the machine where the file is read.

A local file is trusted to be small. A file that was sent to the plane (`sent`) is scanned first: for its
depth, its number of values, and for anchors and aliases, by which a few lines can expand to billions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import yaml

from dovetail.client.job_request import Ignored, JobFile, JobFileError, accelerator_texts, zoned

MAX_VALUES = 100_000
MAX_SENT_VALUES = 10_000  # in a file that was sent to a plane
MAX_DEPTH = 20

_SWITCHES = ("preemptible", "hold", "slurm_env")
_YES_AND_NO = {"yes": True, "on": True, "no": False, "off": False}
# SkyPilot's keys that have no meaning outside a cloud.
_NO_CLOUD = "there is no cloud to choose from"
_SKY_TOP = {
    "file_mounts": "files are not copied; the job uses the files of its machine",
    "storage": "files are not copied; the job uses the files of its machine",
    "volumes": "files are not copied; the job uses the files of its machine",
    "config": "it configures SkyPilot itself",
    "experimental": "it configures SkyPilot itself",
    "event_callback": "there are no callbacks",
    "inputs": "they are for SkyPilot's optimizer",
    "outputs": "they are for SkyPilot's optimizer",
    "pool": "there are no pools",
}
_SKY_RESOURCES = {
    **dict.fromkeys(("cloud", "region", "zone", "infra", "instance_type", "image_id"), _NO_CLOUD),
    **dict.fromkeys(("disk_size", "disk_tier", "local_disk", "network_tier", "accelerator_args"), _NO_CLOUD),
    **dict.fromkeys(("use_spot", "spot_recovery", "max_hourly_cost", "autostop", "labels"), _NO_CLOUD),
    "ports": "ports are not opened or mapped",
    "job_recovery": "write retry: {on: [node-failure, exit:33], max: 3}",
}
# Keys that only a SkyPilot file has.
_SKY_KEYS = {"num_nodes", "envs", "secrets", "any_of", "ordered", *_SKY_TOP, *_SKY_RESOURCES}
_SKY_NAMES = (
    "export SKYPILOT_NODE_RANK=$NODE_RANK SKYPILOT_NUM_NODES=$NNODES"
    " SKYPILOT_NUM_GPUS_PER_NODE=$NPROC_PER_NODE SKYPILOT_TASK_ID=$DOVETAIL_JOB_ID"
    " SKYPILOT_NODE_IPS=\"$(printf %s \"$DOVETAIL_NODE_IPS\" | tr ', ' '\\n')\"\n"
)


class _Loader(yaml.SafeLoader):
    """Scalars of YAML 1.2: a time, a date or `yes` stays text."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML requires it


class _QuickLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same in C, if PyYAML has it: in Python a megabyte takes seconds."""

    yaml_implicit_resolvers: dict[str, Any] = _Loader.yaml_implicit_resolvers


for _tag, _pattern, _first in (
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", "[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+0123456789."),
    ("null", "~|null|Null|NULL|", "~nN\0"),
    ("merge", "<<", "<"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), ["" if c == "\0" else c for c in _first]
    )


class _Reader:
    """A YAML document as plain values, with the line of each. A repeated key is an error."""

    def __init__(self, text: str, file: str, loader: type[Any] = _Loader) -> None:
        self.file = file
        self.lines: dict[str, int] = {}
        self.values = 0
        self.loader = loader(text)

    def value(self, node: yaml.Node, pointer: str = "", depth: int = 0, raw: bool = False) -> Any:
        """The value of a node; if `raw`, scalars stay text."""
        line = node.start_mark.line + 1
        self.lines.setdefault(pointer, line)
        self.values += 1
        if depth > MAX_DEPTH or self.values > MAX_VALUES:
            raise JobFileError(
                self.file, line, "it is nested too deeply or has too many values; is it a job file?"
            )
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, raw)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, f"{pointer}/{i}", depth + 1, raw) for i, item in enumerate(node.value)]
        assert isinstance(node, yaml.MappingNode)
        self._check_keys(node)
        self.loader.flatten_mapping(node)  # merge keys: <<
        found: dict[str, Any] = {}
        for key_node, item in node.value:
            key = str(key_node.value)
            below = f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"
            self.lines[below] = key_node.start_mark.line + 1
            found[key] = self.value(item, below, depth + 1, raw or below in ("/env", "/envs", "/secrets"))
        return found

    def _check_keys(self, node: yaml.Node) -> None:
        seen: set[str] = set()
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise JobFileError(self.file, line, "a key is a list or a mapping; keys are plain words")
            if key_node.value in seen and key_node.value != "<<":
                raise JobFileError(self.file, line, f"{key_node.value!r} is repeated; remove one")
            seen.add(key_node.value)

    def _scalar(self, node: yaml.ScalarNode, raw: bool) -> Any:
        if node.tag == "tag:yaml.org,2002:null":
            return None
        if raw:
            return node.value
        try:
            if node.tag == "tag:yaml.org,2002:int" and node.value.startswith("0o"):
                return int(node.value, 8)
            value = self.loader.construct_object(node)
            if not isinstance(value, str | int | float):
                raise ValueError(node.tag)
            return value
        except (yaml.YAMLError, ValueError, OverflowError):
            line = node.start_mark.line + 1
            raise JobFileError(
                self.file, line, f"{node.value[:40]!r} cannot be read; put it in quotes"
            ) from None


def read_yaml(text: str, file: str, *, sent: bool = False) -> JobFile:
    """A job file. If it was `sent`, its folders and times are not those of this machine."""
    try:
        if sent:
            _check_sent(text, file)
        reader = _Reader(text, file, _QuickLoader if sent else _Loader)
        try:
            node = reader.loader.get_single_node()
            if node is None:
                raise JobFileError(file, None, "it is empty; write at least run: COMMAND")
            values = reader.value(node)
        finally:
            reader.loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = f"{error.problem or 'it is not valid YAML'}" + (
            f" ({error.context})" if error.context else ""
        )
        if "expected a single document" in str(error.context):
            problem = "a second document starts here; write one file for each job"
        at = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise JobFileError(file, at[0], problem, at[1]) from None
    except yaml.YAMLError as error:
        raise JobFileError(file, None, f"it is not valid YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise JobFileError(file, None, "it is nested too deeply; is it a job file?") from None
    if not isinstance(values, dict):
        raise JobFileError(
            file, reader.lines[""], "it is not a mapping of keys to values; write at least run: COMMAND"
        )
    found = JobFile(values, file)
    found.lines = reader.lines
    _translate(found, here=not sent)
    return found


def _check_sent(text: str, file: str) -> None:
    """Scan all YAML events before any value is built."""
    loader = _QuickLoader(text)
    count = depth = 0
    try:
        while loader.check_event():
            event = loader.get_event()
            count += 1
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            problem = ""
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
                problem = (
                    "anchors and aliases (& and *) are not accepted; write the value out, or put it in quotes"
                )
            elif depth > MAX_DEPTH or count > MAX_SENT_VALUES:
                problem = "it is nested too deeply or has too many values; is it a job file?"
            if problem:
                mark = event.start_mark
                raise JobFileError(file, mark.line + 1, problem, mark.column + 1)
    finally:
        loader.dispose()


def _translate(found: JobFile, *, here: bool) -> None:
    """Translate synonyms, SkyPilot's keys among them, to the keys of the API."""
    keys = set(found)
    env: dict[str, Any] = {}
    for key in ("env", "envs", "secrets"):
        table = found.get(key)
        if isinstance(table, Mapping):
            env.update(table)
            found.lines.update({f"/env/{name}": found.line_of(f"/{key}/{name}") or 0 for name in table})
            if key != "env":
                del found[key]
    if env:
        found["env"] = env
    if "service" in found:
        raise JobFileError(
            found.file, found.line_of("/service"), "services do not run live yet; remove service"
        )
    _ignore(found, found, _SKY_TOP, "")
    if isinstance(resources := found.get("resources"), dict):
        _translate_resources(found, resources, skypilot=bool(_SKY_KEYS & (keys | set(resources))))
    for key in [key for key, value in found.items() if value is None]:
        del found[key]
    for key in _SWITCHES:
        if isinstance(word := found.get(key), str) and word.lower() in _YES_AND_NO:
            found[key] = _YES_AND_NO[word.lower()]
    for key in ("begin", "deadline"):
        if here and isinstance(found.get(key), str):
            found[key] = zoned(found[key])
    if isinstance(retry := found.get("retry"), dict) and isinstance(retry.get("on"), str):
        retry["on"] = [retry["on"]]
    if here and isinstance(workdir := found.get("workdir"), str) and not workdir.startswith(("/", "$")):
        found["workdir"] = os.path.abspath(os.path.expanduser(workdir))
    for key in ("setup", "run"):
        if isinstance(text := found.get(key), str) and "SKYPILOT_" in text:
            found[key] = _SKY_NAMES + text


def _translate_resources(found: JobFile, resources: dict[str, Any], *, skypilot: bool) -> None:
    for key in ("any_of", "ordered"):
        if isinstance(choices := resources.pop(key, None), list):
            kinds = [c["accelerators"] for c in choices if isinstance(c, Mapping) and "accelerators" in c]
            flat = [text for kind in kinds for text in accelerator_texts(kind)]
            if flat:
                resources["accelerators"] = flat
            others = sorted({k for c in choices if isinstance(c, Mapping) for k in c} - {"accelerators"})
            why = "only the accelerators of the choices are read"
            found.ignored += [
                Ignored(f"resources.{key}.{k}", why, found.line_of(f"/resources/{key}")) for k in others
            ]
    _ignore(found, resources, _SKY_RESOURCES, "resources")
    if "priority" in resources:  # where SkyPilot puts it
        found.setdefault("priority", resources.pop("priority"))
    memory = str(resources.get("memory"))
    if re.fullmatch(r"[0-9]{1,5}(?:\.[0-9]+)?[+]?", memory) and (skypilot or memory.endswith("+")):
        resources["memory"] = memory.rstrip("+") + "GB"
    for key in [key for key, value in resources.items() if value is None]:
        del resources[key]


def _ignore(found: JobFile, table: dict[str, Any], reasons: Mapping[str, str], parent: str) -> None:
    for key in [key for key in table if key in reasons]:
        where = f"/{parent}/{key}" if parent else f"/{key}"
        found.ignored.append(Ignored(where[1:].replace("/", "."), reasons[key], found.line_of(where)))
        del table[key]
