"""`python -m dovetail.cli` is the command too, where its script is not on the path."""

from __future__ import annotations

from dovetail.cli.main import main

main()
