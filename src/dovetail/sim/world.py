"""The simulated cluster: it performs the core's actions and predicts the events that follow.

Only the world knows the true work and the true speed of a job. A job without a profile, on devices of speed
1, runs at rate 1 and costs next to nothing to simulate. The rate of every other job comes from `Speed`. It is
computed again when another job starts or stops on one of its devices, and when the job enters its next
regime.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappush

from dovetail.model.action import Action, Answer, Rent, Resize, SetPower, Start, Stop
from dovetail.model.cluster import Cluster
from dovetail.model.event import FAILED, FINISHED, NODE_JOINED, NODE_LOST, PROGRESSED, RESIZED, STOPPED, Event
from dovetail.model.goodput import noise_at
from dovetail.model.grant import Spots, Terms, load_of
from dovetail.model.job import Job, Profile
from dovetail.model.loss import epoch_end, epochs_in
from dovetail.model.profile_arithmetic import regime_at
from dovetail.model.units import MINUTE
from dovetail.model.view import JobView
from dovetail.sim.outcomes import Outcomes
from dovetail.sim.true_speed import Neighbour, ProfiledSpeed, Speed

FROZEN = 1 << 62  # a time that does not come


@dataclass(frozen=True, slots=True)
class Incident:
    """A node is lost at one time and back at another."""

    node: str
    at: int
    back_at: int | None = None
    why: str = "failed"


class Running:
    """The true state of one job."""

    __slots__ = (
        "done",
        "due",
        "epoch",
        "fails",
        "job",
        "live_at",
        "load",
        "rate",
        "row",
        "saved",
        "simple_load",
        "since",
        "spots",
        "suspended_on",
        "terms",
        "turns",
    )

    def __init__(self, job: Job, row: int) -> None:
        self.job = job
        self.row = row  # in `outcomes`
        self.done = 0  # work, up to live_at
        self.due = -1  # when the job ends, if nothing changes; -1: never
        self.turns = -1  # when the job enters its next regime, if before that; -1: never
        self.epoch = 0
        self.spots: Spots | None = None
        self.suspended_on: Spots | None = None  # the nodes that have its state in host memory
        # The load with which the job runs at rate 1, with or without neighbours, and to its end; -1: none.
        shape = job.shape
        simple = job.fails_after is None and job.traits.profile is None and shape.exclusive
        self.simple_load = shape.load if simple else -1

    # set at the first start
    fails: int
    saved: int  # work in the checkpoint of the last stop
    # set at each start
    live_at: int
    rate: float
    since: int  # when the job got the devices that it holds now
    load: int  # milli-GPUs held
    terms: Terms

    def advance(self, now: int) -> None:
        if now > self.live_at:
            elapsed = now - self.live_at
            self.done += elapsed if self.rate == 1.0 else int(elapsed * self.rate)
            self.live_at = now


class World:
    """Performs actions and predicts events, in a heap that the simulator empties."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        speed: Speed | None = None,
        incidents: Iterable[Incident] = (),
        boot_time: int = 5 * MINUTE,
    ) -> None:
        self.cluster = cluster
        self.heap: list[Event] = []
        self.outcomes = Outcomes()
        self.busy = 0  # milli-GPU-microseconds held
        self.lost = 0  # of these, without lasting work
        self._jobs: dict[str, Running] = {}
        self._speed: Speed = speed or ProfiledSpeed(cluster)
        self._uniform = speed is None and all(kind.speed == 1.0 for kind in cluster.types)
        self._on: dict[tuple[int, int], dict[str, Running]] = {}  # (node, device) -> jobs on it
        self._down: set[str] = set()
        self._boot_time = boot_time
        for incident in incidents:
            heappush(self.heap, (incident.at, NODE_LOST, incident.node, 0, incident.why))
            if incident.back_at is not None:
                heappush(self.heap, (incident.back_at, NODE_JOINED, incident.node, 0, None))

    def submit(self, job: Job) -> None:
        """Add a job that has arrived."""
        outcomes = self.outcomes
        row = len(outcomes.job)
        outcomes.job.append(job)
        if row >= len(outcomes.start):
            outcomes.grow(max(1_024, row))
        self._jobs[job.id] = Running(job, row)

    def adopt(self, job: Job, held: JobView, now: int, *, kept: int, on: Spots | None) -> None:
        """Add a job with the work that it has done; if it runs, it goes on from now on these spots.

        `kept` is the work with which it started: what is left if it is stopped and saves nothing.
        """
        self.submit(job)
        run = self._jobs[job.id]
        run.epoch, run.done = held.epoch, held.done_at(now)
        run.fails, run.saved = 0, kept
        run.suspended_on = held.suspended_on
        if on is None:
            return
        run.spots, run.terms, run.load = on, held.terms, load_of(on)
        run.since = run.live_at = now
        run.rate = held.rate
        self._occupy(run)
        self._foretell(run)

    def holds(self, event: Event) -> bool:
        """Whether a predicted event still happens; if so, apply it. Outdated predictions are dropped here."""
        kind = event[1]
        if kind == FINISHED:
            time, _, subject, epoch, _ = event
            run = self._jobs.get(subject)
            if run is None or run.due != time or run.epoch != epoch:
                return False
            row, held = run.row, time - run.since
            outcomes = self.outcomes
            outcomes.executed[row] += held
            outcomes.finish[row] = time
            self.busy += held * run.load
            del self._jobs[subject]
            if self._on:
                self._vacate(time, run)
            return True
        time, kind, subject, epoch, fact = event
        if kind == FAILED:
            run = self._jobs.get(subject)
            if run is None or run.due != time or run.epoch != epoch:
                return False
            self._let_go(time, run)
            run.advance(time)
            if run.rate > 0:
                self.lost += int((run.done - fact[1]) / run.rate) * run.load
            run.done = run.saved = fact[1]
            run.suspended_on = None
            run.fails += 1
            if run.fails > run.job.traits.retries:
                self.outcomes.unfinished(subject, "failed", time)
            self._vacate(time, run)
            return True
        if kind == PROGRESSED:  # of two at one instant only the last rate is valid
            run = self._jobs.get(subject)
            if run is not None and run.turns == time and run.epoch == epoch and run.spots is not None:
                run.done, run.live_at, run.rate = fact[0], time, fact[1]
                self._foretell(run)
            if run is None or run.epoch != epoch or run.spots is None or run.live_at < time:
                return False  # the last: a turn that was predicted before the job's speed changed
            return bool(run.done == fact[0] and run.rate == fact[1])
        if kind == NODE_LOST:
            self._down.add(subject)
            self._freeze(time, subject)
        elif kind == NODE_JOINED:
            self._down.discard(subject)
        return True

    def perform(self, now: int, action: Action) -> None:
        """Perform an action of the core, and predict the events that follow."""
        if type(action) is Start:
            self.start(now, action)
        elif type(action) is Stop:
            self._stop(now, action)
        elif type(action) is Resize:
            self._resize(now, action)
        elif type(action) is SetPower:
            if action.on:
                heappush(self.heap, (now + self._boot_time, NODE_JOINED, action.node, 0, None))
        elif type(action) is Rent:
            if action.keep:
                heappush(self.heap, (now + self._boot_time, NODE_JOINED, action.node, 0, None))
        elif type(action) is Answer and action.answer == "refused":
            self.outcomes.unfinished(action.job, "refused", now)

    def done(self, job_id: str, now: int) -> int:
        """The true work that a job has done."""
        run = self._jobs[job_id]
        if run.spots is None or now <= run.live_at:
            return run.done
        return run.done + int((now - run.live_at) * run.rate)

    def start(self, now: int, action: Start) -> None:
        """Perform a start, the most frequent action."""
        job_id, epoch, spots, terms = action
        run = self._jobs[job_id]
        job = run.job
        run.epoch = epoch
        run.spots = spots
        run.terms = terms
        _, devices, share, _, _ = spots[0]  # `load_of`, inlined
        load = devices.bit_count() * share if len(spots) == 1 and share > 0 else load_of(spots)
        run.load = load
        run.since = run.live_at = now
        if epoch == 1:
            self.outcomes.start[run.row] = now
            run.fails = run.saved = 0
        else:
            checkpoint, where = job.traits.checkpoint, run.suspended_on
            pause = checkpoint.restore if where is None else checkpoint.restart(where, spots)
            run.live_at = now + pause
            self.lost += pause * load
        if load == run.simple_load and self._uniform:
            run.rate = 1.0
            run.due = due = run.live_at + job.work - run.done
            heappush(self.heap, (due, FINISHED, job_id, epoch, None))
            return
        met = self._occupy(run)
        run.rate = self._rated(run, met)
        for other in met:
            self._rerate(now, other)
        self._foretell(run)
        profile = job.traits.profile
        if run.rate != 1.0 or (profile is not None and profile.goodput is not None):
            heappush(self.heap, (now, PROGRESSED, job_id, epoch, self._fact(run)))

    def _stop(self, now: int, action: Stop) -> None:
        run = self._jobs.get(action.job)
        if run is None or run.epoch != action.epoch or run.spots is None:
            if run is None or run.epoch == action.epoch:  # the job ended before the stop reached it
                heappush(self.heap, (now, STOPPED, action.job, action.epoch, 0 if run is None else run.done))
            return
        died = action.why == "node lost" or (
            bool(self._down) and any(self.cluster.nodes[spot[0]].name in self._down for spot in run.spots)
        )
        if not died:
            run.advance(now)
        checkpoint = run.job.traits.checkpoint
        load = run.load
        suspends = checkpoint.suspends and not died
        run.suspended_on = run.spots if suspends else None
        if checkpoint.on_stop and not died:
            kept, takes = run.done, 0 if suspends else checkpoint.save
        else:
            every = checkpoint.every
            kept, takes = max(run.saved, run.done - run.done % every if every else 0), 0
        if run.rate > 0:
            self.lost += int((run.done - kept) / run.rate) * load
        self.lost += takes * load
        run.done = run.saved = kept
        self.outcomes.stops[run.row] += 1
        self._let_go(now + takes, run)
        self._vacate(now, run)
        heappush(self.heap, (now + takes, STOPPED, action.job, action.epoch, kept))

    def _resize(self, now: int, action: Resize) -> None:
        run = self._jobs.get(action.job)
        if run is None or run.epoch != action.epoch or run.spots is None:
            return
        pause = run.job.pause(run.spots, action.spots)
        run.advance(now)
        self._let_go(now, run)
        self._vacate(now, run)
        run.spots, run.terms = action.spots, action.terms
        run.since, run.load = now, load_of(action.spots)
        run.live_at = max(run.live_at, now) + pause
        self.lost += pause * run.load
        met = self._occupy(run)
        run.rate = self._rated(run, met)
        for other in met:
            self._rerate(now, other)
        self._foretell(run)
        heappush(self.heap, (now, RESIZED, action.job, action.epoch, None))
        heappush(self.heap, (now, PROGRESSED, action.job, action.epoch, self._fact(run)))

    def settle(self, now: int) -> list[str]:
        """At the end of a run: count the device time up to now, and return the jobs that hold devices."""
        self.outcomes.trim()
        holding = [job_id for job_id, run in self._jobs.items() if run.spots is not None]
        for job_id in holding:
            self._let_go(now, self._jobs[job_id])
        return holding

    def _let_go(self, time: int, run: Running) -> None:
        held = time - run.since
        self.outcomes.executed[run.row] += held
        self.busy += held * run.load
        run.since = time

    def _foretell(self, run: Running) -> None:
        run.turns = -1
        if run.rate <= 0.0:
            run.due = -1
            return
        job = run.job
        kind, target, fact = FINISHED, job.work, None
        if job.fails_after is not None and job.fails_after < job.work:
            every, target = job.traits.checkpoint.every, job.fails_after
            kind, fact = FAILED, ("exit 1", max(run.saved, target - target % every if every else 0))
        profile = job.traits.profile
        if profile is not None and (
            profile.regimes or profile.goodput is not None or profile.loss is not None
        ):
            end, rate = self._next_turn(run, profile, target)
            if end < target:  # before the job ends it gets a new rate, or reports: predict only that
                run.due, run.turns = -1, run.live_at - int(-(end - run.done) // run.rate)
                report = self._fact(run, end, rate)
                heappush(self.heap, (run.turns, PROGRESSED, job.id, run.epoch, report))
                return
        left = max(0, target - run.done)
        run.due = run.live_at + (left if run.rate == 1.0 else -int(-left // run.rate))
        heappush(self.heap, (run.due, kind, job.id, run.epoch, fact))

    def _next_turn(self, run: Running, profile: Profile, target: int) -> tuple[int, float]:
        """The work at which the job gets a new rate or an epoch ends, and its rate from there on."""
        job, end, rate = run.job, target, run.rate
        if profile.loss is not None and job.traits.epochs:
            end = epoch_end(run.done, job.work, job.traits.epochs)
        if profile.regimes:
            before, until = regime_at(profile, run.done, job.work)
            if until <= end and until < target:
                end, rate = until, run.rate / before * regime_at(profile, until, job.work)[0]
        elif profile.goodput is not None:
            _, until = noise_at(profile.goodput, run.done, job.work)
            if until <= end and until < target:
                end, rate = until, self._rated(run, self._met(run), until)
        return end, rate

    def _fact(self, run: Running, done: int | None = None, rate: float = 0.0) -> tuple[float | None, ...]:
        """What a job reports: its work and rate, now or as given; its noise scale and loss, if it has them.

        The loss is reported at the end of each epoch, and only there.
        """
        if done is None:
            done, rate = run.done, run.rate
        profile, noise = run.job.traits.profile, None
        if profile is None or (profile.goodput is None and profile.loss is None):
            return done, rate
        if profile.goodput is not None:
            noise, _ = noise_at(profile.goodput, done, run.job.work)
        work, epochs = run.job.work, run.job.traits.epochs
        if profile.loss is not None and epochs and done:
            epoch = epochs_in(done, work, epochs)
            if done == epoch_end(done - 1, work, epochs):
                return done, rate, noise, profile.loss.at(epoch), epoch
        return (done, rate) if noise is None else (done, rate, noise)

    def _rated(self, run: Running, met: list[Running], done: int | None = None) -> float:
        """Its rate now, or after this much work."""
        job, spots = run.job, run.spots
        assert spots is not None
        neighbours = [
            Neighbour(
                other.job.traits.profile.use if other.job.traits.profile else 1.0,
                other.job.traits.profile.hurt if other.job.traits.profile else 0.0,
                other.terms,
                other.job.model if other.job.shape.exclusive else "",
                other.spots or (),
            )
            for other in met
        ]
        traits = job.traits
        profile = traits.profile
        if profile is not None and profile.goodput is not None:
            noise, _ = noise_at(profile.goodput, run.done if done is None else done, job.work)
            return self._speed.rate(job.shape, traits, spots, run.terms, neighbours, noise)
        rate = self._speed.rate(job.shape, traits, spots, run.terms, neighbours)
        if profile is not None and profile.regimes:
            rate *= regime_at(profile, run.done, job.work)[0]
        return rate

    def _rerate(self, now: int, run: Running) -> None:
        """Another job started or stopped on its devices: compute the job's rate again."""
        before, profile = run.rate, run.job.traits.profile
        if profile is not None and (profile.regimes or profile.goodput is not None):
            run.advance(now)  # its rate also depends on the work done
        rate = self._rated(run, self._met(run))
        if rate == before:
            return
        run.advance(now)
        run.rate = rate
        self._foretell(run)
        heappush(self.heap, (now, PROGRESSED, run.job.id, run.epoch, self._fact(run)))

    def _occupy(self, run: Running) -> list[Running]:
        """Put a job on its devices; returns the jobs that are there already."""
        on, job_id = self._on, run.job.id
        met: dict[str, Running] = {}
        for device in _devices(run.spots):
            there = on.get(device)
            if there is None:
                on[device] = {job_id: run}
            else:
                met.update(there)
                there[job_id] = run
        met.pop(job_id, None)  # it may have several slices of a device
        return [met[other] for other in sorted(met)]

    def _met(self, run: Running) -> list[Running]:
        found: dict[str, Running] = {}
        for device in _devices(run.spots):
            for job_id, other in self._on.get(device, {}).items():
                if other is not run:
                    found[job_id] = other
        return [found[job_id] for job_id in sorted(found)]

    def _vacate(self, now: int, run: Running) -> None:
        spots, run.spots = run.spots, None
        run.due = run.turns = -1
        if not self._on:
            return
        met: dict[str, Running] = {}
        on, job_id = self._on, run.job.id
        for device in _devices(spots):
            there = on.get(device)
            if there and there.pop(job_id, None) is not None:
                if there:
                    met.update(there)
                else:
                    del on[device]
        for other in sorted(met):
            self._rerate(now, met[other])

    def _freeze(self, now: int, node: str) -> None:
        """The jobs on a lost node make no more progress; the core decides what happens to them."""
        number = self.cluster.number[node]
        for run in self._jobs.values():
            if run.suspended_on and any(spot[0] == number for spot in run.suspended_on):
                run.suspended_on = None
            if run.spots and any(spot[0] == number for spot in run.spots):
                run.advance(now)
                run.live_at = FROZEN  # nor when its other node is lost, before a round stops it
                spots = run.spots
                self._vacate(now, run)  # for its neighbours; it holds its devices until the core stops it
                run.spots = spots


def _devices(spots: Spots | None) -> list[tuple[int, int]]:
    found = []
    for node, devices, _, _, _ in spots or ():
        left = devices
        while left:
            low = left & -left
            found.append((node, low.bit_length() - 1))
            left ^= low
    return found
