"""The order of list scheduling is that of its definition, and bodies alike are ordered alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glia.arch import get_target
from glia.base.affine import Affine
from glia.base.dtype import F32
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.vector import TensorCopy, TensorScalar
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile, whole_tile
from glia.machine.footprint import Footprint
from glia.machine.instruction_rewriting import replace_tiles, substitute_instruction
from glia.machine.ordering.order_rules import REPETITIONS
from glia.machine.ordering.repeated_order import repeated_order
from glia.machine.ordering.structure import Structures
from glia.machine.ordering.task_graph import Orders
from glia.machine.ordering.ways import AS_ACTIVATION, in_way, resource_of
from glia.machine.passes.on_chip_space import occupied_bytes
from glia.machine.passes.schedule import Scheduler
from support.examples import with_examples

ARCH = get_target("trn2").arch
ELEMENTS = 512
PARTITIONS = 16


def _tile(number: int) -> Tile:
    memory = Memory.PSUM if number % 3 == 0 else Memory.SBUF
    return Tile(f"tile{number}", memory, F32, PARTITIONS, ELEMENTS)


def _half(tile: Tile, which: int) -> Pattern:
    half = ELEMENTS // 2
    dims = ((1, PARTITIONS), (1, half))
    return Pattern(tile, F32, dims, Affine((), half * which))


def _instruction(kind: str, to: int, of: int, half: int) -> Instr:
    dst, src = _half(_tile(to), half), whole_tile(_tile(of))
    src = Pattern(src.tile, F32, dst.dims)
    if kind == "copy":
        return TensorCopy(dst=dst, src=src)
    if kind == "load":
        hbm = Tile("input", Memory.HBM, F32, 1, PARTITIONS * ELEMENTS)
        at = Affine((("i", ELEMENTS),), 0)
        source = Pattern(hbm, F32, ((ELEMENTS, PARTITIONS), (1, ELEMENTS // 2)), at)
        return DmaCopy(dst=dst, src=source, queue="load", on="sync")
    return Activation(dst=dst, data=src, function=kind)


_numbers = st.integers(0, 7)
_kinds = st.sampled_from(["copy", "load", "exp", "sqrt"])
_bodies = st.lists(
    st.builds(_instruction, _kinds, _numbers, _numbers, st.integers(0, 1)), min_size=1, max_size=30
)


def _dependences(body: Sequence[Instr]) -> tuple[list[set[int]], set[tuple[int, int]]]:
    """By instruction those it depends on, and the pairs of which the second reads a result."""
    before: list[set[int]] = []
    reads: set[tuple[int, int]] = set()
    for position, instruction in enumerate(body):
        before.append(set())
        for source, other in enumerate(body[:position]):
            written, its = _footprints(other, is_write=True), _footprints(other, is_write=False)
            mine, read = (_footprints(instruction, is_write=w) for w in (True, False))
            is_read = _meet(read, written)
            if is_read or _meet(mine, written) or _meet(mine, its):
                before[-1].add(source)
            if is_read:
                reads.add((source, position))
    return before, reads


def _footprints(instruction: Instr, *, is_write: bool) -> list[tuple[str, Footprint]]:
    kind = instruction.written_patterns if is_write else instruction.read_patterns
    return [(pattern.tile.name, Footprint.of(pattern)) for pattern in kind()]


def _meet(some: list[tuple[str, Footprint]], others: list[tuple[str, Footprint]]) -> bool:
    return any(n == other and f.may_overlap(its) for n, f in some for other, its in others)


class _Memories:
    """What is live of SBUF and PSUM as a run is ordered, by its definition."""

    def __init__(self, body: Sequence[Instr], capacity: int) -> None:
        self.capacity = capacity
        self.uses = [
            {p.tile.name: p.tile for p in each.patterns() if p.tile.memory is not Memory.HBM}
            for each in body
        ]
        self.left = Counter(name for tiles in self.uses for name in tiles)
        self.live: dict[str, Tile] = {}

    def fits(self, position: int) -> bool:
        new = {n: tile for n, tile in self.uses[position].items() if n not in self.live}
        return all(
            self._bytes(new, memory) == 0
            or self._bytes(new, memory) + self._bytes(self.live, memory) <= self.capacity
            for memory in (Memory.SBUF, Memory.PSUM)
        )

    def issue(self, position: int) -> None:
        self.live |= self.uses[position]
        self.left.subtract(self.uses[position].keys())
        self.live = {name: tile for name, tile in self.live.items() if self.left[name]}

    @staticmethod
    def _bytes(tiles: Mapping[str, Tile], memory: Memory) -> int:
        return sum(occupied_bytes(t, ARCH) for t in tiles.values() if t.memory is memory)


def _by_definition(
    body: Sequence[Instr],
    scheduler: Scheduler,
    window: int,
    memories: _Memories,
    start: tuple[Mapping[str, int], Sequence[int]],
) -> list[tuple[int, str]]:
    """The list order, with a look at every instruction in every turn."""
    ways = [scheduler.ways(each) for each in body]
    before, reads = _dependences(body)
    left, waiting = [*range(len(body))], [set(each) for each in before]
    free, ready = dict(start[0]), [*start[1]]
    heights = [0] * len(body)
    for position in reversed(left):
        above = max((heights[n] for n, its in enumerate(before) if position in its), default=0)
        own = min(each.duration_ps for each in ways[position].variants)
        heights[position] = own + ways[position].variants[0].latency_ps + above
    needed = [each.variants[0].table for each in ways]
    table = next(filter(None, needed), "")
    result = []

    def load(position: int) -> int:
        is_there = needed[position] in ("", table)
        return 0 if is_there else round(1000 * ARCH.activation_table_load_ns)

    def rank(position: int) -> tuple[int, int, int]:
        its = ways[position]
        gates = [its.issuer] if its.issuer else [each.stream for each in its.variants]
        begin = max(min(free.get(each, 0) for each in gates), ready[position])
        return begin + load(position), -heights[position], position

    while left:
        near = [each for each in left if each < left[0] + window and not waiting[each]]
        fitting = [each for each in near if memories.fits(each)]
        position = min(fitting, key=rank) if fitting else left[0]
        its, issued = ways[position], ready[position]
        if its.issuer:
            issued = max(issued, free.get(its.issuer, 0))
            free[its.issuer] = issued + its.issue_ps
        ends = [max(free.get(v.stream, 0), issued) + v.duration_ps for v in its.variants]
        chosen = its.variants[ends.index(min(ends))]
        end = min(ends) + load(position)
        table = needed[position] or table
        free[chosen.stream] = end
        left.remove(position)
        memories.issue(position)
        result.append((position, chosen.way))
        for other in left:
            if position not in waiting[other]:
                continue
            waiting[other].remove(position)
            in_order = [v.stream for v in ways[other].variants] == [chosen.stream]
            is_seen_at_end = in_order and (position, other) not in reads
            seen = end if is_seen_at_end else end + its.variants[0].latency_ps
            ready[other] = max(ready[other], seen)
    return result


@with_examples(60)
@given(_bodies, st.sampled_from([1, 3, 8, 64]), st.integers(1, 6), st.data())
def test_the_list_order_is_that_of_a_look_at_every_task(
    body: list[Instr], window: int, tiles: int, data: st.DataObject
) -> None:
    scheduler = Scheduler(ARCH, window)
    times = st.sampled_from([0, 100_000, 2_500_000])
    ready = data.draw(st.lists(times, min_size=len(body), max_size=len(body)))
    start = {"vector": data.draw(times), "scalar": data.draw(times)}, ready
    capacity = tiles * ELEMENTS * F32.bytes
    orders = Orders(scheduler.graph(body), {Memory.SBUF: capacity, Memory.PSUM: capacity})
    orders.start_at(*start)
    found = orders.listed(window)
    variants = [scheduler.way_table.variants[number].way for number in found.variants.tolist()]
    expected = _by_definition(body, scheduler, window, _Memories(body, capacity), start)
    assert [*zip(found.nodes.tolist(), variants, strict=True)] == expected


@with_examples(60)
@given(_bodies, st.booleans())
def test_dependences_are_those_of_footprints(body: list[Instr], is_loop: bool) -> None:
    """Of one run whatever the loop's variable is, and of two that follow each other."""
    graph = Scheduler(ARCH, 8).graph(body)
    if is_loop:
        scheduler = Scheduler(ARCH, 8)
        graph = scheduler.graph(body, scheduler.structures.of(body, "i"))
        body = [
            substitute_instruction(each, {}, {"i": Affine((), run)})
            for run in range(2) for each in body
        ]  # fmt: skip
    before, reads = _dependences(body)
    found = graph.next_succ if is_loop else graph.succ
    ends, others, is_read = (column.tolist() for column in found.values())
    edges = {
        (node, others[edge], bool(is_read[edge]))
        for node in range(graph.count) for edge in range(ends[node], ends[node + 1])
    }  # fmt: skip
    assert edges == {
        (source, node, (source, node) in reads)
        for node, sources in enumerate(before) for source in sources if source < graph.count
    }  # fmt: skip


