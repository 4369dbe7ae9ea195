"""What the plan of a program's timing says is what its instructions say, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glia.arch import Arch, get_target
from glia.base.affine import Affine
from glia.base.dtype import BF16, F32
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.sync import RegisterMove
from glia.isa.instructions.tensor import NcMatmul
from glia.isa.instructions.vector import TensorCopy, TensorTensor
from glia.isa.kit import ENGINES, Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Branch, Loop, Program, Statement, While, walk
from glia.timing import instruction_tables
from glia.timing import producers as writers
from glia.timing.costs import cost_of
from glia.timing.plan import TimingPlan, make_plan
from support.examples import with_examples
from support.generated_programs import AFFINE, instructions, program, programs

TRN1, TRN2 = (get_target(name).arch for name in ("trn1", "trn2"))
ARCHS = st.sampled_from((TRN1, TRN2))


def assert_costs_are_those_of_each_instruction(plan: TimingPlan, arch: Arch) -> None:
    """The cost that instructions share is what each costs when asked alone."""
    for step, instr in enumerate(plan.columns.instructions):
        planned = plan.cost(step)
        alone = cost_of(instr, arch, planned.number, planned.queue)
        for field in fields(alone):
            assert getattr(planned, field.name) == getattr(alone, field.name), instr
        if planned.queue >= 0:
            assert plan.queues[planned.queue] == (instr.queue or f"of {instr.runs_on}")


@given(programs(), ARCHS)
@with_examples(30)
def test_costs_are_those_of_each_instruction(tested, arch):
    assert_costs_are_those_of_each_instruction(make_plan(tested, arch), arch)


@given(instructions(), st.data())
@with_examples(40)
def test_what_costs_are_not_told_apart_by_does_not_matter(instr, data):
    """Places within tiles, names of tiles and expressions among attributes cost nothing."""
    changed: dict[str, object] = {}
    for name, value in vars(instr).items():
        if isinstance(value, Pattern):
            tile = replace(value.tile, name=data.draw(st.sampled_from("xyz")))
            offset = Affine.build(dict(value.offset.terms), data.draw(st.integers(0, 512)))
            changed[name] = replace(value, tile=tile, offset=offset)
        elif isinstance(value, Affine):
            changed[name] = data.draw(AFFINE)
    plan = make_plan(program([instr, replace(instr, **changed)]), TRN2)
    assert plan.costs.number.tolist() == [0, 0]
    assert_costs_are_those_of_each_instruction(plan, TRN2)


def test_a_cost_that_depends_on_a_place_is_found(monkeypatch: pytest.MonkeyPatch):
    """The check above sees an instruction whose cost depends on what is left out."""
    monkeypatch.setattr(TensorCopy, "cycles", lambda self, _: 64 + self.dst.offset.constant)
    copies = [copy("vector", part("a", 0), part("b", start)) for start in (0, 8)]
    with pytest.raises(AssertionError):
        assert_costs_are_those_of_each_instruction(make_plan(program(copies), TRN2), TRN2)


def part(
    name: str,
    start: Affine | int,
    count: int = 8,
    *,
    partition: Affine | int = 0,
    dtype: object = F32,
    memory: str = "SBUF",
) -> Pattern:
    tile = Tile(name, Memory(memory), F32, 128, 2048)
    dims = ((1, 16), (1, count))
    return Pattern(tile, dtype, dims, Affine.of(start), Affine.of(partition))  # type: ignore[arg-type]


def copy(engine: str, src: Pattern, dst: Pattern) -> Instr:
    return TensorCopy(dst=dst, src=src, on=engine)


# Mostly writers and readers of a few places of a few tiles, some of them moving with loops
STARTS = st.one_of(
    st.integers(0, 80),
    st.sampled_from([Affine.of("i") * 4, Affine.of("j") * 16, Affine.of("$r") + 3]),
)
PARTS = st.builds(
    part,
    st.sampled_from("ab"),
    STARTS,
    st.sampled_from([1, 8, 24]),
    partition=st.sampled_from([0, 0, 32]),
    dtype=st.sampled_from([F32, F32, BF16]),
)
BANKS = st.builds(part, st.just("p"), STARTS, memory=st.just("PSUM"))
SIMPLE: st.SearchStrategy[Statement] = st.one_of(
    st.builds(copy, st.sampled_from(["vector", "scalar", "gpsimd"]), PARTS, PARTS),
    st.builds(TensorTensor, dst=PARTS, data1=PARTS, data2=PARTS, op=st.just("add")),
    st.builds(DmaCopy, dst=PARTS, src=PARTS, queue=st.just("q")),
    st.builds(NcMatmul, dst=BANKS, stationary=PARTS, moving=PARTS),
    st.builds(
        RegisterMove,
        register=st.just("r"),
        value=st.integers(0, 9),
        on=st.sampled_from(["vector", "scalar"]),
    ),
)


def _controls(inside: st.SearchStrategy[Statement]) -> st.SearchStrategy[Statement]:
    blocks = st.lists(inside, max_size=5).map(tuple)
    return st.one_of(
        st.builds(Loop, st.sampled_from("ij"), st.integers(1, 3), blocks),
        st.builds(While, blocks, st.just("r"), blocks),
        st.builds(Branch, st.just("r"), st.lists(blocks, max_size=2).map(tuple)),
    )


BODIES = st.lists(st.recursive(SIMPLE, _controls, max_leaves=12), max_size=12)


class Reference:
    """The writers that each step needs, from the objects and without any table."""

    def __init__(self, tested: Program) -> None:
        self.needed: list[list[int]] = []
        self.writers: dict[tuple[str, str], dict[object, tuple[int, Pattern]]] = {}
        self.registers: dict[tuple[str, str], int] = {}
        self.block(tested.body)

    def block(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                if statement.trips > 1:
                    for number, instr in enumerate(walk(statement.body), len(self.needed)):
                        self.remember(number, instr)
                self.block(statement.body)
            elif isinstance(statement, While):
                self.block(statement.condition + statement.body)
            elif isinstance(statement, Branch):
                for arm in statement.arms:
                    self.block(arm)
            else:
                found = {number for number in self.found(statement) if number >= 0}
                self.remember(len(self.needed), statement)
                self.needed.append(sorted(found))

    def found(self, instr: Instr) -> Iterator[int]:
        here, engine = len(self.needed), instr.runs_on
        for name, _, pattern in instr.operands():
            for variable in pattern.offset.variables + pattern.partition.variables:
                yield self.registers.get((engine, variable), -1)
            if instr.access(name) == "writes" or instr.arrives_by_dma or engine == "tensor":
                continue
            written = self.writers.get((engine, pattern.tile.name), {}).values()
            overlapping = [number for number, other in written if overlap(pattern, other)]
            yield max((number for number in overlapping if number < here), default=-1)
            yield max((number for number in overlapping if number >= here), default=-1)

    def remember(self, number: int, instr: Instr) -> None:
        if isinstance(instr, RegisterMove):
            self.registers[instr.runs_on, "$" + instr.register] = number
        if instr.arrives_by_dma or instr.runs_on == "tensor":
            return
        for pattern in instr.written_patterns():
            known = self.writers.setdefault((instr.runs_on, pattern.tile.name), {})
            known.pop(replace(pattern, tile=None), None)
            known[replace(pattern, tile=None)] = number, pattern
            if len(known) > writers.REMEMBERED:
                del known[next(iter(known))]


def overlap(one: Pattern, other: Pattern) -> bool:
    """Whether two patterns may share an element: unless known starts lie too far apart."""

    def apart(a: Affine, length: int, b: Affine, other_length: int) -> bool:
        distance = a.constant - b.constant
        return a.terms == b.terms and (distance >= other_length or -distance >= length)

    return one.dtype is not other.dtype or not (
        apart(one.partition, one.partitions, other.partition, other.partitions)
        or apart(one.offset, one.free, other.offset, other.free)
    )


def needed(plan: TimingPlan) -> list[list[int]]:
    begin = plan.steps["step_read"]
    spans = zip(begin[:-1].tolist(), begin[1:].tolist(), strict=True)
    return [plan.steps["read_step"][first:end].tolist() for first, end in spans]


@given(BODIES)
@with_examples(100)
def test_steps_need_the_last_writers_of_what_they_read(body):
    tested = program(body)
    assert needed(make_plan(tested, TRN2)) == Reference(tested).needed


def test_only_the_last_places_of_a_tile_are_remembered():
    fills = [copy("vector", part("b", 0), part("a", 8 * n)) for n in range(writers.REMEMBERED + 1)]
    again = [*fills[:1], copy("vector", part("a", 0), part("b", 0)), *fills[1:2]]
    reads = [copy("vector", part("a", 8 * n), part("c", n)) for n in (0, 1, 2, 3)]
    found = needed(make_plan(program([*fills, *again, *reads]), TRN2))
    count = len(fills)
    assert found[-4:] == [[count], [count + 2], [], [3]]


@given(BODIES)
@with_examples(20)
def test_writers_are_found_alike_in_python_and_compiled(body):
    found = []
    for few in (-1, 1 << 62):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(instruction_tables, "FEW_STEPS", few)
            found.append(needed(make_plan(program(body), TRN2)))
    assert found[0] == found[1]


def scopes(body: tuple[Statement, ...], known: dict[str, int]) -> Iterator[dict[str, int]]:
    """For every instruction in program order, which loop a variable is; loops count from 0."""
    for statement in body:
        if isinstance(statement, Loop):
            known["loops"] += 1
            inner = {**known, statement.variable: known["loops"]}
            yield from scopes(statement.body, inner)
            known["loops"] = inner["loops"]
        elif isinstance(statement, While):
            yield from scopes(statement.condition + statement.body, known)
        elif isinstance(statement, Branch):
            for arm in statement.arms:
                yield from scopes(arm, known)
        else:
            yield dict(known)


@given(programs())
@with_examples(40)
def test_waits_name_the_loops_around_them(tested):
    plan = make_plan(tested, TRN2)
    known = list(scopes(tested.body, {"loops": -1}))
    for step, instr in enumerate(tested.instructions()):
        found = plan.waits_in((step, step + 1))
        assert [plan.semaphores[wait.semaphore] for wait in found] == [
            wait.semaphore for wait in instr.waits
        ]
        for planned, wait in zip(found, instr.waits, strict=True):
            slots = [(known[step][v], c) for v, c in wait.value.terms if v in known[step]]
            assert (planned.constant, planned.terms) == (wait.value.constant, slots)
            assert planned.is_unknown == (len(slots) < len(wait.value.terms))
            assert (planned.step, ENGINES[planned.engine]) == (step, instr.runs_on)


@given(BODIES, ARCHS, st.integers(0, 3))
@with_examples(40)
def test_weights_ports_and_what_is_spoilt(body, arch, bank):
    """Compared with the patterns of every instruction."""
    tested = replace(program(body), addresses={"p": bank * arch.psum_bank_bytes})
    plan = make_plan(tested, arch)
    listed, steps = plan.columns.instructions, plan.steps
    held = {i.stationary.tile.name for i in listed if isinstance(i, NcMatmul)}
    numbers: dict[object, int] = {}
    for step, instr in enumerate(listed):
        spoilt = [p.tile.name for p in instr.written_patterns() if p.tile.name in held]
        assert (steps["spoils"][step] >= 0) == bool(spoilt)
        ports = set()
        for _, _, pattern in instr.operands():
            if instr.runs_on == "tensor" or instr.arrives_by_dma:
                continue
            in_psum = pattern.memory is Memory.PSUM and instr.runs_on in ("vector", "scalar")
            if arch is TRN1 and pattern.memory is Memory.SBUF and instr.runs_on != "scalar":
                ports.add(0)
            if in_psum and arch is TRN1:
                ports.add(1)
            elif in_psum and not pattern.offset.terms:
                ports.add(1 + (bank + pattern.offset.constant * 4 // arch.psum_bank_bytes) % 8)
        assert steps["ports"][step] == sum(1 << port for port in ports)
        if isinstance(instr, NcMatmul):
            weights = instr.stationary
            key = weights.tile.name, weights.dims, weights.dtype
            number = int(steps["weights"][step])
            assert numbers.setdefault(key, number) == number
            place = weights.offset + weights.partition * weights.tile.elements
            assert steps["weights_place"][step] == place.constant
        else:
            assert steps["weights"][step] == -1
    assert len(set(numbers.values())) == len(numbers)
