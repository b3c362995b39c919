"""The command: `dovetail`, or `dove` for short.

Each verb is a file of its own and imports what it needs when it runs, so that `--help` is quick. Here is
what all of them share: how mistakes are told and with which exit code. 2 is a wrong question, 1 a failed run,
130 an interruption.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from dovetail import __version__
from dovetail.cli.compare import compare
from dovetail.cli.explain import explain
from dovetail.cli.policies import policies
from dovetail.cli.replay import replay
from dovetail.cli.simulate import simulate
from dovetail.cli.trace import trace
from dovetail.model.errors import DovetailError, InputError

# Typer keeps its copy of click to itself; what a wrong command line raises is a parent of BadParameter.
_Misused: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


class Verbs(TyperGroup):
    """The verbs, and how their mistakes are told."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **more: Any
    ) -> Any:
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **more)
        try:
            code = super().main(args, standalone_mode=False, **more)
            sys.stdout.flush()
            sys.exit(code if isinstance(code, int) else 0)
        except InputError as error:
            _fail(str(error), 2)
        except DovetailError as error:
            _fail(str(error), 1)
        except _Misused as error:
            _misused(error)
        except typer.Abort:
            sys.exit(1)
        except KeyboardInterrupt:
            sys.exit(130)
        except BrokenPipeError:  # the reader has seen enough; nobody is there to be told
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.exit(141)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    sys.exit(code)


def _misused(error: Exception) -> NoReturn:
    """A command line that cannot be read; asking for nothing shows the help."""
    context, message = getattr(error, "ctx", None), getattr(error, "format_message", lambda: str(error))()
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(message)
        sys.exit(2)
    message = " ".join(message.split()).rstrip(".")
    _fail(message[:1].lower() + message[1:] + (f"; see {context.command_path} --help" if context else ""), 2)


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
    """Decide which deep-learning work runs on which GPU, when, and for how long.

    \b
    dovetail simulate philly --cluster 52x8 --policy tiresias-l
    dovetail compare philly --cluster 52x8 --policies fifo,sjf,srtf --report report.html
    dovetail policies
    """


app.command()(simulate)
app.command()(compare)
app.command()(policies)
app.add_typer(trace, name="trace")
app.command()(explain)
app.command()(replay)


def main() -> None:
    """The entry point of both names."""
    app()
