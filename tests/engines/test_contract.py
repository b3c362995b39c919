"""The engine contract, kept by the local engine and by the emulated one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engines.conftest import Bench, bash

from dovetail.engines.contract import Launch, NodeShare
from dovetail.engines.local.engine import LocalEngine
from dovetail.model.units import SECOND
from dovetail.testing.emulated_engine import EmulatedEngine, EmulatedMachines
from dovetail.testing.engine_contract import EngineContract, EngineRig


class LocalRig:
    """Bash scripts as processes of this machine. Each writes its pid when it begins."""

    def __init__(self, bench: Bench, *, resizes: bool = False) -> None:
        self._bench = bench
        self._resizes = resizes
        if resizes:
            self.restarted()

    @property
    def engine(self) -> LocalEngine:
        return self._bench.engine

    def restarted(self) -> LocalEngine:
        return self._bench.restart(self.of_another_plane())

    def of_another_plane(self) -> LocalEngine:
        return LocalEngine(self._bench.root, resizes=self._resizes)

    def endless(self, job: str = "j", epoch: int = 1) -> Launch:
        return bash(f"{self._begin(job, epoch)}; trap 'exit 0' TERM; sleep 300 & wait", job, epoch)

    def short(self, job: str = "j", epoch: int = 1) -> Launch:
        return bash(self._begin(job, epoch), job, epoch)

    def runs(self, job: str = "j", epoch: int = 1) -> bool:
        began = self._beginnings(job, epoch)
        if not began.exists() or (self._bench.folder(job, epoch) / "exit.json").exists():
            return False
        pids = began.read_text().split()
        return bool(pids) and Path(f"/proc/{pids[-1]}").exists()

    def times_run(self, job: str = "j", epoch: int = 1) -> int:
        return self._beginnings(job, epoch).read_text().count("\n")

    def pass_time(self) -> None:
        """Processes go on by themselves."""

    def _beginnings(self, job: str, epoch: int) -> Path:
        return self._bench.root.parent / f"{job}.{epoch}.began"

    def _begin(self, job: str, epoch: int) -> str:
        return f"echo $$ >> {self._beginnings(job, epoch)}"


class EmulatedRig:
    """An emulated engine whose clock advances by a second whenever the test waits."""

    def __init__(self) -> None:
        self.now = 1_000 * SECOND
        self.engine = self._made(EmulatedMachines())
        self.engine.lead(1)

    def restarted(self) -> EmulatedEngine:
        self.engine = self._made(self.engine.machines)
        self.engine.lead(self.engine.newest_term() + 1)
        return self.engine

    def of_another_plane(self) -> EmulatedEngine:
        return self._made(self.engine.machines)

    def endless(self, job: str = "j", epoch: int = 1) -> Launch:
        return Launch(job, epoch, (NodeShare("n0", ("0", "1")),), ("forever",))

    def short(self, job: str = "j", epoch: int = 1) -> Launch:
        return Launch(job, epoch, (NodeShare("n0", ("0", "1")),), ("4",))

    def runs(self, job: str = "j", epoch: int = 1) -> bool:
        attempt = self.engine.machines.attempts.get((job, epoch))
        return attempt is not None and attempt.exit is None

    def times_run(self, job: str = "j", epoch: int = 1) -> int:
        return int((job, epoch) in self.engine.machines.attempts)

    def pass_time(self) -> None:
        self.now += SECOND

    def _made(self, machines: EmulatedMachines) -> EmulatedEngine:
        return EmulatedEngine(
            machines,
            clock=lambda: self.now,
            work=lambda launch: None if launch.command == ("forever",) else int(launch.command[0]) * SECOND,
            save_time=SECOND // 2,
            boot_time=3 * SECOND,
        )


class TestLocalEngine(EngineContract):
    @pytest.fixture
    def rig(self, bench: Bench) -> EngineRig:
        return LocalRig(bench)


class TestResizingLocalEngine(EngineContract):
    @pytest.fixture
    def rig(self, bench: Bench) -> EngineRig:
        return LocalRig(bench, resizes=True)


class TestEmulatedEngine(EngineContract):
    @pytest.fixture
    def rig(self) -> EngineRig:
        return EmulatedRig()

    def test_an_attempt_with_fewer_devices_takes_longer(self) -> None:
        rig = EmulatedRig()
        started = rig.now
        rig.engine.start(rig.short())  # 4 device-seconds on 2 devices
        rig.now += SECOND
        rig.engine.resize("j", 1, 1, (NodeShare("n0", ("1",)),))
        rig.now += SECOND
        assert rig.engine.poll() == []
        rig.now += 10 * SECOND
        (report,) = rig.engine.poll()
        assert report.exit.ended_at == started + 3 * SECOND
