"""One decision of Gandiva_fair while jobs wait: tickets, homes, balancing, and which jobs run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from dovetail.mechanisms.fair.water_filling import water_filled
from dovetail.mechanisms.place.gpu_types import load_by_type, of_types
from dovetail.mechanisms.preempt.stopping import must_keep_running
from dovetail.mechanisms.rounds.leases import fastest_first
from dovetail.model.grant import Spots, load_of
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE
from dovetail.model.view import JobView, Plan, View
from dovetail.policies.gandiva_fair.profiling import Speeds, speeds_of
from dovetail.policies.gandiva_fair.servers import Home, Servers, balancing_moves, tasks_on
from dovetail.policies.gandiva_fair.state import Rules, TicketState
from dovetail.policies.gandiva_fair.stride import Passes, charged, joined, next_quantum
from dovetail.policies.gandiva_fair.tickets import divided, traded

Asked = Mapping[tuple[str, str], float]  # by owner and GPU type, in milli-GPUs


class Turn:
    """One decision, while jobs wait."""

    def __init__(
        self, rules: Rules, view: View, plan: Plan, state: TicketState, waiting: Sequence[JobView]
    ) -> None:
        self.rules, self.view, self.plan = rules, view, plan
        self.waiting = waiting
        now = view.now
        begins = state.ends_at == 0  # the first quantum in which jobs wait begins with this decision
        self.over = not begins and now >= state.ends_at
        self.state = (
            replace(state, ends_at=now + rules.length, balanced_at=now if begins else state.balanced_at)
            if begins or self.over
            else state
        )
        self.running = [job for job in view.running.values() if job.shape.each]
        self.jobs = {job.id: job for job in (*self.running, *waiting)}
        self.owners = {id: rules.owner(job) for id, job in self.jobs.items()}
        self.stay = {job.id for job in self.running if not self.over or must_keep_running(job, now)}
        self.before: dict[str, Spots] = {}  # of jobs that this decision stopped
        self.known: dict[object, Speeds] = {}
        self.kinds = tuple(kind.name for kind in view.cluster.types)
        room = view.room
        homes: dict[str, Home] = {}
        fixed: dict[int, int] = {}  # milli-GPUs by node that jobs hold until they end
        for job in self.running:
            homes[job.id] = _nodes(job.spots)
            if _never_stops(job):
                for node, load in _loads(job.spots).items():
                    fixed[node] = fixed.get(node, 0) + load
        for job in waiting:
            home = state.homes.get(job.id)
            if home is not None and all(map(room.is_open, home)):
                if fixed and len(home) == 1:
                    gpus = view.cluster.nodes[home[0]].gpus * WHOLE
                    if job.shape.load + fixed.get(home[0], 0) > gpus:
                        continue  # it would wait there until a job ends that cannot be stopped
                homes[job.id] = home
        opened = [n for n, node in enumerate(view.cluster.nodes) if node.gpus and room.is_open(n)]
        self.servers = Servers(view.cluster, opened, homes, self.jobs, fixed)

    def decided(self) -> TicketState:
        """Make the plan; returns what is to be kept."""
        now, rules = self.view.now, self.rules
        self._buy_tickets()
        self.servers.weigh(self._divided())
        if new := [job for job in self.waiting if job.id not in self.servers.homes]:
            self._find_homes(new)
            self.servers.weigh(self._divided())
        if self.over and now >= self.state.balanced_at + rules.balance_every:
            self._balance()
            self.servers.weigh(self._divided())
        self._run()
        homes = self.servers.homes
        left = [job for job in self.jobs.values() if job.spots is None and job.id in homes]
        for job in left:
            self.plan.deny(job, "Resources", "other jobs have their turn")
        return self._kept(left)

    # -- tickets

    def speeds(self, job: JobView) -> Speeds:
        """A job's speeds by type."""
        if len(self.kinds) == 1:
            return Speeds({self.kinds[0]: 1.0})
        key = (job.shape, id(job.traits), job.model)
        found = self.known.get(key)
        if found is None:
            measured = self.state.measured if self.rules.measures else None
            ever = self.view.room.ever
            kinds = [kind for kind in self.kinds if ever(of_types(job.shape, (kind,)))]
            found = self.known[key] = speeds_of(self.view, job, kinds or self.kinds, measured)
        return found

    def _buy_tickets(self) -> None:
        """Tickets of each type by weight and demand, and after trade."""
        view, state, rules = self.view, self.state, self.rules
        if rules.measures and len(self.kinds) > 1 and self.over and (state.profiles or self._trade_is_due()):
            state = self.state = replace(state, measured=state.measured.observed(view))
        room = load_by_type(view.cluster, view.room)
        weights = {t.name: t.weight for t in view.cluster.tenants.values()} if rules.by_tenant else {}
        present = dict.fromkeys(self.owners.values())
        basis = frozenset([*((owner, weights.get(owner, 1.0)) for owner in present), *room.items()])
        if basis == state.traded_for and not (self.over and self._trade_is_due()):
            return
        mine: dict[str, list[JobView]] = {}
        for id in sorted(self.jobs, key=lambda id: self.jobs[id].seq):
            mine.setdefault(self.owners[id], []).append(self.jobs[id])
        wants = {owner: float(sum(job.shape.load for job in theirs)) for owner, theirs in mine.items()}
        total = sum(room.values())
        shares = water_filled(total, wants, weights)
        speeds = {id: self.speeds(job) for id, job in self.jobs.items()}
        tickets = {
            owner: {
                kind: share * room[kind] / total
                for kind in room
                if any(kind in speeds[job.id].by_type for job in mine[owner])
            }
            for owner, share in shares.items()
        }
        if rules.trade and len(room) > 1:
            by_type = {id: found.by_type for id, found in speeds.items()}
            tickets = traded(tickets, fastest_first(by_type, room), wants, mine, speeds)
        self.state = replace(
            state,
            tickets=tickets,
            traded_at=view.now,
            traded_for=basis,
            profiles=any(found.unknown for found in speeds.values()),
        )

    def _trade_is_due(self) -> bool:
        at = self.state.traded_at
        return at is None or self.view.now >= at + self.rules.trade_every

    def _divided(self) -> dict[str, float]:
        """The tickets of each job."""
        there: dict[tuple[str, str], dict[str, float]] = {}
        for id in self.servers.homes:
            key = self.owners[id], self.servers.type_of(id)
            there.setdefault(key, {})[id] = float(self.jobs[id].shape.load)
        return divided(self.state.tickets, there)

    # -- homes

    def _asked(self) -> dict[tuple[str, str], float]:
        """What the jobs of each owner ask for that live on each type."""
        asked: dict[tuple[str, str], float] = {}
        for id in self.servers.homes:
            key = self.owners[id], self.servers.type_of(id)
            asked[key] = asked.get(key, 0.0) + self.jobs[id].shape.load
        return asked

    def _rank(self, job: JobView, kind: str, asked: Asked) -> tuple[float, float, float, str]:
        """Which type a job should live on: the least value is best.

        The type of which its owner cannot use most tickets without it; else the type of which it has most
        tickets for what its jobs there ask; else the fastest.
        """
        owner = self.owners[job.id]
        tickets, there = self.state.tickets.get(owner, {}).get(kind, 0.0), asked.get((owner, kind), 0.0)
        crowd = (there + job.shape.load) / tickets if tickets > 0 else float("inf")
        return min(there - tickets, 0.0), crowd, -self.speeds(job).by_type[kind], kind

    def _gains(self, job: JobView, here: str, there: str, asked: Asked) -> bool:
        """Whether its owner can use more tickets if a job moves to another type, or as many less crowded."""
        owner, load = self.owners[job.id], job.shape.load
        tickets = self.state.tickets.get(owner, {})
        old, new = tickets.get(here, 0.0), tickets.get(there, 0.0)
        at, to = asked.get((owner, here), 0.0), asked.get((owner, there), 0.0)
        used = min(at, old) + min(to, new)
        then = min(at - load, old) + min(to + load, new)
        if then != used:
            return then > used
        return new > 0 and (old <= 0 or (to + load) / new < at / old)

    def _find_homes(self, new: Iterable[JobView]) -> None:
        """A home for each new job: on the type of which its owner has most tickets for what it asks."""
        servers, asked, room = self.servers, self._asked(), self.plan.room
        reserved: dict[int, int] = {}

        def free(node: int) -> int:
            return room.free_on(node).bit_count() * WHOLE - reserved.get(node, 0)

        for job in self.waiting:
            for node in servers.homes.get(job.id, ()):
                reserved[node] = reserved.get(node, 0) + job.shape.load // len(servers.homes[job.id])
        for job in new:
            owner, load = self.owners[job.id], job.shape.load
            tickets = self.state.tickets.get(owner, {})
            speeds = self.speeds(job).by_type

            for kind in sorted(speeds, key=lambda kind: self._rank(job, kind, asked)):
                home = servers.home_for(job.shape, kind, free)
                if home is None:
                    continue
                amount = tickets.get(kind, 0.0)
                want = asked[owner, kind] = asked.get((owner, kind), 0.0) + load
                servers.settle(job, home, amount * load / max(want, amount, 1.0))
                for node in home:
                    reserved[node] = reserved.get(node, 0) + load // len(home)
                break

    def _crowded(self) -> set[int]:
        """The servers with waiting jobs."""
        homes = self.servers.homes
        return {node for job in self.jobs.values() if job.spots is None for node in homes.get(job.id, ())}

    def _cost(self, job: JobView) -> int:
        """What a move costs a job."""
        checkpoint = job.traits.checkpoint
        return checkpoint.save + checkpoint.restore if job.epoch else 0

    def _movable(self, job: JobView) -> bool:
        return job.id not in self.stay and job.id not in self.before

    def _move(self, job: JobView, home: Home) -> None:
        if job.spots is not None:
            self.before[job.id] = job.spots
            self.plan.stop(job)
        if self.servers.homes[job.id] != home:
            self.servers.settle(job, home, self.servers.tickets.get(job.id, 0.0))

    def _balance(self) -> None:
        """Move jobs so that owners can use their tickets of each type, and ticket loads are even."""
        rules = self.rules
        self.state = replace(self.state, balanced_at=self.view.now)

        def worth(job: JobView, tickets: float) -> bool:
            """Whether a job gets more by its tickets until the next balancing than the move costs it."""
            return tickets * rules.balance_every > self._cost(job) * job.shape.load

        if len(self.kinds) > 1:
            self._balance_types(worth)
            self.servers.weigh(self._divided())
        for kind in self.kinds:
            for job, node in balancing_moves(self.servers, kind, self._crowded(), self._movable, worth):
                self._move(job, (node,))

    def _balance_types(self, worth: Callable[[JobView, float], bool]) -> None:
        """Jobs go to types to be profiled, once; and from crowded servers where their owner has tickets."""
        servers, asked, crowded = self.servers, self._asked(), self._crowded()
        line = sorted(self.jobs.values(), key=lambda job: (job.spots is not None, job.epoch, job.seq))
        line = [job for job in line if len(servers.homes.get(job.id, ())) == 1 and self._movable(job)]
        profiled = set(self.state.tried)
        for job in line:
            owner, here, load = self.owners[job.id], servers.type_of(job.id), job.shape.load
            speeds = self.speeds(job)
            others = [kind for kind in speeds.by_type if kind != here]
            if not others or (here in speeds.unknown and job.executed_at(self.view.now) < self.rules.length):
                continue  # it is to be profiled here
            there = min(others, key=lambda kind: self._rank(job, kind, asked))
            unknown = [k for k in others if k in speeds.unknown and (job.model, job.gpus, k) not in profiled]
            if unknown:
                there = unknown[0]
                profiled.add((job.model, job.gpus, there))
            elif servers.homes[job.id][0] not in crowded or not self._gains(job, here, there, asked):
                continue
            found = servers.home_for(job.shape, there, lambda node: 0)
            if found is None or len(found) != 1 or not worth(job, float(load)):
                continue
            asked[owner, here] -= load
            asked[owner, there] = asked.get((owner, there), 0.0) + load
            self._move(job, found)
        self.state = replace(self.state, tried=frozenset(profiled))

    # -- turns

    def _run(self) -> None:
        """Stop and start jobs: large gangs first, then each server, then what would be idle."""
        cluster, plan = self.view.cluster, self.plan
        room = {n: cluster.nodes[n].gpus * WHOLE for n in self.servers.open}
        local: dict[int, list[JobView]] = {}
        large: list[JobView] = []
        for id, job in self.jobs.items():
            home = self.servers.homes.get(id)
            if home is None:
                continue
            if len(home) > 1 or job.shape.roles:
                large.append(job)
            else:
                local.setdefault(home[0], []).append(job)
            if job.spots is not None and id in self.stay:
                for node, load in _loads(job.spots).items():
                    if node in room:
                        room[node] -= load
        self.passes = {n: self._passes_of(n, local.get(n, ())) for n in sorted(self._crowded()) if n in room}
        gangs = self._due(large, room) if self.over else []
        picks: dict[int, list[str]] = {}
        for node, passes in self.passes.items():
            lines: dict[str, list[tuple[str, int]]] = {}
            able = [job for job in local.get(node, ()) if job.id not in self.stay]
            for job in sorted(able, key=lambda job: self._place(job, passes)):
                lines.setdefault(self.owners[job.id], []).append((job.id, job.shape.load))
            picks[node] = next_quantum(passes, lines, room[node], self.rules.length)
            chosen = set(picks[node])
            for job in able:
                if job.spots is not None and job.id not in chosen:
                    self._move(job, (node,))
        for job, home in gangs:
            if job.spots is None:
                self._start(job, home)
        for node, ids in picks.items():
            for id in ids:
                if self.jobs[id].spots is None:
                    self._start(self.jobs[id], (node,))
        if plan.room.free_gpus or any(not job.shape.exclusive for job in self.waiting):
            self._fill()

    def _place(self, job: JobView, passes: Passes) -> tuple[float, bool, int]:
        """A job's place among those of its owner: the least GPU-time first, then running jobs."""
        return passes.jobs[job.id], job.spots is None, job.seq

    def _passes_of(self, node: int, local: Sequence[JobView]) -> Passes:
        """The passes on a server up to now, of the jobs that are at home there."""
        before = self.state.servers.get(node)
        passes = Passes(at=self.view.now) if before is None else charged(before, self.view.now)
        tickets: dict[str, float] = {}
        ids: dict[str, list[str]] = {}
        for job in local:
            owner = self.owners[job.id]
            tickets[owner] = tickets.get(owner, 0.0) + self.servers.tickets.get(job.id, 0.0)
            ids.setdefault(owner, []).append(job.id)
        return joined(passes, tickets, ids)

    def _due(self, large: Sequence[JobView], room: dict[int, int]) -> list[tuple[JobView, Home]]:
        """Gangs larger than a server that run in the next quantum; what they take is taken from `room`.

        A gang is due when its pass, the GPU-time it had over its tickets, is not above the time since it
        came: what jobs on its servers had for theirs. One that is not due stops, if other jobs wait there.
        """
        now, crowded = self.view.now, set(self.passes)
        line: list[tuple[float, int, JobView]] = []
        for job in large:
            home = self.servers.homes[job.id]
            if job.id in self.stay or not (job.spots is None or crowded & set(home)):
                continue
            since, before = self.state.central.get(job.id, (now, job.service_at(now)))
            tickets = self.servers.tickets.get(job.id, 0.0)
            had = (job.service_at(now) - before) * WHOLE
            behind = (now - since) - had / tickets if tickets > 0 else -1.0
            line.append((-behind, job.seq, job))
        found: list[tuple[JobView, Home]] = []
        for late, _, job in sorted(line, key=lambda row: row[:2]):
            span = self._span(job, room) if late <= 0 else None
            if span is None:
                if job.spots is not None:
                    self._move(job, self.servers.homes[job.id])
                continue
            left = job.shape.tasks
            each = job.shape.load // job.shape.tasks
            for node in span:
                tasks = min(left, tasks_on(self.view.cluster.nodes[node], job.shape), room[node] // each)
                room[node] -= tasks * each
                left -= tasks
                if node not in self.passes:  # its jobs make way
                    there = [j for j in self.jobs.values() if self.servers.homes.get(j.id) == (node,)]
                    self.passes[node] = self._passes_of(node, there)
            found.append((job, span))
        return found

    def _span(self, job: JobView, room: Mapping[int, int]) -> Home | None:
        """The servers of a large gang in the next quantum: where it lives, or others with room enough."""
        each = job.shape.load // job.shape.tasks

        def tasks(nodes: Iterable[int]) -> int:
            nodes = [n for n in nodes if n in room]
            return sum(min(tasks_on(self.view.cluster.nodes[n], job.shape), room[n] // each) for n in nodes)

        home = self.servers.homes[job.id]
        if job.spots is not None or tasks(home) >= job.shape.tasks:
            return home
        kind = self.servers.type_of(job.id)
        nodes = [n for n in self.servers.open if self.view.cluster.nodes[n].type.name == kind]
        chosen: list[int] = []
        for node in sorted(nodes, key=lambda n: (-tasks([n]), self.servers.load(n), n)):
            chosen.append(node)
            if tasks(chosen) >= job.shape.tasks:
                self._move(job, tuple(chosen))
                return tuple(chosen)
        return None

    def _start(self, job: JobView, home: Home) -> bool:
        """Start a waiting job at home, where it was if this decision stopped it."""
        room, before = self.plan.room, self.before.get(job.id)
        spots: Spots | None = None
        if before is not None and _nodes(before) == home and _is_free(self.plan, job.shape, before):
            spots = before
        elif job.shape.roles:
            away = sum(1 << n for n in range(len(self.view.cluster.nodes)) if n not in home)
            spots = room.best(job.shape, away)
        else:
            spots = room.on(job.shape, home)
        return spots is not None and self.plan.start(job, spots)

    def _fill(self) -> None:
        """Jobs that wait take devices that would be idle: at home if they can, else they move."""
        full: set[Shape] = set()
        homes = self.servers.homes
        left = [job for job in self.jobs.values() if job.spots is None]
        for job in sorted(left, key=lambda job: (job.id not in self.before, job.seq)):
            if job.id in homes and self._start(job, homes[job.id]):
                continue
            kinds = tuple(self.speeds(job).by_type)
            shape = job.shape
            if len(kinds) < len(self.kinds) and kinds != shape.types:
                shape = of_types(shape, kinds)
            if shape in full or self._cost(job) >= self.rules.balance_every:
                continue
            spots = self.plan.room.best(shape)
            if spots is None and job.id not in homes:  # no single type holds it
                spots = self.plan.room.anywhere(shape)
            if spots is None or not self.plan.start(job, spots):
                full.add(shape)
            else:
                homes[job.id] = _nodes(spots)

    def _kept(self, left: Sequence[JobView]) -> TicketState:
        homes = self.servers.homes
        crowded = {node for job in left for node in homes[job.id]}
        running: dict[int, dict[str, tuple[str, int]]] = {node: {} for node in crowded}
        central: dict[str, tuple[int, int]] = {}
        for id, job in self.jobs.items():
            home = _nodes(job.spots) if job.spots is not None else homes.get(id, ())
            if len(home) > 1 or job.shape.roles:
                if crowded & set(home):
                    now = self.view.now
                    central[id] = self.state.central.get(id) or (now, job.service_at(now))
            elif job.spots is not None and home[0] in crowded:
                running[home[0]][id] = self.owners[id], job.held
        servers = {}
        for node in sorted(crowded):
            passes = self.passes.get(node) or Passes(at=self.view.now)
            servers[node] = replace(passes, running=running[node])
        return replace(
            self.state, homes={job.id: homes[job.id] for job in left}, servers=servers, central=central
        )


def _nodes(spots: Spots | None) -> Home:
    """The nodes on which devices are held, in order."""
    if spots is not None and len(spots) == 1:
        return (spots[0][0],)
    return tuple(sorted({spot[0] for spot in spots or () if spot[1]}))


def _never_stops(job: JobView) -> bool:
    """Whether a running job holds its devices until it ends, whatever the policy wants."""
    checkpoint = job.traits.checkpoint
    return not job.traits.preemptible or not (checkpoint.on_stop or checkpoint.every)


def _loads(spots: Spots | None) -> dict[int, int]:
    """Milli-GPUs held on each node."""
    found: dict[int, int] = {}
    for spot in spots or ():
        found[spot[0]] = found.get(spot[0], 0) + load_of((spot,))
    return found


def _is_free(plan: Plan, shape: Shape, spots: Spots) -> bool:
    """Whether spots of whole devices, and nothing else, are free."""
    room = plan.room
    return shape.exclusive and all(
        share == WHOLE and not cpus and not memory and room.free_on(node) & devices == devices
        for node, devices, share, cpus, memory in spots
    )