def _repeated_by_definition(
    body: Sequence[Instr], scheduler: Scheduler, issues: Sequence[tuple[int, str]]
) -> int:
    """Picoseconds from one run of an order to the next, each engine and all of DMA in turn."""
    chosen = {n: in_way(body[n], way) for n, way in issues}
    first = {n: scheduler.ways(each) for n, each in chosen.items()}
    runs = [
        substitute_instruction(each, {}, {"i": Affine((), run)})
        for run in range(2)
        for each in body
    ]
    before, reads = _dependences(runs)
    ready, free, table = dict[int, int](), dict[str, int](), ""
    ends = [0]
    for run in range(REPETITIONS):
        for position, _ in issues:
            its = first[position].variants[0]
            begin = ready.get(run * len(body) + position, 0)
            if issuer := first[position].issuer:
                begin = max(begin, free.get(issuer, 0))
                free[issuer] = begin + first[position].issue_ps
            place = resource_of(its.stream, ARCH)
            end = max(free.get(place, 0), begin) + its.duration_ps
            if its.table not in ("", table):
                end, table = end + round(1000 * ARCH.activation_table_load_ns), its.table
            free[place] = end
            for other, sources in enumerate(before):
                if position not in sources:
                    continue
                stream = first[other % len(body)].variants[0].stream
                is_ordered = stream == its.stream and (position, other) not in reads
                seen = end if is_ordered else end + its.latency_ps
                at = run * len(body) + other
                ready[at] = max(ready.get(at, 0), seen)
        ends.append(max(free.values()))
    return ends[-1] - ends[-2]


