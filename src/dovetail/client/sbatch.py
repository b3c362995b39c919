"""Scripts with `#SBATCH` lines as requests: Slurm's options are translated by their meaning.

As in Slurm the lines count up to the first command. Options of Slurm without a counterpart are listed with a
reason; none is dropped silently. Options that Slurm does not have are refused. Differences:

- Slurm runs the script on the first node and `srun` starts the tasks. Here the script itself runs on every
  node, so `srun` becomes a shell function that drops its options and runs the command in place.
- With `srun` and as many tasks as GPUs the script runs once for each GPU (`launch: gpu`); else once a node.
- `SLURM_*` variables are set, and the output goes to `slurm-%j.out` in the folder it was submitted from.
- Slurm copies the whole environment at submission by default; here only `--export=ALL` does.
- `-G 8` without `-N` is eight GPUs of one node; `-N 2-4` is two nodes.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from dovetail.client.job_request import Ignored, JobFile, JobFileError, zoned
from dovetail.client.slurm_options import KNOWN, PYXIS, unknown, whole_name

_SHORT = {
    "J": "job-name", "p": "partition", "A": "account", "q": "qos", "t": "time", "N": "nodes", "n": "ntasks",
    "c": "cpus-per-task", "G": "gpus", "o": "output", "e": "error", "a": "array", "d": "dependency",
    "w": "nodelist", "x": "exclude", "b": "begin", "H": "hold", "D": "chdir", "C": "constraint",
    "i": "input", "L": "licenses", "M": "clusters", "s": "oversubscribe", "k": "no-kill", "Q": "quiet",
    "v": "verbose", "W": "wait", "O": "overcommit", "B": "extra-node-info", "F": "nodefile", "S": "core-spec",
    "m": "distribution", "I": "immediate", "K": "kill-on-bad-exit", "X": "disable-status", "Z": "no-allocate",
    "E": "preserve-env", "T": "threads", "l": "label", "r": "relative", "u": "unbuffered", "h": "help",
    "V": "version",
}  # fmt: skip

# Options without a value, or (nice) with a value only after "=".
_ALONE = frozenset({
    "hold", "requeue", "no-requeue", "nice", "exclusive", "oversubscribe", "no-kill", "quiet", "verbose",
    "wait", "overcommit", "parsable", "test-only", "spread-job", "use-min-nodes", "contiguous", "reboot",
    "get-user-env", "ignore-pbs", "propagate", "disable-stdout-job-summary", "kill-on-invalid-dep",
    "pty", "overlap", "exact", "unbuffered", "label", "help", "usage", "version", "stepmgr", "oom-kill-step",
    "resv-ports", "immediate", "kill-on-bad-exit", "disable-status", "no-allocate", "preserve-env", "whole",
    "interactive", "multi-prog", "external-launcher", "x11", "container-mount-home", "container-remap-root",
    "no-container-mount-home", "no-container-remap-root", "container-entrypoint", "no-container-entrypoint",
    "container-writable", "container-readonly",
})  # fmt: skip

_READ = frozenset({
    "job-name", "partition", "account", "qos", "time", "nodes", "ntasks", "ntasks-per-node",
    "cpus-per-task", "cpus-per-gpu", "gpus", "gpus-per-node", "gpus-per-task", "gres", "mem", "mem-per-cpu",
    "mem-per-gpu", "output", "error", "array", "dependency", "begin", "deadline", "signal", "requeue",
    "no-requeue", "nice", "hold", "chdir", "export", "comment",
})  # fmt: skip

_WHY = {
    "nodelist": "the scheduler chooses the nodes",
    "exclude": "the scheduler chooses the nodes",
    "nodefile": "the scheduler chooses the nodes",
    "constraint": "name the GPU type instead, as in --gpus=a100:4",
    "mail-type": "no mail is sent",
    "mail-user": "no mail is sent",
    "exclusive": "GPUs are shared only on request; to get a whole node, ask for all its GPUs",
    "oversubscribe": "ask for a share of a GPU instead: gpu_share in a YAML file",
    "reservation": "there are no reservations",
    "licenses": "there are no licenses",
    "clusters": "there is one cluster",
    "priority": "use --nice, or priority in a YAML file",
    "time-min": "the time limit is not shortened to start earlier",
    "input": "the input is empty",
    "wait": "use dovetail run, which waits",
    "test-only": "use dovetail plan",
    "parsable": "it is a flag of the command",
    "ntasks-per-gpu": "a job has one process per task, or one per GPU",
    "gpus-per-socket": "use --gpus-per-node",
    "wrap": "a script has its own commands",
    "open-mode": "output of a restarted job is kept",
    "switches": "nodes near each other are preferred anyway",
    **dict.fromkeys(PYXIS, "jobs run without a container"),
    "kill-on-invalid-dep": "a job is cancelled in any case when its dependency can no longer be met",
}
# Options that say the same in other words: one on the command line overrides all of them in the script.
_FAMILIES = (
    {"gpus", "gpus-per-node", "gpus-per-task", "gres"},
    {"mem", "mem-per-cpu", "mem-per-gpu"},
    {"account", "partition", "qos"},
    {"ntasks", "ntasks-per-node"},
    {"cpus-per-task", "cpus-per-gpu"},
    {"requeue", "no-requeue"},
)
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_USES_SRUN = re.compile(
    r"^[ \t]*(?:[A-Za-z_][A-Za-z0-9_]*=\S*[ \t]+|time[ \t]+|if[ \t]+|&&[ \t]*)*srun(?:[ \t\\]|$)", re.M
)
_SRUN = (
    'srun() { while [ $# -gt 0 ]; do case "$1" in --) shift; break;; --*=*) shift;;'
    " -[nNcGtpAJoewxdm]|--ntasks|--nodes|--gpus|--gres|--mem|--time|--partition|--output|--error|--job-name"
    "|--cpus-per-task|--ntasks-per-node|--gpus-per-node|--gpus-per-task|--cpu-bind|--mpi|--export)"
    " shift; [ $# -eq 0 ] || shift;;"
    ' -*) shift;; *) break;; esac; done; "$@"; }  # dovetail: this already runs on every node'
)
# Variables of the terminal session, useless to a job.
_OF_THE_SESSION = re.compile(
    r"DOVETAIL_|SSH_|XDG_|DBUS_|BASH_FUNC|(?:_|PWD|OLDPWD|SHLVL|DISPLAY|TERM|TTY|LS_COLORS)$"
)


class Option(NamedTuple):
    """One option of a script: `--gres=gpu:4` in line 5."""

    name: str
    value: str
    line: int | None  # None: it was typed on the command line
    written: str


def options_of(text: str, file: str) -> Iterator[Option]:
    """The options of all `#SBATCH` lines above the first command."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#SBATCH"):
            try:
                words = shlex.split(line[len("#SBATCH") :], comments=True)
            except ValueError as error:
                raise JobFileError(file, number, f"the quotes do not match ({error}); fix the line") from None
            yield from _options(words, number, file)
        elif line.strip() and not line.lstrip().startswith("#"):
            return


