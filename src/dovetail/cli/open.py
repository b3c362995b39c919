"""`dovetail open`: the page of a plane, in a browser, signed in."""

from __future__ import annotations

import html
import os
import tempfile
import time
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.connection import StateOption
from dovetail.cli.outputs import plainly, say
from dovetail.client.connection import find_address
from dovetail.model.errors import InputError

LEFT = 5.0  # seconds after which the file is removed


def open_page(
    state: StateOption = None,
    print_it: Annotated[
        bool, typer.Option("--print", help="Print the address with the token, and open no browser.")
    ] = False,
) -> None:
    """Open the page of the plane in a browser, signed in.

    The token is in the fragment of the address (after #), which browsers never send to a server. The page
    keeps it for that tab and removes it from the address.

    \b
    dovetail open
    dovetail open --print
    """
    found = find_address(state=state)
    url = f"{found.url}/" + (f"#token={found.token}" if found.token else "")
    if print_it:
        say(plainly(url))
        return
    if not _opened(url):
        raise InputError(
            f"no browser was found here; open {found.url}/ in one and sign in with a token, "
            "or see dovetail open --print"
        )
    say(plainly(f"the page of {found.url} opens in your browser"))


def _opened(url: str) -> bool:
    """Whether a browser was started.

    Every account of the machine can read the arguments of a process. So the browser is given a file that only
    this account can read, and the file redirects to the address.
    """
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:  # readable by its owner only
        file = Path(folder) / "open.html"
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(
                '<!doctype html><meta charset="utf-8"><title>Dovetail</title>'
                '<meta name="referrer" content="no-referrer">'
                f'<meta http-equiv="refresh" content="0; url={html.escape(url)}">'
            )
        if not webbrowser.open(file.as_uri()):
            return False
        time.sleep(LEFT)
    return True