@with_examples(40)
@given(_bodies, st.sampled_from([3, 64]))
def test_the_time_of_a_repeated_order_is_that_of_its_definition(
    body: list[Instr], window: int
) -> None:
    scheduler = Scheduler(ARCH, window)
    found = repeated_order(body, "i", scheduler, [window])
    assert sorted(position for position, _ in found.issues) == [*range(len(body))]
    expected = _repeated_by_definition(body, scheduler, found.issues)
    assert found.interval_ns == pytest.approx(expected / 1000)


def _store(of: int, engine: str) -> DmaCopy:
    """A transfer to HBM that an engine issues."""
    src = whole_tile(_tile(of))
    dims = ((ELEMENTS, PARTITIONS), (1, ELEMENTS))
    dst = Pattern(Tile("output", Memory.HBM, F32, 1, PARTITIONS * ELEMENTS), F32, dims)
    return DmaCopy(dst=dst, src=src, queue="store", on=engine)


def test_an_engine_waits_for_what_it_stores() -> None:
    """A store right behind what it stores keeps its issuer from the activation after it."""
    scheduler = Scheduler(ARCH, 64)
    free_ps = []
    for issuer in ("sync", "scalar"):
        body = [_instruction("load", 1, 2, 0), _store(1, issuer), _instruction("exp", 4, 5, 0)]
        graph = scheduler.graph(body, scheduler.structures.of(body, "i"))
        orders = scheduler.orders_of(graph, repeats=True)
        orders.repeat(orders.listed(1))
        free_ps.append(orders.record["steady_free"][scheduler.way_table.stream("scalar")])
    assert free_ps[1] > free_ps[0] + 1000 * ARCH.dma_start_ns


