"""`python -m dovetail.cli` runs the command where its script is not on the PATH."""

from __future__ import annotations

from dovetail.cli.main import main

main()
