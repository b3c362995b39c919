"""The plane's tick by hand: any words of users, any ends of attempts, and a crash at any point between.

No thread, no process, no clock: commands are put in its inbox, its turns are taken one by one, and the engine
is a dict that, like the folder on disk, outlives the plane. After every turn records, rows and core must tell
the same story; in the end every job that was acknowledged is over, once.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.control import failing_policies, harness

from dovetail.control import clock, commands, deciding, metrics, submission, tables
from dovetail.control.chosen_policy import NamedPolicy
from dovetail.control.inbox import Command
from dovetail.control.plane import Plane
from dovetail.control.plane_settings import Settings
from dovetail.control.recovery import core_after
from dovetail.control.request import parse_request
from dovetail.control.stand_in import FIRST_PAUSE
from dovetail.control.states import ACTIVE, State
from dovetail.control.store import Store
from dovetail.control.tokens import Caller
from dovetail.engines.contract import AttemptEnd, Exit, Launch, StartStopEngine
from dovetail.model.action import Stop
from dovetail.model.cluster import parse_cluster
from dovetail.model.units import SECOND
from dovetail.policies.registry import POLICIES as KNOWN

T = TypeVar("T")
Key = tuple[str, int]
ANN = Caller("ann", "team", "ann", "user")
CLUSTER = parse_cluster("2x4:A100")
SMALL = parse_cluster("1x4:A100")
POLICIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("dovetail", {}),
    ("kueue", {"whole": True}),
    ("fifo", {}),
    ("srtf", {}),
    ("k8s-default", {}),
    ("volcano", {}),
    ("tiresias-l", {}),
    ("at-third-seconds", {}),
)


class Crash(BaseException):
    """The plane dies here."""


@dataclass
class Attempt:
    """One that was started; what it holds, and how it ended."""

    launch: Launch
    told: str = ""
    exit: Exit | None = None


class Disk:
    """What an engine leaves behind; also where a plane may be made to die."""

    def __init__(self) -> None:
        self.attempts: dict[Key, Attempt] = {}
        self.forgotten: set[Key] = set()
        self.begun: list[Key] = []
        self.term = 0
        self.dies_at = ""

    def point(self, name: str) -> None:
        if self.dies_at == name:
            self.dies_at = ""
            raise Crash(name)

    def living(self) -> dict[Key, Attempt]:
        return {key: attempt for key, attempt in self.attempts.items() if attempt.exit is None}


class HandEngine(StartStopEngine):
    """An engine over a `Disk`; all it knows is there."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def newest_term(self) -> int:
        return self.disk.term

    def lead(self, term: int) -> None:
        assert term > self.disk.term
        self.disk.term = term

    def start(self, launch: Launch) -> None:
        self.disk.point("start before")
        key = (launch.job, launch.epoch)
        if key not in self.disk.attempts:
            held = {
                (share.node, device)
                for attempt in self.disk.living().values()
                for share in attempt.launch.shares
                for device in share.devices
            }
            wants = {(share.node, device) for share in launch.shares for device in share.devices}
            assert not held & wants, f"{key} is given {held & wants}, which somebody holds"
            assert not [k for k in self.disk.living() if k[0] == launch.job], f"{launch.job} runs already"
            self.disk.attempts[key] = Attempt(launch)
            self.disk.begun.append(key)
        self.disk.point("start after")

    def stop(self, job: str, epoch: int, why: str, grace: int) -> None:
        self.disk.point("stop before")
        attempt = self.disk.attempts.get((job, epoch))
        if attempt is not None and attempt.exit is None:
            attempt.told = why
        self.disk.point("stop after")

    def signal(self, job: str, epoch: int, number: int) -> None:
        raise NotImplementedError

    def poll(self) -> list[AttemptEnd]:
        return [
            AttemptEnd(*key, attempt.exit)
            for key, attempt in self.disk.attempts.items()
            if attempt.exit is not None and key not in self.disk.forgotten
        ]

    def known(self) -> set[Key]:
        return self.disk.attempts.keys() - self.disk.forgotten

    def forget(self, job: str, epoch: int) -> None:
        self.disk.point("forget before")
        if (job, epoch) in self.disk.attempts:  # one that was told to stop before it was ever started is not
            self.disk.forgotten.add((job, epoch))
        self.disk.point("forget after")

    def wait(self, timeout: float) -> None:
        pass

    def ring(self) -> None:
        pass

    def logs(self, job: str, epoch: int) -> list[Path]:
        return []

    def reports(self, job: str, epoch: int, offset: int) -> tuple[list[dict[str, object]], int]:
        return [], offset


