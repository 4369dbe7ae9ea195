"""Whatever the program: with the inserted waits, streams running concurrently keep its order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glia.base.affine import Affine
from glia.base.dtype import F32
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.sync import Barrier, RegisterAlu, RegisterMove
from glia.isa.instructions.vector import Memset, TensorCopy, TensorTensor
from glia.isa.operand import Pattern, Tile
from glia.machine.columns.table import columns_of
from glia.machine.ir import Branch, Loop, Program, Statement, While
from glia.machine.passes import insert_semaphores as insert_semaphores_module
from glia.machine.passes.double_buffer import double_buffer
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.machine.passes.place import place
from glia.options import CompileOptions
from glia.sim.order.concurrent import Deadlock, Race, run_concurrently, streams_of
from glia.sim.policy import Policy
from support.clean_programs import edited
from support.examples import with_examples
from support.order_oracle import Verdict, judge
from support.timing_programs import program, tile

COLUMNS = 16
ON_CHIP = [tile(name, "SBUF", 4, COLUMNS, F32) for name in "abcd"]
IN_HBM = [tile(name, "HBM", 1, 4 * COLUMNS, F32) for name in "xy"]
ENGINES = ("vector", "gpsimd", "scalar")
QUEUES = {"in": "sync", "out": "gpsimd", "more": "scalar"}


@st.composite
def part(draw: st.DrawFn, of: Tile, variables: tuple[str, ...]) -> Pattern:
    """Four columns of a tile, from a column that may move with the loops."""
    offset = Affine((), draw(st.integers(0, 2)))
    for variable in variables:
        offset = offset + Affine.of(variable) * draw(st.integers(0, 2))
    step = COLUMNS if of.memory.value == "HBM" else 1
    return Pattern(of, F32, ((step, 4), (1, 4)), offset)


@st.composite
def instruction(draw: st.DrawFn, variables: tuple[str, ...]) -> Statement:
    chip = st.sampled_from(ON_CHIP).flatmap(lambda t: part(t, variables))
    hbm = st.sampled_from(IN_HBM).flatmap(lambda t: part(t, variables))
    kind = draw(st.sampled_from(["set", "copy", "add", "load", "store"]))
    if kind in ("load", "store"):
        queue = draw(st.sampled_from(sorted(QUEUES)))
        ends = (draw(chip), draw(hbm))
        dst, src = ends if kind == "load" else ends[::-1]
        return DmaCopy(dst=dst, src=src, queue=queue, on=QUEUES[queue])
    engine = draw(st.sampled_from(ENGINES))
    if kind == "set":
        return Memset(dst=draw(chip), value=draw(st.integers(0, 9)), on=engine)
    if kind == "copy":
        return TensorCopy(dst=draw(chip), src=draw(chip), on=engine)
    return TensorTensor(
        dst=draw(chip), data1=draw(chip), data2=draw(chip), op="add",
        on="gpsimd" if engine == "gpsimd" else "vector",
    )  # fmt: skip


@st.composite
def statement(draw: st.DrawFn, variables: tuple[str, ...]) -> list[Statement]:
    """One statement, with what sets its register."""
    kinds = ["instruction"] * 8 + ["barrier"]
    kinds += ["loop", "loop", "loop", "branch", "while"] if len(variables) < 2 else []
    kind = draw(st.sampled_from(kinds))
    if kind == "loop":
        name = f"i{len(variables)}"
        return [Loop(name, draw(st.integers(1, 3)), draw(block((*variables, name))))]
    if kind == "branch":
        chosen = RegisterMove(register="arm", value=draw(st.integers(0, 1)))
        return [chosen, Branch("arm", (draw(block(variables)), draw(block(variables))))]
    if kind == "while":
        left = f"left{len(variables)}"
        count = RegisterAlu(register=left, op="subtract", a=Affine.of(f"${left}"), b=1)
        inside = draw(st.lists(instruction(variables), max_size=3))
        start = RegisterMove(register=left, value=draw(st.integers(1, 3)))
        return [start, While((*inside, count), left, tuple(draw(st.lists(instruction(variables)))))]
    return [Barrier() if kind == "barrier" else draw(instruction(variables))]


@st.composite
def block(draw: st.DrawFn, variables: tuple[str, ...] = ()) -> tuple[Statement, ...]:
    """A few statements; loops nest twice."""
    groups = draw(st.lists(statement(variables), min_size=1, max_size=5))
    return tuple(each for group in groups for each in group)


@st.composite
def straight(draw: st.DrawFn) -> tuple[Statement, ...]:
    """A block without run-time control flow, in loops of at most three trips."""

    def only(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        kept = [s for s in body if not isinstance(s, While | Branch)]
        return tuple(
            replace(s, body=only(s.body) or (Barrier(),)) if isinstance(s, Loop) else s
            for s in kept
        )

    return only(draw(block()))


@st.composite
def line(draw: st.DrawFn) -> tuple[Statement, ...]:
    """Instructions without control flow, on tiles whose places no variable moves."""
    return tuple(draw(st.lists(instruction(()), min_size=1, max_size=40)))


def aliased(of: Program, starts: list[int]) -> Program:
    """The program with its tiles on chip at these addresses, which may overlap."""
    names = [name for name, each in of.tiles.items() if each.memory.value != "HBM"]
    return replace(of, addresses={**of.addresses, **dict(zip(names, starts, strict=False))})


@with_examples(150)
@given(body=line(), starts=st.lists(st.integers(0, 5).map(lambda n: 32 * n), max_size=4))
def test_straight_programs_get_the_same_waits_in_machine_code(
    body: tuple[Statement, ...], starts: list[int]
) -> None:
    of = aliased(place(program(*body)), starts)
    ways = []
    for few in (-1, 1 << 30):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(insert_semaphores_module, "FEW_INSTRUCTIONS", few)
            ways.append(insert_semaphores(replace(of)))
    assert ways[0].body == ways[1].body
    for columns in map(columns_of, ways):
        names = [columns.semaphores[number] for number in columns.waits.semaphore.tolist()]
        assert names == [wait.semaphore for each in ways[0].instructions() for wait in each.waits]
        assert columns.signals.semaphore.size == len(ways[0].body)


def first_column(of: Tile, columns: int) -> Pattern:
    return Pattern(of, F32, ((1, 4), (1, 4)), Affine.of(columns))


A, B, C, _ = ON_CHIP
SHARED = {
    "the inner one is read first": ((B, 0), (A, 0), (C, 0), (A, 8)),
    "the outer one is read first": ((A, 8), (B, 4), (C, 0), (B, 0)),
    "the inner one is written": ((A, 8), (A, 12), (B, 0), (B, 4)),
    "the outer one is written": ((B, 0), (B, 4), (A, 0), (A, 8)),
}


@pytest.mark.parametrize("few", [-1, 1 << 30], ids=["native", "python"])
@pytest.mark.parametrize("begin", [16, 32])
@pytest.mark.parametrize("case", SHARED)
def test_operands_of_one_instruction_may_share_bytes(
    case: str, begin: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it reads of one tile is known to who writes it by the name of another.

    The inner tile begins `begin` bytes after the outer one.
    """
    monkeypatch.setattr(insert_semaphores_module, "FEW_INSTRUCTIONS", few)
    inner = replace(B, elements=8)
    places = [first_column(inner if t is B else t, column) for t, column in SHARED[case]]
    one, other, target, later = places
    addresses = {"a": 0, "b": begin, "c": 128}
    begun = [[addresses[p.tile.name] + 4 * p.offset.constant for p in each] for each in (
        (one, other), (later,),
    )]  # fmt: skip
    body = (
        TensorTensor(dst=target, data1=one, data2=other, op="add", on="gpsimd"),
        Memset(dst=later, value=1, on="vector"),
    )
    of = replace(program(*body), tiles={t.name: t for t in (A, inner, C)}, addresses=addresses)
    meets = any(abs(at - begun[1][0]) < 16 for at in begun[0])
    found = insert_semaphores(of)
    assert bool(found.body[1].waits) or not meets  # type: ignore[union-attr]
    check(found)


