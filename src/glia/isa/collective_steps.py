"""The steps that a collective takes on a fabric, and how long they are: ring, mesh and others.

Every algorithm is that of gathering: each rank has a piece, and gets all. Scattering sums goes the
same ways back, and a sum for all is both. All groups of a collective move at once, so that links
carry what all of them send. Algorithms, and when each serves: the pages on collective communication
within and between nodes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING

from glia.arch.fabric import Fabric, Link

if TYPE_CHECKING:
    from glia.arch import Arch

Group = tuple[int, ...]
Groups = tuple[Group, ...]
Chips = Mapping[int, Sequence[int]]  # the ranks of a group on each of its chips
PAIR = 2  # ranks, which exchange halves whatever the algorithm
PAIRED_RANKS = 4  # of a chip, at least: two of them are on the way of each ring


@dataclass(frozen=True)
class TravelStep:
    """So many equal steps in turn: what a rank sends, and what chips send each other.

    Amounts are parts of the whole: what a rank has after gathering, or before scattering.
    """

    sent: float  # by the rank that sends most
    between: Mapping[tuple[int, int], float]
    times: int = 1


@dataclass(frozen=True)
class TravelTime:
    """What all steps take: without bytes, and for each byte of the whole."""

    ns: float = 0.0
    ns_per_byte: float = 0.0


@dataclass(frozen=True)
class Ways:
    """What steps go through: a fabric, and how soon and how fast a rank sends."""

    fabric: Fabric
    hop_ns: float
    bytes_per_ns: float

    @staticmethod
    def of(arch: Arch) -> Ways:
        """Those of a core's chip and instance."""
        return Ways(arch.fabric, arch.collective_hop_ns, arch.collective_bytes_per_ns)

    def time(self, steps: Iterable[TravelStep]) -> TravelTime:
        """Steps follow each other; each takes a hop and the bytes of its busiest rank or link."""
        ns = ns_per_byte = 0.0
        for step in steps:
            loads = _loads(step, self.fabric)
            is_far = any(kind == "network" for kind, _, _ in loads)
            busiest = max(
                (load / self.fabric.rate(link) for link, load in loads.items()), default=0
            )
            ns += step.times * (self.fabric.network_hop.value if is_far else self.hop_ns)
            ns_per_byte += step.times * max(step.sent / self.bytes_per_ns, busiest)
        return TravelTime(ns, ns_per_byte)


def algorithm_of(count: int, group: Group, arch: Arch) -> str:
    """The algorithm that serves so many bytes within an instance."""
    chips = _chips(group, arch.fabric)
    if count < arch.collective_mesh_bytes or len(group) <= PAIR:
        return "mesh"
    is_even = len({len(ranks) for ranks in chips.values()}) == 1
    if count < arch.collective_doubling_bytes and is_even and _is_power_of_two(len(chips)):
        return "recursive doubling"
    ranks = arch.fabric.ranks
    is_whole = all(len(each) == ranks for each in chips.values())
    return "KangaRing" if is_whole and ranks >= PAIRED_RANKS else "ring"


def gathering_time(count: int, groups: Groups, arch: Arch) -> TravelTime:
    """How long gathering `count` bytes takes in all groups at once."""
    if not groups or len(groups[0]) < PAIR:
        return TravelTime()
    ways = Ways.of(arch)
    inside = algorithm_of(count, _first_part(groups[0], arch.fabric), arch)
    if not any(_spans_instances(group, arch.fabric) for group in groups):
        return _time_within(groups, inside, ways)
    flat = _time_within(groups, "ring", ways)
    if not all(_is_even(group, arch.fabric) for group in groups):
        return flat
    divided = _time_hierarchical(groups, count < arch.collective_mesh_bytes, inside, ways)
    if not arch.fabric.has_flat_ring or count < arch.collective_doubling_bytes:
        return divided
    return min(divided, flat, key=lambda time: time.ns + time.ns_per_byte * count)


@lru_cache(maxsize=512)
def direct_time(pairs: tuple[tuple[int, int], ...], ways: Ways) -> TravelTime:
    """How long it takes until each pair (sender, receiver) has exchanged the whole."""
    return ways.time((_direct(pairs, 1.0, ways.fabric),))