def typed_options(
    words: Sequence[str], command: str, own: Collection[str] = ()
) -> tuple[list[Option], list[str]]:
    """The options of a command line of Slurm, and what follows them; `own` are those of the command."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        word = words[at]
        long = word.startswith("--")
        name = whole_name(word[2:].partition("=")[0]) if long else _SHORT.get(word[1], word[1])
        if name not in KNOWN and name not in own:
            raise JobFileError(command, None, unknown(word.partition("=")[0] if long else word[:2]))
        attached = "=" in word if word.startswith("--") else len(word) > 2
        at += 1 if attached or name in _ALONE else 2
    options = list(_options(list(words[:at]), None, command))
    return options, list(words[at + 1 :] if words[at : at + 1] == ["--"] else words[at:])


def _options(words: list[str], line: int | None, file: str) -> Iterator[Option]:
    left = iter(words)
    for word in left:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            written, name = f"--{name}", whole_name(name)
            if not equals and name not in _ALONE:
                value = next(left, "")
        elif word.startswith("-") and len(word) > 1:
            name, value, written = _SHORT.get(word[1], word[1]), word[2:].removeprefix("="), word[:2]
            if not value and name not in _ALONE:
                value = next(left, "")
        else:
            raise JobFileError(file, line, f"{word!r} is not an option; write --name=value or -n value")
        if name not in KNOWN:
            raise JobFileError(file, line, unknown(written))
        if not value and name in _READ - _ALONE:
            raise JobFileError(file, line, f"{written} needs a value")
        yield Option(name, value, line, written)


def _same(name: str) -> set[str]:
    return next((family for family in _FAMILIES if name in family), {name})


def read_script(
    text: str,
    file: str = "<text>",
    environ: Mapping[str, str] | None = None,
    now: datetime | None = None,
    *,
    given: Sequence[Option] = (),
    arguments: Sequence[str] = (),
) -> JobFile:
    """The request of a script; its command is the script itself.

    Options that were `given` on a command line override those of the script, and `arguments` are its own.
    """
    script = _Script(text, file, os.environ if environ is None else environ, now or datetime.now(), given)
    return script.request(arguments)


class _Script:
    """One script being translated: its options by name, the last of each, and those that are ignored."""

    def __init__(
        self, text: str, file: str, environ: Mapping[str, str], now: datetime, given: Sequence[Option] = ()
    ) -> None:
        self.text, self.file, self.environ, self.now = text, file, environ, now
        self.found = JobFile({}, file, kind="sbatch")
        self.options: dict[str, Option] = {}
        said = {same for option in given for same in _same(option.name)}
        written = [option for option in options_of(text, file) if option.name not in said]
        for option in (*written, *given):
            if option.name in _READ:
                self.options[option.name] = option
            else:
                self._ignore(option, _WHY.get(option.name, "it has no counterpart here"))

    def request(self, arguments: Sequence[str] = ()) -> JobFile:
        for name in ("job-name", "output", "error", "comment", "array", "dependency"):
            if option := self.options.get(name):
                self._put(name.removeprefix("job-"), option.value, option)
        self._queue()
        self._times()
        self._resources()
        self._rest()
        if "output" not in self.found:
            self.found["output"] = "slurm-%A_%a.out" if "array" in self.found else "slurm-%j.out"
        self.found["slurm_env"] = True
        self.found["run"] = self._run(arguments)
        return self.found

    # -- parts

    def _queue(self) -> None:
        names = [self.options[name] for name in ("account", "partition", "qos") if name in self.options]
        if names:
            self._put("queue", names[0].value, names[0])
            for other in names[1:]:
                self._ignore(other, f"{names[0].written} {names[0].value} names the tenant already")

    def _times(self) -> None:
        if option := self.options.get("time"):
            seconds = self._read(option, slurm_seconds, "write 30 (minutes), 2:30:00 or 1-12:00:00")
            if seconds:
                self._put("time", f"{seconds}s", option)
        for name in ("begin", "deadline"):
            if option := self.options.get(name):
                remedy = "write now+2hours, 16:00 or 2026-12-01T09:00"
                self._put(name, self._read(option, lambda text: slurm_time(text, self.now), remedy), option)
        if option := self.options.get("signal"):
            match = re.fullmatch(r"(?:[BR]+:)?(?:SIG)?([A-Z0-9]+)(?:@([0-9]{1,5}))?", option.value.upper())
            if match is None:
                raise self._wrong(option, "write B:USR1@300")
            if match[1] in ("USR1", "10"):
                self._put("signal_before", f"{int(match[2] or 60)}s", option)
            else:
                self._ignore(option, "the signal before the time limit is always USR1")

    def _resources(self) -> None:
        resources: dict[str, Any] = {}
        nodes = self._nodes()
        tasks = self._count("ntasks")
        per_node = self._count("ntasks-per-node") or (-(-tasks // nodes) if tasks else 1)
        kind, gpus = self._gpus(nodes, per_node)
        if gpus:
            resources["accelerators"] = f"{kind or 'any'}:{gpus}"
        cpus = (self._count("cpus-per-task") or 1) * per_node
        if each := self._count("cpus-per-gpu"):
            cpus = each * gpus
        if {"cpus-per-task", "cpus-per-gpu", "ntasks", "ntasks-per-node"} & set(self.options):
            resources["cpus"] = cpus
        if memory := self._memory(gpus, cpus):
            resources["memory"] = memory
        if nodes > 1 or "nodes" in self.options:
            self.found["nodes"] = nodes
        if resources:
            self.found["resources"] = resources
        named = [
            self.options[n] for n in ("gres", "gpus-per-node", "gpus-per-task", "gpus") if n in self.options
        ]
        if named:
            self._told_in("/resources", named[0])
            self._told_in("/resources/accelerators", named[0])
        if (option := self.options.get("ntasks-per-node") or self.options.get("ntasks")) and per_node > 1:
            if per_node != gpus:
                self._ignore(
                    option, "processes are one for each node or one for each GPU; only its CPUs are counted"
                )
            elif _USES_SRUN.search(self.text):
                self.found["launch"] = "gpu"
            else:
                self._ignore(
                    option, "without srun the script runs once on each node; only its CPUs are counted"
                )

    def _nodes(self) -> int:
        option = self.options.get("nodes")
        if option is None:
            return 1
        match = re.fullmatch("([0-9]{1,5})(?:-([0-9]{1,5}))?", option.value)
        if match is None or int(match[1]) < 1:
            raise self._wrong(option, "write -N 2")
        if match[2] and match[1] != match[2]:
            self._ignore(option, f"a range of nodes is not supported yet; {match[1]} are used")
        self._told_in("/nodes", option)
        return int(match[1])

    def _gpus(self, nodes: int, tasks_per_node: int) -> tuple[str, int]:
        """The type ("" is any) and the number of GPUs on each node, from the first of four options."""
        if option := self.options.get("gpus-per-node"):
            return self._typed(option, option.value)
        if option := self.options.get("gpus-per-task"):
            kind, count = self._typed(option, option.value)
            return kind, count * tasks_per_node
        if option := self.options.get("gpus"):
            kind, count = self._typed(option, option.value)
            if count % nodes:
                raise self._wrong(option, f"it cannot be divided among {nodes} nodes; use --gpus-per-node")
            return kind, count // nodes
        if option := self.options.get("gres"):
            parts = [part.removeprefix("gres:").removeprefix("gres/") for part in option.value.split(",")]
            wanted = [part for part in parts if re.match("gpu(?::|$)", part)]
            for part in parts:
                if part not in wanted and part not in ("", "none"):
                    self._ignore(option._replace(value=part), "GPUs are the only generic resource")
            if len(wanted) > 1:
                raise self._wrong(option, "one type at a time; name several in a YAML file: [A100:4, V100:4]")
            if wanted:
                return self._typed(option, wanted[0].partition(":")[2] or "1")
        return "", 0

    def _typed(self, option: Option, text: str) -> tuple[str, int]:
        match = re.fullmatch(r"(?:([A-Za-z][\w.+-]*)(?::|$))?([0-9]{1,4})?", re.sub(r"\([^)]*\)$", "", text))
        if match is None or not any(match.groups()):
            raise self._wrong(option, "write 4 or a100:4")
        return match[1] or "", int(match[2] or 1)

    def _memory(self, gpus: int, cpus: int) -> str:
        for name, times in (("mem", 1), ("mem-per-gpu", gpus), ("mem-per-cpu", cpus)):
            if option := self.options.get(name):
                match = re.fullmatch("([0-9]{1,9})([KMGT]?)B?", option.value.upper())
                if match is None:
                    raise self._wrong(option, "write 32G")
                if int(match[1]) * times:
                    self._told_in("/resources/memory", option)
                    return f"{int(match[1]) * times}{match[2] or 'M'}"
                self._ignore(option, "a job without --mem has no memory limit")
        return ""

    def _rest(self) -> None:
        if option := self.options.get("requeue"):  # as often as Slurm would: MaxBatchRequeue is 5
            self._put("retry", {"on": ["preempted", "node-failure"], "max": 5}, option)
        if option := self.options.get("no-requeue"):
            self._put("retry", {"on": [], "max": 0}, option)
        if option := self.options.get("nice"):
            if re.fullmatch("-?[0-9]{1,10}", option.value or "100") is None:
                raise self._wrong(option, "write --nice=100")
            self._put("priority", max(-1_000_000, min(1_000_000, -int(option.value or 100))), option)
        if option := self.options.get("hold"):
            self._put("hold", True, option)
        folder = self.options.get("chdir")
        self.found["workdir"] = os.path.abspath(folder.value if folder else ".")
        if (option := self.options.get("export")) and (env := self._exported(option)):
            self._put("env", env, option)

    def _exported(self, option: Option) -> dict[str, str]:
        env: dict[str, str] = {}
        for part in filter(None, option.value.split(",")):
            name, equals, value = part.partition("=")
            if name == "ALL" and not equals:
                names = (n for n in self.environ if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", n))
                env |= {n: self.environ[n] for n in names if not _OF_THE_SESSION.match(n)}
            elif name in ("NONE", "NIL") and not equals:
                continue
            elif equals:
                env[name] = value
            elif name in self.environ:
                env[name] = self.environ[name]
            else:
                self._ignore(option._replace(value=name), f"{name} is not set here")
        return env

    def _run(self, arguments: Sequence[str]) -> str:
        first, newline, rest = self.text.partition("\n")
        shell = not first.startswith("#!") or any(re.search(rf"\b{name}\b", first) for name in _SHELLS)
        if arguments and not shell:
            problem = f"only a shell script takes arguments, and it begins with {first[:60]}; leave them out"
            raise JobFileError(self.file, 1, problem)
        added = [_SRUN] if shell and _USES_SRUN.search(self.text) else []
        added += [f"set -- {shlex.join(arguments)}"] if arguments else []
        if not added:
            return self.text
        text = "\n".join(added)
        return f"{first}\n{text}\n{rest}" if first.startswith("#!") else f"{text}\n{first}{newline}{rest}"

    # -- help

    def _put(self, key: str, value: object, option: Option) -> None:
        self.found[key] = value
        self._told_in(f"/{key}", option)

    def _told_in(self, pointer: str, option: Option) -> None:
        if option.line is not None:
            self.found.lines[pointer] = option.line

    def _ignore(self, option: Option, why: str) -> None:
        self.found.ignored.append(Ignored(f"{option.written} {option.value}".strip(), why, option.line))

    def _count(self, name: str) -> int:
        option = self.options.get(name)
        if option is None:
            return 0
        if re.fullmatch("[0-9]{1,6}", option.value) is None or not int(option.value):
            raise self._wrong(option, "write a whole number from 1")
        return int(option.value)

    def _read(self, option: Option, read: Any, remedy: str) -> Any:
        try:
            return read(option.value)
        except (ValueError, OverflowError):
            raise self._wrong(option, remedy) from None

    def _wrong(self, option: Option, remedy: str) -> JobFileError:
        problem = f"{option.written} {option.value[:60]} is not understood; {remedy}"
        return JobFileError(self.file, option.line, problem)


def slurm_seconds(text: str) -> int:
    """A time limit in seconds; 0 is none.

    >>> [slurm_seconds(t) for t in ("30", "30:00", "1:30:00", "1-0", "1-12:30")]
    [1800, 1800, 5400, 86400, 131400]
    """
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return 0
    match = re.fullmatch(r"(?:([0-9]{1,5})-)?([0-9]{1,7})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?", text)
    if match is None:
        raise ValueError(text)
    days, first, second, third = (int(part) if part else None for part in match.groups())
    first, second_, third_ = first or 0, second or 0, third or 0
    if days is not None:
        return days * 86_400 + first * 3_600 + second_ * 60 + third_
    if third is not None:
        return first * 3_600 + second_ * 60 + third_
    return first * 60 + second_


_UNITS = {"second": "s", "minute": "m", "hour": "h", "day": "d", "week": "w"}
_HOURS = {"midnight": 0, "noon": 12, "elevenses": 11, "fika": 15, "teatime": 16}


def slurm_time(text: str, now: datetime) -> str:
    """`now+2hours`, `16:00` (the next), `tomorrow` or a date, in the form of the API."""
    plain = text.strip().lower()
    if match := re.fullmatch(r"now(?:\+([0-9]{1,9})(second|minute|hour|day|week)?s?)?", plain):
        return f"+{match[1] or 0}{_UNITS[match[2] or 'second']}"
    if plain in ("today", "tomorrow"):
        return zoned((now + timedelta(days=plain == "tomorrow")).isoformat(timespec="seconds"))
    match = re.fullmatch(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))? ?(am|pm)?", plain)
    if match or plain in _HOURS:
        hour, minute, second = (
            (int(part or 0) for part in match.groups()[:3]) if match else (_HOURS[plain], 0, 0)
        )
        if match and match[4]:
            hour = hour % 12 + 12 * (match[4] == "pm")
        when = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
        return zoned((when if when > now else when + timedelta(days=1)).isoformat())
    return zoned(datetime.fromisoformat(text.strip()).isoformat())