def _renamed(body: Sequence[Instr]) -> list[Instr]:
    """The body with other names of tiles and of the loop's variable."""
    names = {p.tile.name: p.tile for each in body for p in each.patterns()}
    tiles = {
        name: Tile(f"other.{name}", t.memory, t.dtype, t.partitions, t.elements)
        for name, t in names.items()
    }
    renamed = (replace_tiles(each, tiles) for each in body)
    return [substitute_instruction(each, {}, {"i": Affine.of("j")}) for each in renamed]


@with_examples(30)
@given(_bodies)
def test_bodies_that_differ_in_names_only_are_ordered_once_and_alike(body: list[Instr]) -> None:
    scheduler, fresh = Scheduler(ARCH, 8), Scheduler(ARCH, 8)
    first, second = (
        repeated_order(body, "i", scheduler, scheduler.windows),
        repeated_order(_renamed(body), "j", scheduler, scheduler.windows),
    )
    assert len(scheduler.orders) == 1
    assert first == second == repeated_order(_renamed(body), "j", fresh, fresh.windows)


@with_examples(60)
@given(_bodies, st.data())
def test_bodies_that_differ_in_what_an_instruction_accesses_have_two_structures(
    body: list[Instr], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(body) - 1))
    dst = next(body[at].written_patterns())
    other = Pattern(dst.tile, F32, dst.dims, dst.offset + 1)
    changed = list(body)
    fields = {"dst": other} | {n: p for n, _, p in body[at].operands() if n != "dst"}
    changed[at] = type(body[at])(**{**_fields(body[at]), **fields})
    structures = Structures()
    assert structures.of(body, "i") != structures.of(changed, "i")


def _fields(instruction: Instr) -> dict[str, object]:
    named = {"queue": instruction.queue, "on": instruction.on}
    return {**instruction.attributes(), **named}


def test_a_loop_that_reads_one_tile_twice_is_not_like_one_that_reads_two() -> None:
    once = [_instruction("copy", 1, 2, 0), _instruction("copy", 4, 2, 0)]
    twice = [_instruction("copy", 1, 2, 0), _instruction("copy", 4, 5, 0)]
    structures = Structures()
    assert structures.of(once, "i") != structures.of(twice, "i")


def test_a_room_ends_with_its_block_also_where_that_raises() -> None:
    scheduler = Scheduler(ARCH, 64)
    before = scheduler.room, list(scheduler.windows)
    with pytest.raises(RuntimeError), scheduler.in_room(4096):
        assert len(scheduler.windows) > len(before[1])
        raise RuntimeError
    assert (scheduler.room, list(scheduler.windows)) == before


def test_a_loop_whose_room_is_not_known_is_ordered_with_the_narrow_window() -> None:
    scheduler = Scheduler(ARCH, 64)
    with scheduler.in_room(0):
        assert list(scheduler.windows) == [64]


def test_what_an_instruction_may_become_depends_on_its_numbers() -> None:
    """Before generation 3 an activation adds no number but 0, so a sum stays on Vector."""
    scheduler = Scheduler(get_target("trn1").arch, 8)
    dst, data = (whole_tile(Tile(name, Memory.SBUF, F32, PARTITIONS, 8)) for name in "ab")
    zero, half = (
        TensorScalar(dst=dst, data=data, operand0=number, op0="add") for number in (0.0, 0.5)
    )
    found = [{each.way for each in scheduler.ways(add).variants} for add in (zero, half)]
    assert AS_ACTIVATION in found[0]
    assert AS_ACTIVATION not in found[1]
    assert len({Structures().of([each], "i") for each in (zero, zero)}) == 1
    structures = Structures()
    assert structures.of([zero], "i") != structures.of([half], "i")
