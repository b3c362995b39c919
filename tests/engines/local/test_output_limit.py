"""The limit for the output that a supervisor collects."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.engines.conftest import Bench, bash, eventually

from dovetail.engines.contract import NodeShare
from dovetail.engines.local.engine import LocalEngine
from dovetail.engines.local.output_limit import LEAST, OutputLimit

MIB = 1 << 20


@pytest.fixture
def limited(bench: Bench) -> Bench:
    bench.restart(LocalEngine(bench.root, output_limit=MIB))
    return bench


def numbers(text: str) -> list[int]:
    return [int(line) for line in text.splitlines() if line.isdigit()]


def test_a_job_that_prints_too_much_keeps_the_beginning_and_the_end_of_its_output(limited: Bench) -> None:
    assert limited.run(bash("seq 1000000")).code == 0
    text = limited.log()
    assert len(text) <= MIB
    assert text.startswith("1\n2\n3\n")
    assert text.endswith("999999\n1000000\n")
    assert "bytes of output are left out here; this file keeps at most 1,048,576]" in text
    found = numbers(text)
    assert len(found) > 50_000


def test_a_job_goes_on_printing_after_its_output_was_shortened(limited: Bench) -> None:
    """The files are looked at every second while it runs."""
    text = "seq 1000000; until [ -e go ]; do sleep 0.05; done; echo last"
    limited.engine.start(bash(text))
    file = limited.folder() / "output.log"
    eventually(lambda: "left out here" in limited.log() and "1000000" in limited.log())
    assert file.stat().st_size <= MIB
    (limited.folder() / "run" / "go").touch()
    limited.end()
    assert limited.log().endswith("1000000\nlast\n")


def test_all_files_of_an_attempt_share_the_limit(limited: Bench) -> None:
    nodes = tuple(NodeShare(f"n{i}", ()) for i in range(4))
    assert limited.run(bash("seq 200000", shares=nodes)).code == 0
    files = limited.engine.logs("j", 1)
    assert len(files) == 4
    assert sum(file.stat().st_size for file in files) <= MIB


def test_an_output_file_of_the_user_is_not_limited(limited: Bench, tmp_path: Path) -> None:
    assert limited.run(bash("seq 1000000", output=str(tmp_path / "mine"))).code == 0
    assert len(numbers((tmp_path / "mine").read_text())) == 1_000_000


def test_a_file_is_shortened_again_and_again(tmp_path: Path) -> None:
    file = tmp_path / "output.log"
    limit = OutputLimit([str(file)], LEAST)
    with file.open("ab", buffering=0) as output:
        output.write(b"first\n")
        for number in range(50):
            output.write(b"%d " % number + b"x" * 20_000 + b"\n")
            limit.enforce()
            assert file.stat().st_size <= LEAST
        output.write(b"last\n")
    content = file.read_bytes()
    assert content.startswith(b"first\n0 xxx")
    assert content.endswith(b"x\nlast\n")
    assert content.count(b"left out here") == 1
    assert b"\n49 xxx" not in content or content.index(b"\n49 xxx") > LEAST // 4


def test_what_is_not_a_file_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"x" * 10 * LEAST)
    (tmp_path / "link").symlink_to(target)
    os.mkfifo(tmp_path / "pipe")
    names = ("link", "pipe", "gone")
    OutputLimit([str(tmp_path / name) for name in names], 1).enforce()
    assert target.stat().st_size == 10 * LEAST
    no_limit = OutputLimit([str(target)], 0)
    no_limit.enforce()
    assert target.stat().st_size == 10 * LEAST
