"""The order of list scheduling is that of its definition, and bodies alike are ordered alike."""

from __future__ import annotations

from collections.abc import Sequence

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
from glia.machine.instruction_rewriting import replace_tiles, substitute_instruction
from glia.machine.ordering.list_order import Issue, StartState, list_order
from glia.machine.ordering.memory_pressure import MemoryPressure
from glia.machine.ordering.repeated_order import _Repetition, repeated_order
from glia.machine.ordering.structure import Structures
from glia.machine.ordering.tasks import AS_ACTIVATION, Task
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


def _by_definition(
    tasks: Sequence[Task],
    window: int,
    pressures: Sequence[MemoryPressure],
    scheduler: Scheduler,
    start_state: StartState,
) -> list[Issue]:
    """What `list_order` gives, with a look at every task in every turn."""
    left = [task.position for task in tasks]
    waiting = [task.waiting_for for task in tasks]
    heights, ready, free = [0.0] * len(tasks), [*start_state.ready_ns], dict(start_state.free_ns)
    for task in reversed(tasks):
        above = max((heights[each] for each in task.successors), default=0.0)
        heights[task.position] = min(task.durations) + task.latency + above
    table = next((task.table for task in tasks if task.table), "")
    result = []

    def rank(position: int) -> tuple[float, float, int]:
        task = tasks[position]
        start = max(min(free.get(each, 0.0) for each in task.gates), ready[position])
        load = scheduler.table_load_ns(task.table, table)
        return start + load, -heights[position], position

    while left:
        near = [each for each in left if each < left[0] + window and not waiting[each]]
        tight = [each for each in pressures if each.may_overflow()]
        fitting = [n for n in near if all(each.has_capacity(n) for each in tight)]
        task = tasks[min(fitting, key=rank) if fitting else left[0]]
        issued = ready[task.position]
        if task.issuer:
            issued = max(issued, free.get(task.issuer, 0.0))
            free[task.issuer] = issued + task.issue_ns
        ends = [
            max(free.get(stream, 0.0), issued) + duration
            for stream, duration in zip(task.streams, task.durations, strict=True)
        ]
        number = ends.index(min(ends))
        end = ends[number] + scheduler.table_load_ns(task.table, table)
        table = task.table or table
        free[task.streams[number]] = end
        left.remove(task.position)
        for pressure in pressures:
            pressure.issue(task.position)
        result.append(Issue(task, number))
        for each in task.successors:
            waiting[each] -= 1
            seen = task.seen_ns(tasks[each], task.streams[number], end)
            ready[each] = max(ready[each], seen)
    return result


@with_examples(60)
@given(_bodies, st.sampled_from([1, 3, 8, 64]), st.integers(1, 6), st.data())
def test_the_list_order_is_that_of_a_look_at_every_task(
    body: list[Instr], window: int, tiles: int, data: st.DataObject
) -> None:
    scheduler = Scheduler(ARCH, window)
    tasks = scheduler.tasks(body)
    times = st.sampled_from([0.0, 100.0, 2500.0])
    ready_ns = data.draw(st.lists(times, min_size=len(body), max_size=len(body)))
    start = StartState({"vector": data.draw(times), "scalar": data.draw(times)}, ready_ns)

    def pressures() -> list[MemoryPressure]:
        capacity = tiles * ELEMENTS * F32.bytes
        return [
            MemoryPressure(body, memory, capacity, ARCH, ())
            for memory in (Memory.SBUF, Memory.PSUM)
        ]

    found = list_order(tasks, window, pressures(), scheduler.table_load_ns, start)
    expected = _by_definition(tasks, window, pressures(), scheduler, start)
    assert [(n.task.position, n.way) for n in found] == [(n.task.position, n.way) for n in expected]


def _store(of: int, engine: str) -> DmaCopy:
    """A transfer to HBM that an engine issues."""
    src = whole_tile(_tile(of))
    dims = ((ELEMENTS, PARTITIONS), (1, ELEMENTS))
    dst = Pattern(Tile("output", Memory.HBM, F32, 1, PARTITIONS * ELEMENTS), F32, dims)
    return DmaCopy(dst=dst, src=src, queue="store", on=engine)


def test_an_engine_waits_for_what_it_stores() -> None:
    """A store right behind what it stores keeps its issuer from the activation after it."""
    scheduler = Scheduler(ARCH, 64)
    free_ns = []
    for issuer in ("sync", "scalar"):
        body = [_instruction("load", 1, 2, 0), _store(1, issuer), _instruction("exp", 4, 5, 0)]
        repetition = _Repetition(body, "i", scheduler, moves_sums=False)
        steady = repetition.run(scheduler.tasks(body))
        free_ns.append(steady.free_ns["scalar"])
    assert free_ns[1] > free_ns[0] + ARCH.dma_start_ns


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
    assert AS_ACTIVATION in scheduler.task(0, zero).ways
    assert AS_ACTIVATION not in scheduler.task(1, half).ways
    keys = {Structures().of([each], "i").key for each in (zero, zero)}
    structures = Structures()
    assert len(keys) == 1
    assert structures.of([zero], "i").key != structures.of([half], "i").key
