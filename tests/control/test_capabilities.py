"""Resize, SetPower and Rent reach the engine, or are refused and told: they are never dropped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dovetail.control import submission, tables
from dovetail.control.chosen_policy import NamedPolicy
from dovetail.control.election import FileElection
from dovetail.control.plane import Plane
from dovetail.control.plane_settings import Settings
from dovetail.control.request import parse_request
from dovetail.control.store import Store, url_of
from dovetail.control.tokens import Caller
from dovetail.engines.contract import Capabilities, Launch, NodeShare, NodeUp, Resized, Unsupported
from dovetail.mechanisms.order.keys import arrival
from dovetail.model.cluster import parse_cluster
from dovetail.model.units import SECOND
from dovetail.model.view import JobView, Order, Plan, View
from dovetail.policies.registry import POLICIES
from dovetail.testing.emulated_engine import EmulatedEngine, EmulatedMachines

ANN = Caller("ann", "team", "ann", "user")
HERE = "tests.control.test_capabilities"


@dataclass
class Shrinks:
    """Jobs in order of arrival. If one does not fit, running jobs with two devices give one up."""

    order: Order = arrival
    group: Callable[[JobView], Hashable] | None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        for job in list(view.queue.walk()):
            if plan.start(job):
                continue
            for other in list(view.running.values()):
                (spot,) = other.spots or ()
                if spot[1] == 0b11:
                    plan.shift(other, ((spot[0], 0b01, *spot[2:]),))
            plan.start(job)
        return plan


@dataclass
class SwitchesOff:
    """The second node is switched off, and given back, as soon as a job comes; jobs run on the first."""

    order: Order = arrival
    group: Callable[[JobView], Hashable] | None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        for job in list(view.queue.walk()):
            plan.start(job, ((0, 0b1, 1000, 0, 0),))
            plan.power(1, False)
            plan.rent(2, False, "")
        return plan


class Patient(EmulatedEngine):
    """An emulated engine that confirms resizes only when the test allows it. It notes its orders."""

    def __init__(self, machines: EmulatedMachines, capabilities: Capabilities) -> None:
        super().__init__(machines, save_time=SECOND // 4)
        self.capabilities = capabilities
        self.confirms = False
        self.orders: list[tuple[Any, ...]] = []

    def start(self, launch: Launch) -> None:
        held = {
            (share.node, device)
            for attempt in self.machines.attempts.values()
            if attempt.exit is None
            for share in attempt.shares
            for device in share.devices
        }
        wanted = {(share.node, device) for share in launch.shares for device in share.devices}
        if (launch.job, launch.epoch) not in self.machines.attempts and held & wanted:
            self.orders.append(("overlap", launch.job, launch.epoch))
        self.orders.append(("start", launch.job, launch.epoch))
        super().start(launch)

    def resize(self, job: str, epoch: int, number: int, shares: tuple[NodeShare, ...]) -> None:
        if not self.capabilities.resize:
            raise Unsupported("resize")
        self.orders.append(("resize", job, epoch, [share.devices for share in shares]))
        super().resize(job, epoch, number, shares)

    def power(self, node: str, on: bool) -> None:
        if not self.capabilities.power:
            raise Unsupported("power")
        self.orders.append(("power", node, on))
        super().power(node, on)

    def rent(self, node: str, keep: bool, owner: str) -> None:
        if not self.capabilities.rent:
            raise Unsupported("rent")
        self.orders.append(("rent", node, keep))

    def confirmations(self) -> list[Resized | NodeUp]:
        return super().confirmations() if self.confirms else []


@contextmanager
def plane_over(engine: Patient, folder: Path, policy: str, cluster: str = "1x2:A100") -> Iterator[Plane]:
    store = Store(url_of(None, folder))
    store.migrate()
    described = parse_cluster(cluster)
    names = {node.name: tuple(map(str, range(node.gpus))) for node in described.nodes}
    settings = Settings(folder, described, names, NamedPolicy(policy, {}).make())
    plane = Plane(settings, store, engine, FileElection(folder / "plane.lock", store))
    plane.start()
    try:
        yield plane
    finally:
        plane.close()
        store.close()


def submit(plane: Plane, gpus: int) -> str:
    body = {"run": "x", "resources": {"gpus": gpus}, "time": "1h"}
    return submission.submit(plane, ANN, parse_request(body), body).id


def row(plane: Plane, job: str) -> Any:
    with plane.store.reading() as connection:
        return connection.execute(sa.select(tables.jobs).where(tables.jobs.c.id == job)).one()


def eventually(met: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not met():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def policies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES.paths, "shrinks", f"{HERE}:Shrinks")
    monkeypatch.setitem(POLICIES.paths, "switches-off", f"{HERE}:SwitchesOff")


def test_a_resize_reaches_the_engine_and_its_devices_are_given_away_when_it_is_confirmed(
    tmp_path: Path,
) -> None:
    machines, can = EmulatedMachines(), Capabilities(resize=True)
    engine = Patient(machines, can)
    with plane_over(engine, tmp_path, "shrinks") as plane:
        large, small = submit(plane, 2), submit(plane, 1)
        eventually(lambda: ("resize", large, 1, [("0",)]) in engine.orders)
        assert row(plane, small).state != "running", "the device is not free yet"
        assert ("start", small, 1) not in engine.orders
        assert row(plane, large).state == "running"
    again = Patient(
        machines, can
    )  # the plane died before it heard the confirmation: it orders the resize again
    with plane_over(again, tmp_path, "shrinks") as plane:
        eventually(lambda: ("resize", large, 1, [("0",)]) in again.orders)
        assert ("start", small, 1) not in again.orders
        again.confirms = True
        again.ring()
        eventually(lambda: ("start", small, 1) in again.orders)
        for job in (large, small):
            again.end(job, 1)
            eventually(lambda job=job: row(plane, job).state == "completed")  # type: ignore[misc]


def test_a_resize_that_the_engine_cannot_perform_is_refused_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Patient(EmulatedMachines(), Capabilities())
    with caplog.at_level(logging.WARNING), plane_over(engine, tmp_path, "shrinks") as plane:
        large, small = submit(plane, 2), submit(plane, 1)
        eventually(lambda: large_ended(engine, large))
        stopped = engine.machines.attempts[large, 1].exit
        assert stopped is not None
        assert "resize refused: the engine cannot resize a running job" in stopped.detail
        eventually(lambda: bool(refusals(plane)))
        assert "resize refused" in refusals(plane)[0], "in the history of the job"
        assert plane.statistics.policy_failures["shrinks"] >= 1

        def both_completed() -> bool:
            for job, epoch in engine.known():
                engine.end(job, epoch)
            return {row(plane, job).state for job in (large, small)} == {"completed"}

        eventually(both_completed)
    warnings = [
        record.getMessage() for record in caplog.records if "policy shrinks failed" in record.getMessage()
    ]
    assert f"job {large} is stopped and queued again; resize refused" in warnings[0]
    assert not [order for order in engine.orders if order[0] in ("resize", "overlap")]


def large_ended(engine: Patient, job: str) -> bool:
    attempt = engine.machines.attempts.get((job, 1))
    return attempt is not None and attempt.exit is not None


def refusals(plane: Plane) -> list[str]:
    with plane.store.reading() as connection:
        details = connection.execute(sa.select(tables.attempts.c.detail)).scalars().all()
    return [detail for detail in details if detail and "resize refused" in detail]


@pytest.mark.parametrize("can", [True, False])
def test_orders_for_nodes_reach_the_engine_or_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, can: bool
) -> None:
    engine = Patient(EmulatedMachines(), Capabilities(power=can, rent=can))
    with (
        caplog.at_level(logging.WARNING),
        plane_over(engine, tmp_path, "switches-off", "3x1:A100") as plane,
    ):
        job = submit(plane, 1)
        eventually(lambda: ("start", job, 1) in engine.orders)
        engine.end(job, 1)
        eventually(lambda: row(plane, job).state == "completed")
        expected = {1: "switched off", 2: "given back"} if can else {}
        eventually(lambda: dict(plane._led().ledger.core.closed) == expected)
    orders = [order for order in engine.orders if order[0] != "start"]
    told = [record.getMessage() for record in caplog.records if "the engine cannot" in record.getMessage()]
    if can:
        assert (orders, told) == ([("power", "n1", False), ("rent", "n2", False)], [])
    else:
        assert orders == []
        assert "the engine cannot switch off node n1; the engine cannot give back node n2" in told[0]
