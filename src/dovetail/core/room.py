"""Free capacity, indexed so that the best placement is found without a search.

The nodes of a type are put in buckets by their number of wholly free devices. A bucket is one integer, used
as a bit set of nodes. Best fit is the lowest bucket that is large enough, and its lowest bit. Closed nodes
are in no bucket. Shapes that ask for something other than whole GPUs (a share of a GPU, CPU, memory,
parameter servers) are placed by a scan over the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dovetail.model.cluster import Cluster
from dovetail.model.errors import PlanError
from dovetail.model.grant import EMPTY, Spot, Spots, lowest, nodes_of, slices_of, slots_for
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE

FAR = 1 << 62  # above every level: a shape with this need never fits


def numbers(bits: int) -> Iterator[int]:
    """The numbers of the bits that are set, lowest first."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


class Room:
    """The free capacity. Only drafts and events change it."""

    __slots__ = (
        "_bit",
        "_blocks",
        "_buckets",
        "_cpus",
        "_cuts",
        "_empty",
        "_ever",
        "_filled",
        "_free",
        "_home",
        "_kind",
        "_kinds",
        "_memory",
        "_needs",
        "_open",
        "_parts",
        "_size",
        "_slots",
        "cluster",
        "level",
        "uniform",
    )

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        kinds = {kind: i for i, kind in enumerate(cluster.types)}
        largest = max(node.gpus for node in cluster.nodes)
        self._kind = [kinds[node.type] for node in cluster.nodes]
        self._bit = [1 << i for i in range(len(cluster.nodes))]
        self._free = [(1 << node.gpus) - 1 for node in cluster.nodes]  # wholly free devices
        self._cpus = [node.cpus for node in cluster.nodes]
        self._memory = [node.memory for node in cluster.nodes]
        self._open = [True] * len(cluster.nodes)
        self._buckets = [[0] * (largest + 1) for _ in kinds]
        for i, node in enumerate(cluster.nodes):
            self._buckets[self._kind[i]][node.gpus] |= 1 << i
        self._filled = [sum(1 << n for n, nodes in enumerate(b) if nodes) for b in self._buckets]  # not empty
        self._size = [
            max(n for n, nodes in enumerate(b) if nodes) for b in self._buckets
        ]  # of the largest node
        self._home = [(kind, 1 << i, self._buckets[kind]) for i, kind in enumerate(self._kind)]
        self.uniform = len(kinds) == 1  # one type of nodes: the level alone says what may fit
        # The free capacity on the scale of `need`: the largest number of free devices on one node or, if some
        # nodes are empty, the number of devices on all empty nodes. -1: no node is open.
        self.level = -1
        self._blocks = [-1] * len(kinds)  # the level of each type alone
        for kind in kinds.values():
            self._relevel(kind)
        self._parts: dict[tuple[int, int], int] = {}  # (node, device) -> milli left
        self._slots: dict[tuple[int, int], int] = {}  # (node, device) -> free slots, once sliced
        self._kinds: dict[tuple[str, ...], tuple[int, ...]] = {}
        self._cuts: dict[tuple[int, int], tuple[int, ...]] = {}
        self._needs: dict[Shape, int] = {}
        self._empty: Room | None = None  # the same cluster without jobs, made when it is first asked for
        self._ever: dict[Shape, bool] = {}

    # -- reading

    @property
    def free_gpus(self) -> int:
        return sum(n * nodes.bit_count() for b in self._buckets for n, nodes in enumerate(b))

    def free_on(self, node: int) -> int:
        return self._free[node] if self._open[node] else 0

    def free_count(self, node: int) -> int:
        """How many devices of the node are wholly free; -1 if the node is closed."""
        return self._free[node].bit_count() if self._open[node] else -1

    def free_cpus(self, node: int) -> int:
        return self._cpus[node]

    def free_memory(self, node: int) -> int:
        return self._memory[node]

    def is_open(self, node: int) -> bool:
        return self._open[node]

    def kind_of(self, node: int) -> int:
        return self._kind[node]

    def kinds(self, types: tuple[str, ...]) -> tuple[int, ...]:
        """The numbers of these types, in the order given; of all types if none is given."""
        known = self._kinds.get(types)
        if known is None:
            names = [kind.name for kind in self.cluster.types]
            known = tuple(
                number
                for wanted in (types or dict.fromkeys(names))
                for number, name in enumerate(names)
                if name == wanted
            )
            self._kinds[types] = known
        return known

    def nodes_with(self, free: int, types: tuple[str, ...] = ()) -> Iterator[int]:
        """Open nodes with at least `free` free devices, the fullest first."""
        for count in range(free, len(self._buckets[0])):
            for kind in self.kinds(types):
                yield from numbers(self._buckets[kind][count])

    def having(self, kind: int, free: int) -> int:
        """The open nodes of a type with at least `free` free devices, as a bit set."""
        nodes = 0
        if self._filled[kind] >> free:
            for bucket in self._buckets[kind][free:]:
                nodes |= bucket
        return nodes

    def best(self, shape: Shape, avoid: int = 0) -> Spots | None:
        """Best fit on the fewest nodes that can hold this gang; None if these are not free now."""
        if shape.plain:
            tasks = shape.tasks
            for kind in self._kinds.get(shape.types) or self.kinds(shape.types):
                buckets = self._buckets[kind]
                filled = self._filled[kind] >> tasks
                while filled:
                    count = tasks + (filled & -filled).bit_length() - 1
                    nodes = buckets[count] & ~avoid if avoid else buckets[count]
                    if nodes:
                        node = (nodes & -nodes).bit_length() - 1
                        mask = self._free[node]
                        return ((node, mask if count == tasks else lowest(mask, tasks), WHOLE, 0, 0),)
                    filled &= filled - 1
                if tasks > self._size[kind] and (cuts := self.cuts(kind, tasks)):
                    spots = self._by_cuts(kind, cuts, avoid)
                    if spots is not None:
                        return spots
            return None
        return self._general(shape, avoid, split=False)

    def need(self, shape: Shape) -> int:
        """The level below which this shape cannot fit packed.

        With one type of nodes, `may_fit` is true from this level on. A shape that is not whole GPUs may fit
        at any level, -1 included.
        """
        known = self._needs.get(shape)
        if known is not None:
            return known
        least = FAR if shape.plain else -1
        for kind in self.kinds(shape.types) if shape.plain else ():
            size = self._size[kind]
            if shape.tasks <= size:
                least = min(least, shape.tasks)
            elif full := self.cuts(kind, shape.tasks).count(size):
                least = min(least, full * size)
        self._needs[shape] = least
        return least

    def may_fit(self, shape: Shape) -> bool:
        """Whether `best` may find a placement: a fast check that is False only if the shape cannot fit."""
        if self.uniform:
            need = self._needs.get(shape)
            return (self.need(shape) if need is None else need) <= self.level
        if not shape.plain:
            return True
        tasks = shape.tasks
        for kind in self._kinds.get(shape.types) or self.kinds(shape.types):
            if self._filled[kind] >> tasks:
                return True
            size = self._size[kind]
            if (
                tasks > size
                and self._buckets[kind][size].bit_count() >= self.cuts(kind, tasks).count(size) > 0
            ):
                return True
        return False

    def anywhere(self, shape: Shape, avoid: int = 0) -> Spots | None:
        """A placement on as few nodes as possible now: that of `best`, else the emptiest nodes first."""
        packed = self.best(shape, avoid)
        return packed if packed is not None else self._general(shape, avoid, split=True)

    def on(self, shape: Shape, nodes: Iterable[int]) -> Spots | None:
        """The gang on these nodes, filled in the order given; None if they do not hold it."""
        return self._fill(shape, nodes)

    def ever(self, shape: Shape) -> bool:
        """Whether the shape fits the empty cluster with all nodes up."""
        known = self._ever.get(shape)
        if known is None:
            if self._empty is None:
                self._empty = Room(self.cluster)
            known = self._ever[shape] = self._empty.anywhere(shape) is not None
        return known

    def tasks_on(self, shape: Shape, node: int) -> int:
        """How many tasks of a shape fit on a node now; 0 if it is closed or of another type or partition."""
        kinds = self.kinds(shape.types) if shape.each else range(len(self._buckets))
        if not self._open[node] or self._kind[node] not in kinds:
            return 0
        if shape.partition and shape.partition not in self.cluster.nodes[node].partitions:
            return 0
        return self._tasks_now(shape, node)

    def cuts(self, kind: int, tasks: int) -> tuple[int, ...]:
        """How a gang of single GPUs is split over the largest nodes of a type; () if it never fits."""
        known = self._cuts.get((kind, tasks))
        if known is None:
            sizes = sorted(
                (node.gpus for i, node in enumerate(self.cluster.nodes) if self._kind[i] == kind),
                reverse=True,
            )
            left, cuts = tasks, []
            for size in sizes:
                if left <= 0:
                    break
                cuts.append(min(size, left))
                left -= size
            known = tuple(cuts) if left <= 0 else ()
            self._cuts[kind, tasks] = known
        return known

    # -- taking and giving

    def take(self, spots: Spots, *, back: bool = False) -> None:
        """Allocate these spots, all or none. PlanError if one is not free, or if its node is closed.

        With `back` (a rollback, or a restored job) spots on closed nodes are allocated too.
        """
        taken = 0
        try:
            for spot in spots:
                node, devices, share, cpus, memory = spot
                free = self._free[node]
                if node < 0 or devices < 0 or type(spot) is not tuple or (devices and not share):
                    raise PlanError(f"{spot} is not a valid spot")
                if (cpus or memory) and not (type(cpus) is type(memory) is int and min(cpus, memory) >= 0):
                    raise PlanError(f"{spot} is not a valid spot")
                if share == WHOLE and free & devices == devices and (self._open[node] or back):
                    self._move(node, free, free ^ devices)
                elif not self._take_part(node, devices, share, back):
                    raise PlanError(self._overfilled(spot))
                taken += 1
                if cpus or memory:
                    self._cpus[node] -= cpus
                    self._memory[node] -= memory
                    if self._cpus[node] < 0 or self._memory[node] < 0:
                        raise PlanError(self._overfilled(spot))
        except Exception as error:  # a policy may pass anything as spots: take all of them or none
            self.give(spots[:taken])
            if isinstance(error, PlanError):
                raise
            raise PlanError(f"{spots!r} are not valid spots: {error}") from error

    def grab(self, shape: Shape) -> Spots | None:
        """`best` and `take` in one, without looking anything up twice: what most starts need."""
        if self.uniform and shape.plain and not shape.types:
            tasks, filled = shape.tasks, self._filled[0]
            fitting = filled >> tasks
            if fitting:
                after = (fitting & -fitting).bit_length() - 1
                count = tasks + after
                buckets = self._buckets[0]
                nodes = buckets[count]
                bit = nodes & -nodes
                node = bit.bit_length() - 1
                mask = self._free[node]
                picked = mask if not after else lowest(mask, tasks)
                self._free[node] = mask ^ picked
                buckets[after] |= bit
                buckets[count] = left = nodes ^ bit
                filled |= 1 << after
                self._filled[0] = filled if left else filled ^ 1 << count
                if not filled >> count + 1:  # it had the most free devices
                    self._relevel(0)
                return ((node, picked, WHOLE, 0, 0),)
            if tasks <= self._size[0]:
                return None
        spots = self.best(shape)
        if spots is not None:
            self.take(spots)
        return spots

    def give(self, spots: Spots) -> None:
        """Free these spots."""
        for node, devices, share, cpus, memory in spots:
            if share == WHOLE:
                free = self._free[node]
                if self._open[node]:  # `_move` written out: every job comes through here
                    self._free[node] = freed = free | devices
                    kind, bit, buckets = self._home[node]
                    before, after = free.bit_count(), freed.bit_count()
                    buckets[after] |= bit
                    buckets[before] = left = buckets[before] ^ bit
                    filled = self._filled[kind] | 1 << after
                    self._filled[kind] = filled if left else filled ^ 1 << before
                    if filled >> after == 1:  # it has the most free devices now
                        self._relevel(kind)
                else:
                    self._free[node] = free | devices
            else:
                self._give_part(node, devices, share)
            if cpus or memory:
                self._cpus[node] += cpus
                self._memory[node] += memory

    def close(self, node: int) -> None:
        """Place no more jobs on a node: it is lost, drained or powered off."""
        if self._open[node]:
            self._toggle(node)
            self._open[node] = False

    def open(self, node: int) -> None:
        if not self._open[node]:
            self._toggle(node)
            self._open[node] = True

    def picture(self) -> tuple[object, ...]:
        """The whole state, for comparing."""
        return (
            list(self._free),
            [list(b) for b in self._buckets],
            list(self._filled),
            list(self._cpus),
            list(self._memory),
            list(self._open),
            dict(self._parts),
            dict(self._slots),
        )

    # -- inside

    def _toggle(self, node: int) -> None:
        kind, count = self._kind[node], self._free[node].bit_count()
        self._buckets[kind][count] ^= self._bit[node]
        self._filled[kind] &= ~(1 << count)
        if self._buckets[kind][count]:
            self._filled[kind] |= 1 << count
        self._relevel(kind)

    def _relevel(self, kind: int) -> None:
        """Nodes of this type have come to have the most free devices, or have no longer as many."""
        block = self._filled[kind].bit_length() - 1
        if block == self._size[kind]:
            block *= self._buckets[kind][block].bit_count()
        if self.uniform:
            self.level = block
        else:
            self._blocks[kind] = block
            self.level = max(self._blocks)

    def _move(self, node: int, old: int, new: int) -> None:
        self._free[node] = new
        if self._open[node]:
            kind, bit, buckets = self._home[node]
            before, after = old.bit_count(), new.bit_count()
            buckets[after] |= bit
            buckets[before] = left = buckets[before] ^ bit
            filled = self._filled[kind] | 1 << after
            self._filled[kind] = filled if left else filled ^ 1 << before
            if not filled >> (before if before > after else after) + 1:
                self._relevel(kind)

    def _overfilled(self, spot: Spot) -> str:
        node, devices, share, cpus, memory = spot
        name = self.cluster.nodes[node].name
        return (
            f"wanted devices {devices:b} (share {share}, {cpus} milli-cores, {memory} bytes) of node {name}, "
            f"which has {self._free[node]:b} wholly free and is {'open' if self._open[node] else 'closed'}"
        )

    def _by_cuts(self, kind: int, cuts: tuple[int, ...], avoid: int) -> Spots | None:
        buckets, taken = self._buckets[kind], avoid
        spots: list[Spot] = []
        large = 0  # nodes that can hold the largest part
        for count in range(cuts[0], len(buckets)):
            large |= buckets[count]
        if large.bit_count() < cuts.count(cuts[0]):
            return None
        for want in cuts:
            for count in range(want, len(buckets)):
                nodes = buckets[count] & ~taken
                if nodes:
                    node = (nodes & -nodes).bit_length() - 1
                    break
            else:
                return None
            taken |= self._bit[node]
            spots.append((node, lowest(self._free[node], want), WHOLE, 0, 0))
        return tuple(spots)

    def _general(self, shape: Shape, avoid: int, *, split: bool) -> Spots | None:
        """A scan, for any shape: one node if an empty node could hold the gang, else the fewest nodes."""
        for kind in self.kinds(shape.types) if shape.each else range(len(self._buckets)):
            if shape.exclusive and shape.each and self._free_of(kind) < shape.gpus:
                continue  # too few free GPUs for any layout
            nodes = [n for n in self._candidates(shape, kind) if not avoid >> n & 1]
            fullest_first = sorted(nodes, key=lambda n: (self._free[n].bit_count(), self._left_on(n), n))
            for node in fullest_first:
                spots = self._fill(shape, [node])
                if spots is not None:
                    return self._with_roles(shape, spots, avoid)
            if split or self._needs_many(shape, kind):
                roomiest_first = sorted(nodes, key=lambda n: (-self._tasks_now(shape, n), n))
                spots = self._fill(shape, roomiest_first)
                if spots is not None and (split or len(nodes_of(spots)) <= self._fewest(shape, kind)):
                    return self._with_roles(shape, spots, avoid)
        return None

    def _free_of(self, kind: int) -> int:
        """Wholly free GPUs of a type, on open nodes."""
        return sum(count * nodes.bit_count() for count, nodes in enumerate(self._buckets[kind]) if count)

    def _candidates(self, shape: Shape, kind: int) -> Iterator[int]:
        for node, of in enumerate(self._kind):
            if (
                of == kind
                and self._open[node]
                and (not shape.partition or shape.partition in self.cluster.nodes[node].partitions)
            ):
                yield node

    def _left_on(self, node: int) -> int:
        """Milli-GPUs left on partly used devices of a node. Nodes with less left are filled first."""
        gpus = self.cluster.nodes[node].gpus
        return sum(self._parts.get((node, device), 0) for device in range(gpus)) if self._parts else 0

    def _capacity(self, shape: Shape, node: int) -> int:
        """The number of tasks that the node could hold if it were empty."""
        machine = self.cluster.nodes[node]
        if not shape.each:
            by_gpu = shape.tasks
        elif shape.slice:
            by_gpu = machine.gpus * slices_of(shape.slice) // shape.each if machine.type.sliceable else 0
        else:
            by_gpu = machine.gpus // shape.each  # two shares of one job are on two devices
        by_cpu = machine.cpus // shape.cpus if shape.cpus else by_gpu
        by_memory = machine.memory // shape.memory if shape.memory else by_gpu
        return min(by_gpu, by_cpu, by_memory)

    def _tasks_now(self, shape: Shape, node: int) -> int:
        """The number of tasks that fit on the node now."""
        count = min(
            shape.tasks,
            self._cpus[node] // shape.cpus if shape.cpus else shape.tasks,
            self._memory[node] // shape.memory if shape.memory else shape.tasks,
        )
        return self._devices(shape, node, count)[1]

    def _needs_many(self, shape: Shape, kind: int) -> bool:
        return all(self._capacity(shape, node) < shape.tasks for node in self._candidates(shape, kind))

    def _fewest(self, shape: Shape, kind: int) -> int:
        left, count = shape.tasks, 0
        for capacity in sorted(
            (self._capacity(shape, n) for n in self._candidates(shape, kind)), reverse=True
        ):
            if left <= 0:
                break
            left -= capacity
            count += 1
        return count

    def _fill(self, shape: Shape, nodes: Iterable[int]) -> Spots | None:
        left = shape.tasks
        spots: list[Spot] = []
        for node in nodes:
            if not self._open[node]:
                continue
            count = left
            if shape.cpus:
                count = min(count, self._cpus[node] // shape.cpus)
            if shape.memory:
                count = min(count, self._memory[node] // shape.memory)
            here, count = self._devices(shape, node, count)
            if count:
                first = (*here[0][:3], count * shape.cpus, count * shape.memory)
                spots += [first, *here[1:]]
                left -= count
            if not left:
                return tuple(spots)
        return None

    def _devices(self, shape: Shape, node: int, count: int) -> tuple[list[Spot], int]:
        """Devices for up to `count` tasks on a node, and the number of tasks that they are for."""
        if count <= 0:
            return [], 0
        if not shape.each:
            return [(node, 0, 0, 0, 0)], count
        free = self._free[node]
        if shape.slice:
            return self._slices(shape.slice, node, count * shape.each, shape.each)
        if shape.milli == WHOLE:
            count = min(count, free.bit_count() // shape.each)
            return ([(node, lowest(free, count * shape.each), WHOLE, 0, 0)], count) if count else ([], 0)
        wanted, picked = count * shape.each, 0
        gpus = self.cluster.nodes[node].gpus
        parts = sorted(
            (self._parts[node, d], d) for d in range(gpus) if self._parts.get((node, d), 0) >= shape.milli
        )
        for _, device in parts[:wanted]:
            picked |= 1 << device
        picked |= lowest(free, min(wanted - picked.bit_count(), free.bit_count()))
        count = picked.bit_count() // shape.each
        picked = lowest(picked, count * shape.each) if picked.bit_count() > count * shape.each else picked
        return ([(node, picked, shape.milli, 0, 0)], count) if count else ([], 0)

    def _slices(self, profile: str, node: int, wanted: int, each: int) -> tuple[list[Spot], int]:
        found = list[Spot]()
        if not self.cluster.nodes[node].type.sliceable:
            return [], 0
        for device in range(self.cluster.nodes[node].gpus):
            whole = bool(self._free[node] >> device & 1)
            free = self._slots.get((node, device), EMPTY if whole else 0)
            while len(found) < wanted and (slots := slots_for(profile, free)):
                found.append((node, 1 << device, -slots, 0, 0))
                free &= ~slots
        count = len(found) // each
        return found[: count * each], count

    def _with_roles(self, shape: Shape, spots: Spots, avoid: int) -> Spots | None:
        """Add helpers (parameter servers): on the job's nodes if they fit, else where most CPU is free."""
        if not shape.roles:
            return spots
        cpus, memory = list(self._cpus), list(self._memory)
        for node, _, _, used, bytes_ in spots:
            cpus[node] -= used
            memory[node] -= bytes_
        near = dict.fromkeys(spot[0] for spot in spots)
        helpers = list[Spot]()
        for role in shape.roles:
            for _ in range(role.count):
                others = sorted(
                    (n for n in range(len(cpus)) if n not in near and self._open[n] and not avoid >> n & 1),
                    key=lambda n: (-cpus[n], n),
                )
                for node in (*near, *others):
                    if cpus[node] >= role.cpus and memory[node] >= role.memory:
                        cpus[node] -= role.cpus
                        memory[node] -= role.memory
                        helpers.append((node, 0, 0, role.cpus, role.memory))
                        break
                else:
                    return None
        return (*spots, *helpers)

    def _take_part(self, node: int, devices: int, share: int, back: bool) -> bool:
        if not (self._open[node] or back) or (devices and share == WHOLE):
            return False
        if not devices:
            return True
        touched = list(numbers(devices))
        if share < 0:
            (device,) = touched
            whole = bool(self._free[node] >> device & 1)
            free = self._slots.get((node, device), EMPTY if whole else 0)
            if free & -share != -share or (node, device) in self._parts:
                return False
            self._slots[node, device] = free ^ -share
            if whole:
                self._move(node, self._free[node], self._free[node] ^ devices)
            return True
        for device in touched:
            whole = bool(self._free[node] >> device & 1)
            if self._parts.get((node, device), WHOLE if whole else 0) < share:
                return False
        for device in touched:
            if self._free[node] >> device & 1:
                self._move(node, self._free[node], self._free[node] ^ (1 << device))
            self._set_part(node, device, self._parts.get((node, device), WHOLE) - share)
        return True

    def _give_part(self, node: int, devices: int, share: int) -> None:
        for device in numbers(devices):
            if share < 0:
                free = self._slots[node, device] | -share
                if free == EMPTY:
                    del self._slots[node, device]
                    self._move(node, self._free[node], self._free[node] | 1 << device)
                else:
                    self._slots[node, device] = free
            else:
                left = self._parts[node, device] + share
                self._set_part(node, device, left)
                if left == WHOLE:
                    self._move(node, self._free[node], self._free[node] | 1 << device)

    def _set_part(self, node: int, device: int, left: int) -> None:
        if left == WHOLE:
            self._parts.pop((node, device), None)
        else:
            self._parts[node, device] = left