@with_examples(60)
@given(
    body=line(), starts=st.lists(st.integers(0, 4).map(lambda n: 16 * n), min_size=4, max_size=4)
)
def test_tiles_anywhere_on_each_other_keep_program_order(
    body: tuple[Statement, ...], starts: list[int]
) -> None:
    of = aliased(place(program(*body)), starts)
    for few in (-1, 1 << 30):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(insert_semaphores_module, "FEW_INSTRUCTIONS", few)
            check(insert_semaphores(replace(of)))


def check(of: Program) -> None:
    """Keep back each stream in turn; Race and Deadlock fail the test."""
    for seed in range(len(streams_of(of))):
        run_concurrently(of, {}, seed=seed, policy=Policy(poison=None))


@with_examples(80)
@given(body=block())
def test_inserted_waits_keep_program_order(body: tuple[Statement, ...]) -> None:
    check(insert_semaphores(place(program(*body))))


@with_examples(30)
@given(body=block())
def test_double_buffers_are_kept_in_order_too(body: tuple[Statement, ...]) -> None:
    check(insert_semaphores(place(double_buffer(program(*body), CompileOptions()))))


@with_examples(60)
@given(body=block(), addresses=st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_tiles_may_share_memory(body: tuple[Statement, ...], addresses: list[int]) -> None:
    placed = {t.name: 32 * a for t, a in zip(ON_CHIP, addresses, strict=True)}
    placed |= {t.name: 1024 * i for i, t in enumerate(IN_HBM)}
    check(insert_semaphores(replace(program(*body), addresses=placed)))


def verdict(of: Program, seed: int) -> Verdict:
    """What a single run finds."""
    try:
        run_concurrently(of, {}, seed=seed, policy=Policy(poison=None))
    except Race:
        return Verdict.RACE
    except Deadlock:
        return Verdict.DEADLOCK
    return Verdict.CLEAN


@with_examples(60)
@given(body=straight(), data=st.data())
def test_clocks_say_what_all_pairs_of_accesses_say(
    body: tuple[Statement, ...], data: st.DataObject
) -> None:
    """Of random programs with any of their waits left out, in one run of any order."""
    synchronised = insert_semaphores(place(program(*body)))
    broken = synchronised
    for instr in list(synchronised.instructions()):
        if instr.waits and data.draw(st.booleans()):
            kept = tuple(wait for wait in instr.waits if data.draw(st.booleans()))
            broken = edited(broken, instr, replace(instr, waits=kept))
    seed = data.draw(st.integers(0, 1000))
    assert verdict(broken, seed) is judge(broken)
    assert verdict(synchronised, seed) is Verdict.CLEAN is judge(synchronised)
