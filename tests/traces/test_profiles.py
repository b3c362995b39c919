"""Measured throughputs: those in the box are whole, and a broken file is a line about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.model.errors import TraceError
from dovetail.traces.profiles import load_throughputs

RESNET, LM = "ResNet-50 (batch size 128)", "LM (batch size 10)"


def test_the_shipped_measurements() -> None:
    table = load_throughputs("gavel")
    assert table.types == ("K80", "P100", "V100")
    assert (len(table.keys()), len(table.models())) == (83, 26)
    assert {gpus for _, gpus in table.keys()} == {1, 2, 4, 8}  # noqa: SIM118  (no mapping)
    assert table.single("A3C", 1, "V100") == table.single("A3C", 1, "v100") == pytest.approx(7.176, abs=1e-3)
    assert table.single(RESNET, 2, "K80") == 0.0  # does not fit its memory
    assert table.single(RESNET, 3, "K80") is None
    assert table.single(RESNET, 1, "A100") is None


def test_spread_over_nodes_it_is_slower() -> None:
    table = load_throughputs("gavel")
    packed, spread = (table.single(LM, 8, "V100", consolidated=way) for way in (True, False))
    assert packed is not None
    assert spread is not None
    assert packed / spread == pytest.approx(9.4, abs=0.05)
    assert table.single(LM, 1, "V100") == table.single(LM, 1, "V100", consolidated=False)


def test_two_jobs_on_the_same_devices() -> None:
    table = load_throughputs("gavel")
    pair = table.pair("A3C", LM, 1, "P100")
    alone = table.single("A3C", 1, "P100"), table.single(LM, 1, "P100")
    assert pair is not None
    for beside, single in zip(pair, alone, strict=True):
        assert single is not None
        assert 0 < beside <= single
    assert table.pair(LM, "A3C", 1, "P100") == (pair[1], pair[0])
    assert table.pair(LM, LM, 2, "P100") == (0.0, 0.0)  # only pairs of single GPUs were measured
    assert table.pair("A3C", "nothing", 1, "P100") is None


def test_a_file_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    rows = {"('a', 1)": {"null": 2, "('b', 1)": [1, 0.5]}, "('b', 1)": {"null": 1.5}}
    path.write_text(json.dumps({"A100": rows, "A100_unconsolidated": rows, "h100": rows}))
    table = load_throughputs(path)
    assert table.types == ("A100", "H100")
    assert table.pair("b", "a", 1, "a100") == (0.5, 1.0)  # said from one side only
    assert table.single("b", 1, "H100") == 1.5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "line 1: is not valid JSON"),
        ("[]", "is not a table of GPU types"),
        ("{}", "is not a table of GPU types"),
        ({"v100": 3}, "v100: 3 is not a table of job types"),
        ({"v100": {"ResNet": {}}}, "v100: 'ResNet' is not a job type; write ('model', GPUs)"),
        ({"v100": {"('a', 0)": {}}}, "v100: \"('a', 0)\" is not a job type"),
        ({"v100": {"('a', 1)": 7}}, "v100, ('a', 1): 7 is not a table of speeds"),
        ({"v100": {"('a', 1)": {"null": -1}}}, "v100, ('a', 1): -1; speeds are numbers of at least 0"),
        ({"v100": {"('a', 1)": {"null": "fast"}}}, "v100, ('a', 1): 'fast'; speeds are numbers"),
        ('{"v100": {"(\'a\', 1)": {"null": NaN}}}', "v100, ('a', 1): nan; speeds are numbers"),
        ({"v100": {"('a', 1)": {"('b', 1)": 1}}}, "v100, ('a', 1) beside ('b', 1): 1; give two numbers"),
    ],
)
def test_a_broken_file(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(TraceError) as caught:
        load_throughputs(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"gavle: no such file of throughputs; did you mean gavel\?"):
        load_throughputs("gavle")
    with pytest.raises(TraceError, match="no such file; check the path"):
        load_throughputs(tmp_path / "none.json")