class Elected:
    def __init__(self, store: Store) -> None:
        self._store = store

    def won(self, address: str, above: int) -> bool:
        return self._store.lead(address, above=above)

    def check(self) -> None:
        pass

    def leave(self) -> None:
        pass


class HandPlane(Plane):
    """A plane without a thread: the test calls its ticks, and a command returns a future."""

    def _answer(self, command: Command[T]) -> Any:
        self._inbox.add(command)
        return command.future


class HandStore(Store):
    disk: Disk

    def commit(self, batch: Any) -> None:
        self.disk.point("commit before")
        super().commit(batch)
        self.disk.point("commit after")


@pytest.fixture(scope="module", autouse=True)
def _template(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("template") / "plane.db"
    store = Store(f"sqlite:///{file}")
    store.migrate()
    with store.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=DELETE")
    store.close()
    World.template = file


@pytest.fixture(scope="module", autouse=True)
def _failing_policy() -> Iterator[None]:
    """A policy that fails now and then: its stand-in must keep all that the others keep."""
    with pytest.MonkeyPatch.context() as patch:
        for name, path in failing_policies.REGISTERED.items():
            patch.setitem(cast("dict[str, str]", KNOWN.paths), name, path)
        yield


@pytest.fixture(scope="module", autouse=True)
def _numbered_ids() -> Iterator[None]:
    """Ids that are not random: a counterexample must stay one the next time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(submission, "fresh_id", lambda state, store: f"j{state.next_seq:05d}")
        yield


class World(RuleBasedStateMachine):
    """A plane, its users, and what runs."""

    template: Path

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="dovetail-ledger-"))
        shutil.copy(self.template, self.folder / "plane.db")
        self.disk = Disk()
        self.now = 1_800_000_000 * SECOND
        self.real_now = clock.steady_now
        clock.steady_now = lambda: self.now
        self.cluster = CLUSTER
        self.scale = 1.0
        self.accepted: list[str] = []
        self.waiting: list[Future[Any]] = []
        self.finals: dict[str, str] = {}
        self.cancelled: set[str] = set()
        self.plane: HandPlane | None = None
        self.store: HandStore | None = None

    @initialize(policy=st.sampled_from(POLICIES))
    def set_up(self, policy: tuple[str, dict[str, Any]]) -> None:
        self.policy: tuple[str, dict[str, Any]] | None = policy
        self.wake()

    def wake(self) -> None:
        """As a new process would."""
        for future in self.waiting:
            future.cancel()
        self.waiting.clear()
        if self.store is not None:
            self.store.close()
        self.store = HandStore(f"sqlite:///{self.folder / 'plane.db'}")
        self.store.disk = self.disk
        with self.store.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA synchronous=OFF")
        policy = NamedPolicy(*self.policy).make() if self.policy else None
        told = Settings(self.folder, self.cluster, policy=policy, scale=self.scale)
        self.plane = HandPlane(told, self.store, HandEngine(self.disk), Elected(self.store))
        try:
            self.plane._seek()
        except Crash:
            self.wake()
        assert self.plane.leads
        self.policy = None  # as before, from now on

    def teardown(self) -> None:
        try:
            if self.plane is not None:
                self.come_to_an_end()
        finally:
            clock.steady_now = self.real_now
            if self.store is not None:
                self.store.close()
            shutil.rmtree(self.folder)

    # -- what users do

    @rule(
        gpus=st.sampled_from((1, 1, 2, 3, 4)),
        nodes=st.sampled_from((1, 1, 1, 2)),
        priority=st.sampled_from((0, 0, 5, 10)),
        array=st.sampled_from((None, None, None, "0-2", "0-3%1", "0-4%2")),
        gate=st.sampled_from((None, None, None, "hold", "begin", "singleton")),
        retry=st.booleans(),
    )
    def submit(
        self, gpus: int, nodes: int, priority: int, array: str | None, gate: str | None, retry: bool
    ) -> None:
        body: dict[str, Any] = {"run": "x", "resources": {"gpus": gpus}, "nodes": nodes, "priority": priority}
        if array is not None:
            body["array"] = array
        if gate == "hold":
            body["hold"] = True
        elif gate == "begin":
            body["begin"] = "+20s"
        elif gate == "singleton":
            body["dependency"] = "singleton"
        if retry:
            body["retry"] = {"on": ["exit:1"], "max": 1}
        self._submit(body)

    @precondition(lambda self: self.accepted)
    @rule(
        data=st.data(),
        kind=st.sampled_from(("afterok", "afterany", "afternotok", "after", "aftercorr")),
        late=st.booleans(),
        array=st.sampled_from((None, None, "0-3%2")),
    )
    def depend(self, data: st.DataObject, kind: str, late: bool, array: str | None) -> None:
        target = data.draw(st.sampled_from(self.accepted[-12:]))
        delay = "+1" if kind == "after" and late else ""
        body: dict[str, Any] = {"run": "x", "resources": {"gpus": 1}, "dependency": f"{kind}:{target}{delay}"}
        self._submit(body if array is None else {**body, "array": array})

    def _submit(self, body: dict[str, Any]) -> None:
        assert self.plane is not None
        future: Any = submission.submit(self.plane, ANN, parse_request(body), body)
        future.add_done_callback(
            lambda done: (
                self.accepted.extend(done.result().ids)
                if not done.cancelled() and done.exception() is None
                else None
            )
        )
        self.waiting.append(future)

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), verb=st.sampled_from(("cancel", "hold", "release", "requeue")))
    def act(self, data: st.DataObject, verb: str) -> None:
        self._act(verb, data.draw(st.sampled_from(self._some())))

    def _act(self, verb: str, name: str) -> None:
        assert self.plane is not None
        future: Any = commands.TO_JOBS[verb](self.plane, [name])
        self.waiting.append(future)
        if verb == "cancel":
            future.add_done_callback(
                lambda done: (
                    None if done.cancelled() or done.exception() else self.cancelled.update(done.result())
                )
            )

    @precondition(lambda self: self.accepted)
    @rule(
        data=st.data(),
        verbs=st.lists(st.sampled_from(("cancel", "hold", "release", "requeue")), min_size=1, max_size=3),
        how=st.sampled_from(("", "ok", "obey", "fails")),
    )
    def at_once(self, data: st.DataObject, verbs: list[str], how: str) -> None:
        """Much is said of one job in one turn, in which it may also end."""
        assert self.plane is not None
        name = data.draw(st.sampled_from(self._some()))
        for verb in verbs:
            self._act(verb, name)
        key = next((key for key in self.disk.living() if key[0] == name), None)
        if key is not None and how:
            self._end(key, how)
        self._turn()

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), priority=st.sampled_from((0, 7, 20)))
    def prioritise(self, data: st.DataObject, priority: int) -> None:
        assert self.plane is not None
        job = data.draw(st.sampled_from(self._some()))
        future: Any = commands.set_priority(self.plane, ANN, [job], priority)
        self.waiting.append(future)

    @rule(node=st.sampled_from(("n0", "n1")), back=st.booleans())
    def drain(self, node: str, back: bool) -> None:
        assert self.plane is not None
        if node in self.plane.cluster.number:
            if back:
                commands.resume(self.plane, node)
            else:
                commands.drain(self.plane, node, "a test")

    @rule(policy=st.sampled_from(POLICIES))
    def switch(self, policy: tuple[str, dict[str, Any]]) -> None:
        assert self.plane is not None
        commands.switch_policy(self.plane, *policy)

    def _some(self) -> list[str]:
        """Jobs that may still change, if there are any; also such as are not on record yet."""
        assert self.plane is not None
        return list(self.plane._led().ledger.index.records) or self.accepted

    # -- what happens

    @rule()
    def turn(self) -> None:
        self._turn()

    def _turn(self) -> None:
        assert self.plane is not None
        try:
            self.plane._tick()
        except Crash:
            self.wake()

    @rule(seconds=st.sampled_from((1, 5, 30, 90)))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds * SECOND

    @precondition(lambda self: self.disk.living())
    @rule(
        data=st.data(),
        how=st.sampled_from(
            ("ok", "ok", "obey", "obey", "fails", "again", "finished", "lost", "unstartable")
        ),
    )
    def end(self, data: st.DataObject, how: str) -> None:
        self._end(data.draw(st.sampled_from(sorted(self.disk.living()))), how)

    def _end(self, key: Key, how: str) -> None:
        attempt = self.disk.attempts[key]
        code, cause, finished = {
            "ok": (0, "exited", False),
            "obey": (143, "stopped", False),
            "fails": (1, "exited", False),
            "again": (75, "exited", False),
            "finished": (0, "exited", True),
            "lost": (137, "lost", False),
            "unstartable": (127, "unstartable", False),
        }[how]
        if attempt.told and cause == "exited":
            cause = "stopped"
        elif not attempt.told and cause == "stopped":
            return
        attempt.exit = Exit(code, cause, how, self.now, self.now, finished)

    @rule(
        where=st.sampled_from((
            "", "", "commit before", "commit after", "start before", "start after",
            "stop before", "stop after", "forget before", "forget after",
        ))
    )  # fmt: skip
    def crash(self, where: str) -> None:
        """Now, or at some point of the turns to come."""
        if where:
            self.disk.dies_at = where
        else:
            self.wake()

    @rule(small=st.booleans())
    def other_cluster(self, small: bool) -> None:
        """It comes back on a machine that has lost a node, or has it again."""
        self.cluster = SMALL if small else CLUSTER
        self.wake()

    # -- what holds

    @invariant()
    def one_story(self) -> None:
        if self.plane is None:
            return
        ledger = self.plane._led().ledger
        if self.plane._inbox or ledger.batch or ledger.events:
            return  # said, and not heard yet
        assert harness.disagreements(ledger) == []
        index = ledger.index
        for record in index:
            if record.array is not None and record.at_most is not None:
                members = index.members(record.array)
                known = [r.id for r in members if r.state is not State.HELD]
                assert len(known) <= record.at_most, f"{known} at once, of an array of %{record.at_most}"
        rows = self._rows()
        assert {name for name, row in rows.items() if State(row["state"]) in ACTIVE} == set(index.records)
        for record in index:
            assert record.changing() == {name: rows[record.id][name] for name in record.changing()}
        assert set(self.accepted) <= rows.keys()
        for name, row in rows.items():
            if State(row["state"]) not in ACTIVE:
                assert self.finals.setdefault(name, row["state"]) == row["state"], f"{name} ended twice"
            assert (row["ended_at"] is None) == (State(row["state"]) in ACTIVE)
        for key in self.disk.living():
            assert key[0] in index.records, f"{key} runs, and nobody knows why"
            assert index.records[key[0]].epoch == key[1], f"{key} runs, and another should"
        for key in self.disk.begun:
            self._was_allowed(rows, rows[key[0]])
        for attempt in _attempts(self):
            assert attempt.started_at <= (attempt.ended_at or attempt.started_at) <= self.plane.clock.now()

    def _was_allowed(self, rows: dict[str, Any], row: Any) -> None:
        """No job ran before those it waits for had done what it waits for."""
        kind, _, target = (row["dependency"] or "").partition(":")
        if kind in ("afterok", "afternotok", "afterany") and row["first_started_at"] is not None:
            other = rows[target]
            assert State(other["state"]).final, f"{row['id']} ran before {target} was over"
            if kind != "afterany":
                assert (other["state"] == "completed") == (kind == "afterok")

    def _rows(self) -> dict[str, Any]:
        assert self.store is not None
        with self.store.reading() as connection:
            return {row.id: dict(row._mapping) for row in connection.execute(sa.select(tables.jobs))}

    def come_to_an_end(self) -> None:
        """Whatever was done to them: jobs that are let run end."""
        self.disk.dies_at = ""
        self.cluster = CLUSTER
        self.wake()
        assert self.plane is not None
        self._turn()
        commands.switch_policy(self.plane, "fifo", {})  # some let two halves of gangs wait for each other
        for node in ("n0", "n1"):
            commands.resume(self.plane, node)
        for _ in range(400):
            for key, attempt in self.disk.living().items():
                self._end(key, "obey" if attempt.told else "ok")
            commands.release(self.plane, list(self.plane._led().ledger.index.records))
            self._turn()
            self.one_story()
            self.now += 5 * SECOND
            if (
                not self.plane._led().ledger.index.records
                and self.disk.forgotten == self.disk.attempts.keys()
            ):
                break
        left = [
            (r.id, r.state.value, r.reason, r.held_by, r.dependency) for r in self.plane._led().ledger.index
        ]
        assert not left, f"these never end: {left}"
        core = self.plane._led().ledger.core
        assert not core.jobs
        assert not core.stopping.held
        for name in self.cancelled:
            assert self.finals[name] in ("cancelled", "completed", "failed")
        assert self.disk.forgotten == self.disk.attempts.keys()
        assert len(self.disk.begun) == len(set(self.disk.begun))


World.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestWorld = World.TestCase


# --- what it has found, one by one -------------------------------------------------------------------


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    made.set_up(("kueue", {"whole": True}))
    yield made
    made.teardown()  # where all of it must come to an end


def said(world: World, *verbs: str, job: str = "j00001", how: str = "") -> None:
    """All of this in one turn, in which its attempt may end as well."""
    for verb in verbs:
        world._act(verb, job)
    for key in list(world.disk.living()):
        if key[0] == job and how:
            world._end(key, how)
    world._turn()
    world.one_story()


def asked(world: World, gpus: int = 1, **more: Any) -> None:
    world._submit({"run": "x", "resources": {"gpus": gpus}, **more})
    world._turn()
    world.one_story()


def state(world: World, job: str = "j00001") -> str:
    return str(world._rows()[job]["state"])


def test_a_job_released_and_cancelled_at_once_is_cancelled(world: World) -> None:
    asked(world, hold=True)
    said(world, "release", "cancel")
    assert state(world) == "cancelled"


def test_a_job_released_and_held_at_once_is_held(world: World) -> None:
    asked(world, hold=True)
    said(world, "release", "hold")
    assert state(world) == "held"
    said(world, "release", "hold", "release")
    assert state(world) in ("pending", "running")


def test_a_priority_set_in_the_tick_of_a_release_counts(world: World) -> None:
    asked(world, hold=True)
    assert world.plane is not None
    world._act("release", "j00001")
    commands.set_priority(world.plane, ANN, ["j00001"], 20)
    said(world)
    assert world.plane._led().ledger.core.jobs["j00001"].priority == 20


@pytest.mark.parametrize("how", ["obey", "fails", "again"])
def test_a_cancel_counts_although_the_job_ends_in_the_same_tick(world: World, how: str) -> None:
    asked(world, retry={"on": ["exit:1"], "max": 1})
    said(world, "requeue")
    said(world, "cancel", how=how)
    assert state(world) == "cancelled"


@pytest.mark.parametrize("verb", ["requeue", "hold", "cancel"])
def test_an_end_with_0_before_the_order_to_stop_counts(world: World, verb: str) -> None:
    asked(world)
    said(world, verb)
    assert state(world) == "stopping"
    (key,) = world.disk.living()
    world.disk.attempts[key].exit = Exit(0, "exited", "", world.now, world.now)
    world._turn()
    assert state(world) == "completed"
    assert len(_attempts(world)) == 1


def test_a_cancel_counts_although_it_was_held_before(world: World) -> None:
    asked(world)
    said(world, "hold")
    said(world, "cancel")
    said(world, how="obey")
    assert state(world) == "cancelled"


def test_a_requeue_does_not_undo_a_cancel(world: World) -> None:
    asked(world)
    said(world, "cancel", "requeue", how="again")
    assert state(world) == "cancelled"


def test_a_member_that_is_held_gives_its_place_to_another(world: World) -> None:
    asked(world, array="0-2%1")
    said(world, "hold", job="j00001_0", how="obey")
    said(world, job="j00001_0", how="obey")
    assert state(world, "j00001_0") == "held"
    assert state(world, "j00001_1") in ("pending", "running")


def test_a_delay_after_a_start_outlives_the_plane(world: World) -> None:
    asked(world)
    asked(world, dependency="after:j00001+1")
    said(world)
    world.wake()
    world.now += 90 * SECOND
    said(world)
    assert state(world, "j00002") in ("pending", "running")


def test_a_gang_that_lost_a_node_keeps_the_other_until_it_has_stopped(world: World) -> None:
    """The engine of these tests refuses to start two on one device."""
    asked(world, gpus=4, nodes=2)
    assert state(world) == "running"
    asked(world, gpus=4)
    world.cluster = SMALL
    world.wake()
    said(world)
    said(world)
    assert state(world) == "stopping"
    assert state(world, "j00002") == "pending"
    said(world, how="obey")
    said(world)
    assert state(world, "j00002") == "running"
    assert state(world) == "held"


def test_a_node_that_comes_back_is_not_free_while_a_job_stops_there(world: World) -> None:
    asked(world, gpus=4)
    asked(world, gpus=4)
    for cluster in (SMALL, CLUSTER):
        world.cluster = cluster
        world.wake()
        said(world)
    asked(world, gpus=4)
    said(world)
    assert state(world, "j00003") == "pending"


def test_a_held_job_for_which_the_cluster_became_too_small_waits_for_a_larger_one(world: World) -> None:
    asked(world, gpus=4, nodes=2, hold=True)
    world.cluster = SMALL
    world.wake()
    said(world, "release")
    assert state(world) == "held"
    world.cluster = CLUSTER
    world.wake()
    said(world)
    assert state(world) == "running"


def test_a_policy_that_fails_is_replaced_and_tried_again_after_a_pause(world: World) -> None:
    assert world.plane is not None
    assert world.store is not None
    world.now += -world.now // SECOND % 3 * SECOND  # a third second
    commands.switch_policy(world.plane, "at-third-seconds", {})
    asked(world)
    assert state(world) == "running"  # the stand-in has started it
    failure = world.plane.policy_failure
    assert failure is not None
    assert failure.policy == "at-third-seconds"
    world.wake()  # a restart keeps the stand-in
    assert world.plane.policy_failure == failure
    world.now += 2 * SECOND
    asked(world)
    assert world.plane.policy_failure is None
    assert world.plane._led().header.policy == "at-third-seconds"
    assert state(world, "j00002") == "running"
    world.now += 1 * SECOND
    asked(world)
    assert world.plane.policy_failure is not None
    assert world.plane._led().deciding.pause == 2 * FIRST_PAUSE
    with world.store.reading() as connection:
        eras = [dict(row._mapping) for row in connection.execute(sa.select(tables.eras))]
        lines = [row.line for row in connection.execute(sa.select(tables.journal))]
    assert sum("it is the third second" in era["why"] for era in eras) == 2
    assert sum("it is the third second" in line for line in lines) == 2
    replayed = [core_after(world.store, era) for era in eras]  # failed steps can be replayed
    assert replayed[-1].number == world.plane._led().ledger.core.number


def test_a_chosen_policy_that_cannot_be_made_is_counted_and_its_stand_in_decides(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.plane is not None
    commands.switch_policy(world.plane, "at-third-seconds", {})
    world.now += -world.now // SECOND % 3 * SECOND  # a third second: it fails, and the plain policy decides
    asked(world)
    state = world.plane._led()
    assert state.header.policy == "backfill"
    monkeypatch.setitem(cast("dict[str, str]", KNOWN.paths), "at-third-seconds", "no.such.module:at_all")
    before = dict(world.plane.statistics.policy_failures)
    deciding._try_again(state, state.ledger.core.now, "sjf", world.plane.statistics)
    counted = world.plane.statistics.policy_failures
    assert {name: counted[name] - before.get(name, 0) for name in counted} == {"at-third-seconds": 1}
    assert state.header.policy == "sjf"
    assert "sjf decides until it works again" in state.deciding.sentence


def test_a_gang_that_never_started_keeps_the_work_of_earlier_attempts(world: World) -> None:
    """A gang placed in part is stopped before it starts: the core must hear of the work that is saved."""
    assert world.plane is not None
    asked(world)
    ledger = world.plane._led().ledger
    active = ledger.core.jobs["j00001"]
    active.done = 106 * SECOND
    ledger.index.records["j00001"].state = State.PENDING
    ledger.stop(Stop("j00001", active.epoch, "preempted"), ledger.core.now)
    assert ledger._later[-1][4] == 106 * SECOND


# --- what is charged when no plane was there to see the end ------------------------------------------


def _attempts(world: World) -> list[Any]:
    assert world.store is not None
    with world.store.reading() as connection:
        query = sa.select(tables.attempts).order_by(tables.attempts.c.job, tables.attempts.c.epoch)
        return list(connection.execute(query))


def _charged(world: World) -> float:
    """GPU-seconds as the metrics count them."""
    assert world.store is not None
    assert world.plane is not None
    with world.store.reading() as connection:
        return sum(metrics._read(connection, 0, None, world.plane.clock.now()).held.values())


def test_a_job_that_ends_while_no_plane_runs_is_charged_to_its_end(world: World) -> None:
    asked(world, gpus=2)
    began = world.now
    world.now += 60 * SECOND
    world._end(("j00001", 1), "ok")
    world.now += 3_600 * SECOND
    world.wake()
    said(world)
    row = world._rows()["j00001"]
    assert row["ended_at"] == began + 60 * SECOND
    assert row["gpu_time"] == 2_000 * 60 * SECOND
    assert [attempt.ended_at for attempt in _attempts(world)] == [began + 60 * SECOND]
    assert _charged(world) == pytest.approx(120.0)


def test_what_a_job_lost_while_no_plane_ran_is_counted_to_its_end(world: World) -> None:
    asked(world, gpus=1)
    world.now += 60 * SECOND
    world._end(("j00001", 1), "again")
    world.now += 3_600 * SECOND
    world.wake()
    said(world)
    row = world._rows()["j00001"]
    assert (row["gpu_time"], row["lost_time"]) == (1_000 * 60 * SECOND, 1_000 * 60 * SECOND)


@pytest.mark.parametrize("off", [-86_400, 86_400])
def test_an_end_that_a_clock_puts_before_the_start_or_after_now_is_held_to_them(
    world: World, off: int
) -> None:
    asked(world, gpus=1)
    began = world.now
    world.now += 60 * SECOND
    world._end(("j00001", 1), "ok")
    attempt = world.disk.attempts["j00001", 1]
    assert attempt.exit is not None
    attempt.exit = attempt.exit._replace(ended_at=world.now + off * SECOND)
    said(world)
    assert world._rows()["j00001"]["ended_at"] == (began if off < 0 else world.now)


@pytest.mark.parametrize(("lasted", "charged"), [(40, 40), (90, 60)])
def test_an_attempt_is_charged_for_as_long_as_it_lasted_though_the_wall_clock_was_set_back(
    world: World, lasted: int, charged: int
) -> None:
    asked(world, gpus=1)
    began = world.now
    world.now += 60 * SECOND
    world._end(("j00001", 1), "ok")
    attempt = world.disk.attempts["j00001", 1]
    assert attempt.exit is not None
    attempt.exit = attempt.exit._replace(ended_at=began, lasted=lasted * SECOND)
    said(world)
    assert world._rows()["j00001"]["ended_at"] == began + charged * SECOND, "and not beyond now"


def test_an_end_is_told_in_the_time_of_a_plane_that_runs_faster(world: World) -> None:
    world.scale = 60.0
    world.wake()
    asked(world, gpus=1)
    began = world._rows()["j00001"]["started_at"]
    world.now += 10 * SECOND
    world._end(("j00001", 1), "ok")
    world.now += 100 * SECOND
    world.scale = 1.0  # and who comes back does so at another pace
    world.wake()
    said(world)
    row = world._rows()["j00001"]
    assert row["ended_at"] - began == 600 * SECOND
    assert row["gpu_time"] == 1_000 * 600 * SECOND
