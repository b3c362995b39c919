"""The command: `dovetail`, or `dove` for short.

Each command is a file of its own and imports what it needs when it runs, so that `--help` is fast. This file
holds what all commands share: error messages and exit codes. 2 is a usage error, 1 a failed run, 130 an
interruption.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, MutableMapping, Sequence
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from dovetail import __version__
from dovetail.model.errors import DovetailError, InputError, PolicyError

# The module of each command, by its heading in the help. Commands in brackets work but are not listed.
VERBS: dict[str, dict[str, str]] = {
    "Plane": {
        "up": "dovetail.cli.up:up",
        "down": "dovetail.cli.up:down",
        "open": "dovetail.cli.open:open_page",
    },
    "Jobs": {
        "submit": "dovetail.cli.submit:submit",
        "run": "dovetail.cli.run:run",
        "plan": "dovetail.cli.plan:plan",
        "ps": "dovetail.cli.ps:ps",
        "(queue)": "dovetail.cli.ps:ps",
        "why": "dovetail.cli.why:why",
        "describe": "dovetail.cli.ps:describe",
        "logs": "dovetail.cli.logs:logs",
        "shell": "dovetail.cli.shell:shell",
        "cancel": "dovetail.cli.cancel:cancel",
        "hold": "dovetail.cli.hold:hold",
        "release": "dovetail.cli.hold:release",
        "requeue": "dovetail.cli.hold:requeue",
        "priority": "dovetail.cli.hold:priority",
        "history": "dovetail.cli.history:history",
        "slurm-commands": "dovetail.cli.slurm_commands:slurm_commands",
        "(slurm)": "dovetail.cli.slurm_commands:slurm",
    },
    "Cluster": {
        "nodes": "dovetail.cli.nodes:nodes",
        "drain": "dovetail.cli.nodes:drain",
        "resume": "dovetail.cli.nodes:resume",
        "(node)": "dovetail.cli.nodes:node",
        "gpus": "dovetail.cli.gpus:gpus",
        "shares": "dovetail.cli.shares:shares",
        "tenant": "dovetail.cli.tenant:tenant",
        "limits": "dovetail.cli.limits:limits",
        "report": "dovetail.cli.report:report",
        "policy": "dovetail.cli.policy:policy",
        "token": "dovetail.cli.token:token",
    },
    "Simulation": {
        "simulate": "dovetail.cli.simulate:simulate",
        "compare": "dovetail.cli.compare:compare",
        "tournament": "dovetail.cli.tournament:tournament",
        "fidelity": "dovetail.cli.fidelity:fidelity",
        "policies": "dovetail.cli.policies:policies",
        "trace": "dovetail.cli.trace:trace",
        "explain": "dovetail.cli.explain:explain",
        "replay": "dovetail.cli.replay:replay",
    },
}

# Typer keeps its copy of click to itself; what a wrong command line raises is a parent of BadParameter.
_Misused: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


class Loaded(MutableMapping[str, Any]):
    """The commands by name. Each is imported when it is first used, so a command does not load the others."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}
        self._paths = {name: path for verbs in VERBS.values() for name, path in verbs.items()}
        self._hidden = {name[1:-1] for name in self._paths if name.startswith("(")}
        self._paths = {name.strip("()"): path for name, path in self._paths.items()}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._make(name, self._paths[name])
        return self._made[name]

    def _make(self, name: str, path: str) -> Any:
        module, _, attribute = path.partition(":")
        found = getattr(import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            verb, found = found, typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
            found.command(name)(verb)
        found._add_completion = False
        command: Any = typer.main.get_command(found)
        command.name, command.hidden = name, name in self._hidden
        inner = getattr(command, "commands", {}).values()
        for each in inner:
            each.short_help = summary(each.help)
        for each in (command, *inner):
            for parameter in each.params:
                if parameter.param_type_name == "argument":
                    _plainly_named(parameter)
        return command

    def __setitem__(self, name: str, command: Any) -> None:
        self._paths.setdefault(name, "")
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._paths[name]
        self._made.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def _plainly_named(argument: Any) -> None:
    """Typer would write `{JOB...}...` and `[FILE] <str>`."""
    word = argument.metavar or argument.name.upper()
    argument.get_usage_pieces = lambda ctx: [word if argument.required else f"[{word}]"]
    argument.display_type_rich = lambda ctx: ""


def summary(help: str | None) -> str:
    """The whole first sentence of a help text, never cut off."""
    first = " ".join((help or "").strip().split("\n\n")[0].split())
    return first.split(". ")[0].rstrip(".") + "."


class Verbs(TyperGroup):
    """The group of commands; it turns errors into messages and exit codes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Loaded()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for heading, verbs in VERBS.items():
            listed = [name for name in verbs if name in self.commands]
            with formatter.section(heading):
                formatter.write_dl([(name, summary(self.commands[name].help)) for name in listed])

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **more: Any
    ) -> Any:
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **more)
        try:
            code = super().main(args, standalone_mode=False, **more)
            if sys.stdout is not None:  # None: it was closed
                sys.stdout.flush()
            sys.exit(code if isinstance(code, int) else 0)
        except InputError as error:
            _fail(str(error), 2)
        except PolicyError as error:  # a bug in a policy: its author needs the place
            traceback.print_exception(error.__cause__)
            _fail(str(error), 1)
        except DovetailError as error:
            _fail(str(error), 1)
        except _Misused as error:
            _misused(error)
        except typer.Abort:
            sys.exit(1)
        except KeyboardInterrupt:
            sys.exit(130)
        except BrokenPipeError:  # the reader of the pipe has gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.exit(141)
        except (
            OSError
        ) as error:  # commands report errors of the files they open: this one is about standard output
            _fail(f"cannot write to standard output: {error.strerror or error}", 1)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    sys.exit(code)


def _misused(error: Exception) -> NoReturn:
    """Report a usage error; a command without arguments shows its help."""
    context, message = getattr(error, "ctx", None), getattr(error, "format_message", lambda: str(error))()
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(message)
        sys.exit(2)
    message = " ".join(message.split()).rstrip(".")
    joined = " " if message.endswith("?") else "; "
    see = f"{joined}see {context.command_path} --help" if context else ""
    _fail(message[:1].lower() + message[1:] + see, 2)


app = typer.Typer(
    cls=Verbs,
    name="dovetail",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"dovetail {__version__}")
        raise typer.Exit


@app.callback()
def dovetail(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Schedule deep-learning jobs on GPU clusters, live and in simulation.

    \b
    dovetail run --gpus 1 -- python train.py
    dovetail simulate philly --cluster 52x8 --policy tiresias-l
    dovetail compare philly --cluster 52x8 --policies fifo,sjf,srtf --report report.html
    dovetail policies
    """


def main() -> None:
    """The entry point of `dovetail` and `dove`."""
    app()