@lru_cache(maxsize=512)
def exchange_time(groups: Groups, ways: Ways) -> TravelTime:
    """How long it takes until every rank has sent an equal part to each of its group."""
    pairs = [(a, b) for group in groups for a in group for b in group]
    return ways.time((_direct(pairs, 1 / len(groups[0]), ways.fabric),))


@lru_cache(maxsize=512)
def _time_within(groups: Groups, algorithm: str, ways: Ways) -> TravelTime:
    return ways.time(_group_steps(groups, algorithm, ways.fabric))


@lru_cache(maxsize=512)
def _time_hierarchical(groups: Groups, is_small: bool, inside: str, ways: Ways) -> TravelTime:
    """Between instances, ranks of the same place; then within each instance."""
    fabric = ways.fabric
    parts = [_by_instance(group, fabric) for group in groups]
    across = tuple(column for part in parts for column in zip(*part, strict=True))
    rows = tuple(row for part in parts for row in part)
    steps = _between_instances(across, len(groups[0]), is_small, fabric)
    if len(rows[0]) > 1:
        steps += _group_steps(rows, inside, fabric)
    return ways.time(steps)


def _loads(step: TravelStep, fabric: Fabric) -> dict[Link, float]:
    """What each link carries of the whole in one of a step's turns."""
    loads: dict[Link, float] = defaultdict(float)
    for (source, target), part in step.between.items():
        for link in fabric.route(source, target):
            loads[link] += part
    return loads


def _is_power_of_two(count: int) -> bool:
    return count & (count - 1) == 0


def _chips(group: Group, fabric: Fabric) -> Chips:
    chips: dict[int, list[int]] = {}
    for rank in group:
        chips.setdefault(fabric.chip_of(rank), []).append(rank)
    return chips


def _by_instance(group: Group, fabric: Fabric) -> list[Group]:
    nodes: dict[int, list[int]] = {}
    for rank in group:
        nodes.setdefault(fabric.instance_of(fabric.chip_of(rank)), []).append(rank)
    return [tuple(sorted(ranks)) for ranks in nodes.values()]


def _first_part(group: Group, fabric: Fabric) -> Group:
    return _by_instance(group, fabric)[0]


def _spans_instances(group: Group, fabric: Fabric) -> bool:
    return len(_by_instance(group, fabric)) > 1


def _is_even(group: Group, fabric: Fabric) -> bool:
    """Whether each instance has ranks of the group on the same places."""
    size = fabric.chips * fabric.ranks
    parts = _by_instance(group, fabric)
    return len({tuple(rank % size for rank in part) for part in parts}) == 1


def _group_steps(groups: Groups, algorithm: str, fabric: Fabric) -> tuple[TravelStep, ...]:
    """The steps of all groups, the first with the first: every one waits for the slowest."""
    make = _ALGORITHMS[algorithm]
    listed = [list(make(_chips(group, fabric), fabric)) for group in groups]
    return tuple(_merged([s for s in same if s]) for same in zip_longest(*listed))


def _merged(steps: Sequence[TravelStep]) -> TravelStep:
    between: dict[tuple[int, int], float] = defaultdict(float)
    for step in steps:
        for pair, part in step.between.items():
            between[pair] += part
    sent, times = max(step.sent for step in steps), max(step.times for step in steps)
    return TravelStep(sent, between, times)


def _mesh(chips: Chips, _: Fabric) -> Iterator[TravelStep]:
    """To all other chips at once, each rank of a chip to some of them; then within each chip."""
    piece, local = 1 / sum(map(len, chips.values())), max(map(len, chips.values()))
    if len(chips) > 1:
        between = {(a, b): len(chips[a]) * piece for a in chips for b in chips if a != b}
        yield TravelStep(math.ceil((len(chips) - 1) / local) * local * piece, between)
    if local > 1:
        yield TravelStep((local - 1) * len(chips) * piece, {})


def _doubling(chips: Chips, fabric: Fabric) -> Iterator[TravelStep]:
    """With chips along one way after the other, twice as much each time; then within each chip."""
    order = sorted(chips, key=lambda chip: _code(chip, fabric))
    local = len(chips[order[0]])
    piece = 1 / (len(order) * local)
    for bit in range(len(order).bit_length() - 1):
        part = piece * (1 << bit)
        partners = [(chip, order[index ^ 1 << bit]) for index, chip in enumerate(order)]
        yield TravelStep(part, dict.fromkeys(partners, part * local))
    if local > 1:
        yield TravelStep((local - 1) * len(order) * piece, {})


