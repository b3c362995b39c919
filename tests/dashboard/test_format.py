"""The page and the command line say the same amounts in the same words."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dovetail import dashboard
from dovetail.bench import report
from dovetail.model import formats

PAGE = Path(str(dashboard.__path__[0])) / "format.js"
PAIRS: dict[str, Callable[[float], str]] = {
    "number": formats.number,
    "percent": formats.percent,
    "duration": formats.duration,
    "hours": formats.hours,
    "gpuHours": formats.gpu_hours,
    "bytes": formats.size,
}


def amounts() -> list[float]:
    """Round ones, edges of the rules, and a few thousand others from a microsecond to a century."""
    dice = random.Random(12)
    edges = [
        0,
        0.0004,
        0.0005,
        0.1,
        0.5,
        1,
        9.95,
        10,
        59.5,
        60,
        76.4,
        600,
        3_570,
        3_600,
        86_370,
        86_400,
        1e6,
        1e12,
    ]
    near = [edge + step for edge in edges for step in (-0.001, 0.001) if edge + step >= 0]
    return [*edges, *near, *(10 ** dice.uniform(-6, 10) for _ in range(3_000)), 512 * 2**30, 5.89e-05]


def said_by_node(program: str, values: list[float]) -> list[list[str]]:
    node = shutil.which("node")
    if node is None:
        if os.environ.get("CI") == "true":
            raise LookupError("there is no node; make browser needs it too")
        pytest.skip("there is no node; make browser needs it too")
    done = subprocess.run(
        [node, "--input-type=module", "-e", program],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[list[str]] = json.loads(done.stdout)
    return found


def test_the_page_and_the_command_line_agree() -> None:
    values = amounts()
    program = f"""
        import {{ readFileSync }} from "node:fs";
        const format = await import({json.dumps(PAGE.as_uri())});
        const values = JSON.parse(readFileSync(0, "utf8"));
        const said = {json.dumps(list(PAIRS))}.map((name) => values.map((x) => format[name](x)));
        console.log(JSON.stringify(said));
    """
    for (name, ours), theirs in zip(PAIRS.items(), said_by_node(program, values), strict=True):
        differ = [(x, ours(x), text) for x, text in zip(values, theirs, strict=True) if ours(x) != text]
        assert differ == [], name


def test_reports_say_durations_alike() -> None:
    values = amounts()
    script = Path(report.__file__).with_name("report.js").read_text(encoding="utf-8")
    program = f"""
        import {{ readFileSync }} from "node:fs";
        {script[script.index("const parts") : script.index("const said")]}
        console.log(JSON.stringify([JSON.parse(readFileSync(0, "utf8")).map(spoken)]));
    """
    [theirs] = said_by_node(program, values)
    assert [(x, text) for x, text in zip(values, theirs, strict=True) if formats.duration(x) != text] == []
