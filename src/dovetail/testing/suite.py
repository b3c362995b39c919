"""The tests that every policy must pass, for authors of policies.

    from dovetail.testing.suite import policy_suite

    TestMine = policy_suite(lambda: my_policy(quantum=60.0))

The same checks run over every policy that Dovetail ships. They draw the same random worlds at every run. To
search further, draw new worlds, and more of them (`dovetail.testing.search`):

    DOVETAIL_SEARCH=20 pytest tests/properties
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.core import Core, Step
from dovetail.core.journal import Header, JournalWriter, header_line, step_line
from dovetail.core.replay import replayed
from dovetail.core.snapshot import restored, snapshot
from dovetail.model.action import Answer
from dovetail.model.view import Policy
from dovetail.sim.simulate import simulate
from dovetail.sim.world import World
from dovetail.testing.invariants import ACCEPTS, FINISHES, Watched, picture, waived, watched
from dovetail.testing.search import searched as searched
from dovetail.testing.strategies import Scene, renamed, scenes

Make = Callable[[], Policy]


def keeps_every_rule(make: Make, scene: Scene, name: str = "") -> None:
    """No device is overfilled, indexes equal the state, gangs are whole, work fits speed, each job ends."""
    policy = make()
    waives = waived(policy, name)
    result = watched(policy, scene.cluster, scene.jobs, incidents=scene.incidents, waives=waives)
    if FINISHES not in waives:
        answers = (a for step in result.steps for a in step.actions if isinstance(a, Answer))
        refused = {answer.job for answer in answers if ACCEPTS in waives and answer.answer == "refused"}
        left = sorted({job.id for job in scene.jobs} - result.audit.ended.keys() - refused)
        assert not left, f"{left} never ended: {sorted(result.core.running)} hold devices, the rest waits"


def repeats_itself(make: Make, scene: Scene) -> None:
    """The same inputs give the same journal, byte for byte."""
    once, again = _plain(make, scene), _plain(make, scene)
    assert _lines(once) == _lines(again)


def does_not_mind_names(make: Make, scene: Scene) -> None:
    """Nodes under other names, in another alphabetical order, change no start and no finish."""
    names = [f"host{99 - i}" for i in range(len(scene.cluster.nodes))]
    other = Scene(renamed(scene.cluster, names), scene.jobs)
    assert _plain(make, scene).times() == _plain(make, other).times()


def leaves_no_trace(make: Make, scene: Scene) -> None:
    """A decision that is rolled back changes neither the state nor the steps to come."""

    def dry_run(core: Core, step: Step) -> None:
        before = picture(core)
        core.notes()
        assert picture(core) == before, f"a dry run after step {step.number} left a trace"

    asked = watched(
        make(), scene.cluster, scene.jobs, incidents=scene.incidents, check=False, on_step=dry_run
    )
    assert _lines(asked) == _lines(_plain(make, scene))


def forks_alike(make: Make, scene: Scene, at: int) -> None:
    """A fork and its original take the same steps when they get the same events."""
    twins: list[Core] = []

    def fork(core: Core, step: Step) -> None:
        if twins:
            told = twins[0].handle(step.now, step.events)
            assert told == step
            assert _comparable(twins[0]) == _comparable(core)
        elif step.number >= at:
            twins.append(core.fork())
            assert _comparable(twins[0]) == _comparable(core)

    watched(make(), scene.cluster, scene.jobs, incidents=scene.incidents, check=False, on_step=fork)


def wakes_alike(make: Make, scene: Scene, at: int) -> None:
    """A core that is restored from a snapshot (plain values) takes the same steps as the original."""
    twins: list[Core] = []

    def put_away(core: Core, step: Step) -> None:
        if twins:
            told = twins[0].handle(step.now, step.events)
            assert told == step
            assert _comparable(twins[0]) == _comparable(core)
        elif step.number >= at:
            taken = json.loads(json.dumps(snapshot(core)))
            twins.append(restored(taken, scene.cluster, core.policy))
            assert _comparable(twins[0]) == _comparable(core)

    watched(make(), scene.cluster, scene.jobs, incidents=scene.incidents, check=False, on_step=put_away)


def may_be_told_later(make: Make, scene: Scene) -> None:
    """Events that the core only hears may wait for the next step: the same starts, stops and ends."""
    fates = []
    for every_step in (True, False):
        world = World(scene.cluster, incidents=scene.incidents)
        core = Core(scene.cluster, make())
        done: list[object] = []
        for step in simulate(core, world, scene.jobs, every_step=every_step):
            done += [(step.now, action) for action in step.actions]
        ends = world.outcomes
        fates.append((done, list(ends.start[: len(ends)]), list(ends.finish[: len(ends)])))
    assert fates[0] == fates[1]


def replays(make: Make, scene: Scene) -> None:
    """Replaying a journal gives the same steps: the journal holds all that decisions depend on."""
    result = _plain(make, scene)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        with JournalWriter(path, Header(scene.cluster, "under test", {})) as journal:
            for step in result.steps:
                journal.write(step)
        again = [step for _, step in replayed(path, lambda header: make())]
    assert [step_line(step) for step in again] == [step_line(step) for step in result.steps]


def policy_suite(make: Make, *, name: str = "a policy", lossy: bool = True) -> type:
    """A class of tests for one policy; with `lossy=False` no nodes are lost."""

    class Suite:
        @given(scene=scenes())
        @searched(40)
        def test_keeps_every_rule(self, scene: Scene) -> None:
            keeps_every_rule(make, scene)

        @given(scene=scenes(lossy=lossy))
        @searched(20)
        def test_keeps_every_rule_when_nodes_go(self, scene: Scene) -> None:
            keeps_every_rule(make, scene)

        @given(scene=scenes())
        @searched(10)
        def test_same_inputs_same_journal(self, scene: Scene) -> None:
            repeats_itself(make, scene)
            replays(make, scene)

        @given(scene=scenes())
        @searched(10)
        def test_names_do_not_matter(self, scene: Scene) -> None:
            does_not_mind_names(make, scene)

        @given(scene=scenes(lossy=lossy))
        @searched(10)
        def test_an_abandoned_draft_leaves_no_trace(self, scene: Scene) -> None:
            leaves_no_trace(make, scene)

        @given(scene=scenes(lossy=lossy), at=st.integers(1, 40))
        @searched(10)
        def test_a_fork_has_the_same_future(self, scene: Scene, at: int) -> None:
            forks_alike(make, scene, at)

    Suite.__name__ = Suite.__qualname__ = f"Suite of {name}"
    return Suite


def _plain(make: Make, scene: Scene) -> Watched:
    return watched(make(), scene.cluster, scene.jobs, incidents=scene.incidents, check=False)


def _lines(result: Watched) -> list[str]:
    header = header_line(Header(result.core.cluster, "", {}))
    return [header, *map(step_line, result.steps)]


def _comparable(core: Core) -> Iterable[object]:
    return picture(core)