def _code(chip: int, fabric: Fabric) -> tuple[int, ...]:
    """A key by which chips whose numbers differ in one bit are neighbours: Gray codes of places."""
    return tuple(place ^ (place >> 1) for place in fabric.place(chip))


def _ring(chips: Chips, fabric: Fabric, served: int = 1) -> Iterator[TravelStep]:
    """From rank to rank, half of each piece in both directions; `served` ranks at each stop."""
    ranks = sum(map(len, chips.values()))
    times = math.ceil((ranks - 1) / served)
    part = (ranks - 1) / ranks / times
    order = sorted(chips, key=lambda chip: _snake(chip, fabric))
    between: dict[tuple[int, int], float] = defaultdict(float)
    for a, b in pairwise([*order, order[0]]) if len(order) > 1 else ():
        for ends, share in _crossings(a, b, order, fabric):
            between[ends] += part * share / 2
            between[ends[::-1]] += part * share / 2
    yield TravelStep(part, between, times)


def _crossings(
    a: int, b: int, order: Sequence[int], fabric: Fabric
) -> Iterator[tuple[tuple[int, int], float]]:
    """Where a ring goes from one chip to the next, and which part of its bytes does so there.

    Between instances there are as many rings as chips, and each leaves at another chip.
    """
    ends = fabric.instance_of(a), fabric.instance_of(b)
    if ends[0] == ends[1]:
        yield (a, b), 1.0
        return
    here, there = ([c for c in order if fabric.instance_of(c) == end] for end in ends)
    count = min(len(here), len(there))
    for pair in zip(here, there, strict=False):
        yield pair, 1 / count


def _kangaring(chips: Chips, fabric: Fabric) -> Iterator[TravelStep]:
    """A ring through every other rank, which serves its neighbour too: half as many steps."""
    return _ring(chips, fabric, served=2)


def _snake(chip: int, fabric: Fabric) -> tuple[int, ...]:
    """A key in whose order each chip is next to the one before: every other row backwards."""
    key: list[int] = []
    for row, place in zip(fabric.rows, fabric.place(chip), strict=True):
        key.append(row.chips - 1 - place if sum(key) % 2 else place)
    return fabric.instance_of(chip), *key


def _direct(pairs: Sequence[tuple[int, int]], part: float, fabric: Fabric) -> TravelStep:
    """Each pair (sender, receiver) at once."""
    between: dict[tuple[int, int], float] = defaultdict(float)
    sent: dict[int, float] = defaultdict(float)
    for source, target in pairs:
        ends = fabric.chip_of(source), fabric.chip_of(target)
        sent[source] += part * (source != target)
        if ends[0] != ends[1]:
            between[ends] += part
    return TravelStep(max(sent.values(), default=0), between)


def _between_instances(
    across: Groups, ranks: int, is_small: bool, fabric: Fabric
) -> tuple[TravelStep, ...]:
    """A mesh for small pieces, doubling where instances are a power of two, else a ring."""
    size = len(across[0])
    if is_small:
        pairs = [(a, b) for column in across for a in column for b in column]
        return (_direct(pairs, 1 / ranks, fabric),)
    if _is_power_of_two(size):
        return tuple(_doubled(across, bit, ranks, fabric) for bit in range(size.bit_length() - 1))
    following = [pair for column in across for pair in pairwise([*column, column[0]])]
    step = _direct(following, 1 / ranks, fabric)
    return (TravelStep(step.sent, step.between, size - 1),)


def _doubled(across: Groups, bit: int, ranks: int, fabric: Fabric) -> TravelStep:
    """Each instance with the one whose number differs in a bit."""
    partners = [(c[n], c[n ^ 1 << bit]) for c in across for n in range(len(c))]
    return _direct(partners, (1 << bit) / ranks, fabric)


_ALGORITHMS: dict[str, Callable[[Chips, Fabric], Iterator[TravelStep]]] = {
    "mesh": _mesh,
    "recursive doubling": _doubling,
    "KangaRing": _kangaring,
    "ring": _ring,
}
