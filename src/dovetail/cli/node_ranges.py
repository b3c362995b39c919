"""Ranges of node names as Slurm writes them: `gpu[01-08,11]`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dovetail.cli.outputs import plainly
from dovetail.model.errors import InputError


def node_names(texts: Iterable[str]) -> list[str]:
    """`gpu[01-08,11]` and `a,b` as Slurm writes them.

    >>> node_names(["gpu[01-03,7]", "a,b"])
    ['gpu01', 'gpu02', 'gpu03', 'gpu7', 'a', 'b']
    """
    found: list[str] = []
    part = r"(?:[^,\[\]]|\[[^\[\]]*\])+"
    for text in texts:
        if not re.fullmatch(f"{part}(?:,{part})*", text):
            raise InputError(f"{plainly(text)!r} is not a range of nodes; write gpu[01-08]")
        for name in re.findall(part, text):
            found += _expanded(name.strip())
    if not found or any(not name for name in found):
        raise InputError("no node was given; write n0, n0,n1 or gpu[01-08]")
    return list(dict.fromkeys(found))


def _expanded(part: str) -> list[str]:
    match = re.fullmatch(r"([^\[\]]*)\[([^\[\]]*)\](.*)", part)
    if match is None:
        if "[" in part or "]" in part:
            raise InputError(f"{plainly(part)!r} is not a range of nodes; write gpu[01-08]")
        return [part]
    before, inside, after = match.groups()
    numbers: list[str] = []
    for piece in inside.split(","):
        ends = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", piece)
        if ends is None or (ends[2] and int(ends[2]) < int(ends[1])):
            raise InputError(f"{plainly(part)!r} is not a range of nodes; write gpu[01-08]")
        low, high = int(ends[1]), int(ends[2] or ends[1])
        if high - low + len(numbers) >= 100_000:
            raise InputError(f"{plainly(part)!r} names too many nodes")
        numbers += [f"{number:0{len(ends[1])}d}" for number in range(low, high + 1)]
    return [f"{before}{number}{rest}" for number in numbers for rest in _expanded(after)]
