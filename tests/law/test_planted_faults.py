"""Every planted fault is caught, and what is right raises no alarm, whatever the order of a run."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice

import numpy as np
import pytest

import glia
from glia.arch import get_target
from glia.base.affine import Affine
from glia.base.errors import CompileError, InternalError
from glia.frontend.hlo import import_hlo
from glia.isa.instructions.sync import Barrier, RegisterAlu
from glia.isa.operand import Signal, Tile, Wait
from glia.kernels.layernorm import layernorm
from glia.kernels.softmax import softmax
from glia.kernels.tensor_add import tensor_add
from glia.machine import ProgramBuilder
from glia.machine.builder.errors import BrokenProgram, IllegalInstruction
from glia.machine.ir import Loop, Program, While
from glia.machine.legal import program_violations, verify
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.sim.order.concurrent import Deadlock, Race, run_concurrently
from glia.sim.order.race import UnsetRegister
from glia.sim.policy import (
    AccessOutOfBounds,
    ExecutionFault,
    MalformedProgram,
    Policy,
    StaleRead,
    UninitializedRead,
)
from glia.sim.run import run
from glia.sim.watchdog import EndlessLoop
from support.clean_programs import (
    Arrays,
    Clean,
    changed,
    clean,
    edited,
    with_a_lower_count,
    with_neighbours_exchanged,
    without_one_wait,
)
from support.corpus import PROGRAMS, hlo_bytes
from support.corpus import Program as Source
from support.order_oracle import Verdict, judge

STRICT = Policy(check_initialized=True, most_iterations=50)
SEEDS = 50
CLEAN = clean()
STRAIGHT = {name: each for name, each in CLEAN.items() if name != "branches"}


def found_in(program: Program, inputs: Arrays, seed: int = 0) -> Exception | None:
    """What verification or one concurrent run has to say against a program."""
    try:
        verify(program)
        run_concurrently(program, inputs, seed=seed, policy=STRICT)
    except (ExecutionFault, CompileError, InternalError) as fault:
        return fault
    return None


@pytest.mark.parametrize("name", CLEAN)
def test_what_is_right_raises_no_alarm(name: str) -> None:
    program, inputs = CLEAN[name].program, CLEAN[name].inputs
    verify(program)
    expected = run(program, inputs, policy=STRICT)
    seeds = random.Random(name).sample(range(1 << 30), SEEDS)
    for seed in seeds:
        found = run_concurrently(program, inputs, seed=seed, policy=STRICT)
        for output, value in expected.items():
            np.testing.assert_array_equal(found[output], value)


def compiled(source: Source) -> Clean | None:
    """A program of the compiler's corpus; None when its inputs are not those of its machine."""
    program = run_pipeline(import_hlo(hlo_bytes(source)), CompileOptions(auto_cast="none"))
    arrays = [np.asarray(each) for each in source.arguments]
    pairs = list(zip(program.inputs, arrays, strict=True))
    if any(binding.shape != array.shape for binding, array in pairs):
        return None
    return Clean(program, {binding.name: array for binding, array in pairs})


COMPILED = ("batched", "cond", "mlp", "rms_norm", "scatter_add")


@pytest.mark.parametrize("name", COMPILED)
def test_what_the_compiler_makes_raises_no_alarm(name: str) -> None:
    made = compiled(next(source for source in PROGRAMS if source.name == name))
    assert made is not None
    expected = run(made.program, made.inputs, policy=STRICT)
    for seed in random.Random(name).sample(range(1 << 30), SEEDS):
        found = run_concurrently(made.program, made.inputs, seed=seed, policy=STRICT)
        for output, value in expected.items():
            np.testing.assert_array_equal(found[output], value)


KERNELS = {
    "softmax": (softmax, [(32, 64)]),
    "layernorm": (layernorm, [(32, 64), (64,), (64,)]),
    "tensor_add": (tensor_add, [(32, 64), (32, 64)]),
}


@pytest.mark.parametrize("name", KERNELS)
def test_what_kernels_become_raises_no_alarm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, shapes = KERNELS[name]
    rng = np.random.default_rng(5)
    arrays = [rng.random(shape, np.float32) for shape in shapes]
    neff = kernel.compile(*arrays)
    (expected,) = glia.load(neff, device="reference")(*arrays)
    for seed in range(SEEDS):
        monkeypatch.setenv("NEURON_SIM_SEED", str(seed))
        (found,) = glia.load(neff, device="adversarial")(*arrays)
        np.testing.assert_array_equal(found, expected)


Vary = Callable[[Program], Iterator[tuple[str, Program]]]
VARIANTS: tuple[Vary, ...] = (
    without_one_wait,
    with_a_lower_count,
    with_neighbours_exchanged,
)


def verdict_of(program: Program, inputs: Arrays, seed: int) -> Verdict:
    """What a run finds, in the words of the oracle."""
    try:
        run_concurrently(program, inputs, seed=seed)
    except Race:
        return Verdict.RACE
    except Deadlock:
        return Verdict.DEADLOCK
    return Verdict.CLEAN


def registers_of(each: Clean) -> dict[str, int]:
    return {"$r": int(each.inputs["which"][0])} if "which" in each.inputs else {}


@cache
def judged(name: str, vary: Vary) -> list[tuple[str, Program, Verdict]]:
    """Every legal variant of a clean program, and what the oracle says of it."""
    each = STRAIGHT[name]
    found = []
    for text, program in vary(each.program):
        if not list(program_violations(program, get_target(program.target))):
            found.append((text, program, judge(program, registers_of(each))))
    return found


@pytest.mark.parametrize("vary", VARIANTS, ids=lambda vary: vary.__name__)
@pytest.mark.parametrize("name", STRAIGHT)
def test_one_run_says_what_all_pairs_of_accesses_say(name: str, vary: Vary) -> None:
    """Of programs with one fault in their synchronisation, whichever order the run takes."""
    wrong = []
    for number, (text, program, expected) in enumerate(judged(name, vary)):
        found = verdict_of(program, STRAIGHT[name].inputs, seed=number)
        if found is not expected:
            wrong.append(f"{text}: {found}, not {expected}")
    assert not wrong, "\n".join(["", *wrong])


def test_programs_that_lack_a_wait_are_many_and_mostly_race() -> None:
    verdicts = [verdict for name in STRAIGHT for *_, verdict in judged(name, without_one_wait)]
    assert verdicts.count(Verdict.RACE) > 25
    assert Verdict.DEADLOCK not in verdicts


@dataclass(frozen=True)
class Fault:
    """A program made wrong: by a change of a clean one, or built so."""

    plant: Callable[[], tuple[Program, Arrays]]
    raises: type[Exception] | tuple[type[Exception], ...]
    says: str


def planted(name: str, plant: Callable[[Program], Program]) -> Callable[[], tuple[Program, Arrays]]:
    each = CLEAN[name]
    return lambda: (plant(each.program), each.inputs)


def edit(name: str, position: int, **fields: object) -> Callable[[], tuple[Program, Arrays]]:
    return planted(name, lambda program: changed(program, position, **fields))


def no_wait(name: str, position: int) -> Callable[[], tuple[Program, Arrays]]:
    return edit(name, position, waits=())


def left_out(name: str, position: int) -> Callable[[], tuple[Program, Arrays]]:
    def plant(program: Program) -> Program:
        return edited(program, list(program.instructions())[position])

    return planted(name, plant)


def resized(name: str, tile: str, **sizes: int) -> Callable[[], tuple[Program, Arrays]]:
    """A tile with less room, in the declaration and in every pattern."""

    def plant(program: Program) -> Program:
        smaller: Tile = replace(program.tiles[tile], **sizes)
        for instr in list(program.instructions()):
            changes = {
                operand: replace(pattern, tile=smaller)
                for operand, _, pattern in instr.operands()
                if pattern.tile.name == tile
            }
            if changes:
                program = edited(program, instr, replace(instr, **changes))
        return replace(program, tiles={**program.tiles, tile: smaller})

    return planted(name, plant)


def moved(name: str, **addresses: int) -> Callable[[], tuple[Program, Arrays]]:
    return planted(
        name, lambda program: replace(program, addresses={**program.addresses, **addresses})
    )


def pattern_of(name: str, position: int, operand: str, **fields: object) -> Callable[..., object]:
    """A fault in one access pattern."""

    def plant(program: Program) -> Program:
        instr = list(program.instructions())[position]
        return changed(program, position, **{operand: replace(getattr(instr, operand), **fields)})

    return planted(name, plant)


def given(name: str, **inputs: object) -> Callable[[], tuple[Program, Arrays]]:
    """A clean program on inputs that name what is not there."""
    each = CLEAN[name]
    arrays = {
        key: np.asarray(value, each.inputs[key].dtype).reshape(each.inputs[key].shape)
        for key, value in inputs.items()
    }
    return lambda: (each.program, {**each.inputs, **arrays})


def built(write: Callable[[ProgramBuilder], object]) -> Callable[[], tuple[Program, Arrays]]:
    def plant() -> tuple[Program, Arrays]:
        b = ProgramBuilder("built")
        write(b)
        program = b.finish()
        return program, {
            each.name: np.ones(each.shape, each.dtype.numpy) for each in program.inputs
        }

    return plant


def _stuck_loop(program: Program) -> Program:
    """The while loop's register is never lowered."""
    (count,) = [i for i in program.instructions() if isinstance(i, RegisterAlu)]
    return edited(program, count, replace(count, b=0))


def _without_barrier(position: int) -> Callable[[Program], Program]:
    def plant(program: Program) -> Program:
        barriers = [i for i in program.instructions() if isinstance(i, Barrier)]
        body = program.body
        if position == 0:
            return replace(program, body=tuple(s for s in body if s is not barriers[0]))
        loop = next(s for s in body if isinstance(s, While))
        shorter = replace(loop, condition=loop.condition[:-1])
        return replace(program, body=tuple(shorter if s is loop else s for s in body))

    return plant


def _loop_of(program: Program, trips: int) -> Program:
    (loop,) = [s for s in program.body if isinstance(s, Loop)]
    return replace(program, body=(replace(loop, trips=trips),))


def _half_loaded(b: ProgramBuilder) -> None:
    x, y, t = b.input("x", (32, 8)), b.output("y", (32, 8)), b.sbuf((32, 8), name="t")
    b.dma_copy(t[:, :4], x[:, :4])
    b.dma_copy(y, t)


def _sum_of_nothing(b: ProgramBuilder) -> None:
    x, y = b.input("x", (32, 32)), b.output("y", (32, 32))
    t, total = b.sbuf((32, 32), name="t"), b.psum((32, 32), name="total")
    b.dma_copy(t, x)
    b.nc_matmul(total, t, t, accumulate=True)
    b.dma_copy(y, total)


def _reads_a_tile_that_is_gone(b: ProgramBuilder) -> None:
    x, y = b.input("x", (32, 8)), b.output("y", (32, 8))
    old, new = b.sbuf((32, 8), name="old", at=0), b.sbuf((32, 8), name="new", at=16)
    b.dma_copy(old, x)
    b.memset(new, 1.0)
    b.dma_copy(y, old)


def _overwrites_a_constant(program: Program) -> Program:
    """The table that is gathered from becomes a constant, and rows are scattered to it."""
    table = program.tiles["y"]
    zeros = np.zeros(table.elements, np.float32)
    return replace(program, constants={"y": zeros}, outputs=())


def _reads_scratch_in_hbm(b: ProgramBuilder) -> None:
    y, scratch = b.output("y", (32, 8)), b.hbm((32, 8), name="scratch")
    b.dma_copy(y, scratch)


def _sums_that_share_a_bank(b: ProgramBuilder) -> None:
    x, y = b.input("x", (32, 32)), b.output("y", (2, 32, 32))
    t = b.sbuf((32, 32), name="t")
    one, two = b.psum((32, 32), name="one", at=0), b.psum((32, 32), name="two", at=64)
    b.dma_copy(t, x)
    b.nc_matmul(one, t, t)
    b.nc_matmul(two, t, t)
    b.dma_copy(y[0], one)
    b.dma_copy(y[1], two)


W, S = Wait, Signal
ONE, TWO = Affine.of(1), Affine.of(2)
IS_WRONG_PLACE = (InternalError, BrokenProgram)

FAULTS: dict[str, Fault] = {
    # a wait is missing
    "the activation does not wait for its load": Fault(
        no_wait("elementwise", 1), Race, "wait for (loaded|squared) to reach"),
    "the store does not wait for the result": Fault(
        no_wait("elementwise", 3), Race, "wait for (doubled|stored) to reach"),
    "the second engine does not wait for the first": Fault(
        no_wait("elementwise", 2), Race, "wait for (squared|doubled) to reach"),
    "the next load does not wait for the last use": Fault(
        no_wait("elementwise", 0), Race, "let dma_copy wait for (squared|loaded) to reach 1"),
    "the product does not wait for either operand": Fault(
        edit("product", 2, waits=(W("copied", Affine.of("r")),)), Race,
        "wait for (left|right|multiplied) to reach"),
    "the product overwrites a sum that is being read": Fault(
        edit("product", 2, waits=(W("left", Affine.of("k") + Affine.of("r") * 2 + 1),
                                  W("right", Affine.of("k") + Affine.of("r") * 2 + 1))),
        Race, "let nc_matmul wait for copied to reach 1"),
    "the sum is read while it grows": Fault(
        edit("product", 3, waits=(W("multiplied", Affine.of("r") * 2 + 1),)), Race,
        "let tensor_copy wait for multiplied to reach 2, not 1"),
    "a weight is overwritten while it is used": Fault(
        no_wait("product", 0), Race, "let dma_copy wait for (left|multiplied) to reach 1"),
    "the gather does not wait for its indices": Fault(
        no_wait("rows_by_index", 1), Race, "let dma_(gather|scatter) wait for indices to reach 1"),
    "the scatter does not wait for its rows": Fault(
        no_wait("rows_by_index", 3), Race,
        "let dma_scatter wait for (gathered|doubled) to reach 1"),
    "gathered rows are used too early": Fault(
        no_wait("rows_by_index", 2), Race, "let tensor_tensor wait for gathered to reach 1"),
    "a transpose reads a tile that is being loaded": Fault(
        no_wait("transposes", 1), Race, "let nc_transpose wait for loaded"),
    "the way back does not wait for the transpose": Fault(
        no_wait("transposes", 2), Race, "PSUM bytes 0..127 of partitions 0..31"),
    "a transposing store does not wait for the load": Fault(
        no_wait("transposes", 4), Race, "let dma_copy wait for loaded"),
    "one of four queues is not waited for": Fault(
        edit("many_queues", 4, waits=tuple(W(f"part{n}", ONE) for n in (0, 1, 3))), Race,
        "let tensor_scalar wait for part2 to reach 1"),
    "a copy in HBM does not wait for what it copies": Fault(
        no_wait("many_queues", 6), Race, "HBM bytes 8192..12287 "),
    "a tile at the same address comes too early": Fault(
        no_wait("one_address", 2), Race, "let tensor_scalar wait for exp to reach 1"),
    "a half of the row is not waited for": Fault(
        edit("reductions", 3, waits=(W("left", ONE),)), Race,
        "let tensor_(reduce|tensor) wait for right to reach 1"),
    "a register's cell is read before it is loaded": Fault(
        no_wait("register_address", 1), Race, "let register_load wait for known"),
    # a signal is missing, misnamed or too small
    "nobody says that the tile is loaded": Fault(
        edit("elementwise", 0, signals=()), Deadlock, "nothing signals it"),
    "the load signals another semaphore": Fault(
        edit("elementwise", 0, signals=(S("stored"),)), (Deadlock, Race), "loaded|stored"),
    "the copy out of PSUM tells nobody": Fault(
        edit("product", 3, signals=()), Deadlock, "waits for copied to reach 1, which is at 0"),
    "the gather's end is not signalled": Fault(
        edit("rows_by_index", 1, signals=()), Deadlock, "vector waits for gathered to reach 1"),
    "a signal counts twice": Fault(
        edit("elementwise", 0, signals=(S("loaded", 2),)), Race,
        "let activation wait for loaded to reach 4, not 2"),
    "a wait for more than there will be": Fault(
        edit("one_address", 3, waits=(W("added", TWO),)), Deadlock,
        "waits for added to reach 2, which is at 1"),
    "a wait one iteration ahead": Fault(
        edit("elementwise", 1, waits=(W("loaded", Affine.of("i") + 2),)), Deadlock,
        "cycle: "),
    "a wait for one's own signal": Fault(
        edit("one_address", 2, waits=(W("added", ONE),)), Deadlock, "waits for added to reach 1"),
    # the wrong order, engine or queue
    "the store comes before the result": Fault(
        planted("one_address", lambda p: replace(p, body=(*p.body[:2], p.body[3], p.body[2]))),
        (UninitializedRead, Race), "never written|race"),
    "the copy out of PSUM moved into the inner loop's place": Fault(
        edit("product", 3, waits=()), Race, "wait for (multiplied|copied|stored) to reach"),
    "a queue with two issuers": Fault(
        edit("many_queues", 5, on="scalar"), MalformedProgram, "queue q0 is issued by"),
    "a transfer on a queue that nobody waits for": Fault(
        edit("many_queues", 1, signals=(S("part0"),)), (Deadlock, Race), "part1|part0"),
    "an instruction on an engine that does not have it": Fault(
        edit("elementwise", 1, on="vector"), InternalError, "activation runs on scalar"),
    "a register used by an engine that has not loaded it": Fault(
        edit("register_address", 1, on="vector"), (Race, UnsetRegister), r"register \$r"),
    "the last of a chain moved to another engine": Fault(
        edit("reductions", 4, on="gpsimd"), Race,
        "let tensor_tensor wait for (left|right|summed) to reach 1"),
    "a branch without a barrier": Fault(
        planted("branches", _without_barrier(0)), MalformedProgram, "no barrier precedes"),
    "a while loop without a barrier": Fault(
        planted("branches", _without_barrier(1)), MalformedProgram, "no barrier precedes"),
    # memory too small, shared or elsewhere
    "a tile with too few columns": Fault(
        resized("elementwise", "t", elements=7), InternalError, "reaches elements 0..7 of 7"),
    "a tile with too few partitions": Fault(
        resized("product", "w", partitions=16), InternalError, "reaches partitions 0..31 of 16"),
    "an input with too few rows": Fault(
        planted("elementwise", lambda p: _loop_of(p, 4)), InternalError,
        "reaches elements 0..1023 of 768"),
    "two live tiles at one address": Fault(
        moved("elementwise", t=0, u=0), (Race, StaleRead), "race|gone"),
    "two live tiles that overlap a little": Fault(
        planted("reductions", lambda p: replace(
            p, addresses={**p.addresses, "s": p.addresses["u"] + 16})),
        StaleRead, "data1 is stale: SBUF .*through another tile by tensor_reduce on vector"),
    "operands of a product on top of each other": Fault(
        moved("product", w=0, m=64), (Race, StaleRead), "race|gone"),
    "sums that share a PSUM bank's bytes": Fault(built(_sums_that_share_a_bank), StaleRead,
        "one was overwritten|is stale: PSUM bytes 64..127"),
    "an output over an input": Fault(
        moved("elementwise", x=0, y=1024), InternalError, "x and y overlap in HBM"),
    "a tile beyond the end of its memory": Fault(
        moved("elementwise", t=224 * 1024 - 16), InternalError, "of 229376 in SBUF"),
    "a tile at an address that its dtype does not allow": Fault(
        moved("elementwise", t=2), InternalError, "which is not a multiple of the 4 bytes"),
    "a start in the middle of a quadrant": Fault(
        pattern_of("elementwise", 1, "dst", partition=Affine.of(8)), InternalError,
        "must start at partition 0|reaches partitions"),
    "a pattern that runs backwards out of its tile": Fault(
        pattern_of("elementwise", 2, "data", dims=((1, 32), (-1, 8))), InternalError,
        "reaches elements -7..0"),
    "a constant that is written": Fault(
        planted("rows_by_index", _overwrites_a_constant), InternalError,
        "y is a constant, which no instruction may write"),
    # uninitialized and stale memory
    "the load is left out": Fault(
        left_out("one_address", 0), (UninitializedRead, Deadlock), "never written|loaded"),
    "half of a tile is loaded": Fault(
        built(_half_loaded), UninitializedRead, "SBUF bytes 16..31 of partitions 0..31"),
    "a sum that starts on nothing": Fault(
        built(_sum_of_nothing), UninitializedRead, "elements of dst were never written: PSUM"),
    "a product that always adds": Fault(
        edit("product", 2, accumulate=True), UninitializedRead, "never written: PSUM"),
    "a tile that has been overwritten": Fault(
        built(_reads_a_tile_that_is_gone), StaleRead, r"memset on \w+, .*test_planted_faults"),
    "scratch in HBM that nobody wrote": Fault(
        built(_reads_scratch_in_hbm), UninitializedRead, "never written: HBM bytes"),
    # what only the data shows
    "an index beyond the table": Fault(
        given("rows_by_index", index=[*range(31), 32]), AccessOutOfBounds, "index 32"),
    "a negative index": Fault(
        given("rows_by_index", index=[-1, *range(1, 32)]), AccessOutOfBounds, "index -1"),
    "a register beyond the tensor": Fault(
        given("register_address", which=[4]), AccessOutOfBounds, "which has 1024"),
    "a loop that never ends": Fault(
        planted("branches", _stuck_loop), EndlessLoop, "exceeded 50 iterations"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name: str) -> None:
    fault = FAULTS[name]
    program, inputs = fault.plant()
    for seed in (0, 1, 7):
        found = found_in(program, inputs, seed)
        assert isinstance(found, fault.raises), f"{name}: {found!r}"
        assert re.search(fault.says, str(found)), f"{name}: {found}"


def test_there_are_enough_faults() -> None:
    assert len(FAULTS) >= 40


def test_what_runs_into_a_fault_names_its_source_line() -> None:
    silent = []
    for name, fault in FAULTS.items():
        found = found_in(*fault.plant())
        if isinstance(found, ExecutionFault) and not isinstance(found, Deadlock):
            text = str(found)
            if ".py:" not in text or "instruction:" not in text:
                silent.append(name)
    assert not silent


def test_rules_are_told_when_the_program_is_written() -> None:
    b = ProgramBuilder()
    with pytest.raises(IllegalInstruction, match="must start at partition 0"):
        b.memset(b.sbuf((128, 8))[8:40], 0.0)


@pytest.mark.nightly
def test_verdicts_on_all_compiled_programs_do_not_depend_on_the_order() -> None:
    checked = 0
    for source in PROGRAMS:
        made = compiled(source)
        if made is None or len(list(made.program.instructions())) > 300:
            continue
        for seed in range(5):
            assert found_in(made.program, made.inputs, seed) is None, source.name
        for text, broken in islice(without_one_wait(made.program), 8):
            verdicts = {verdict_of(broken, made.inputs, seed) for seed in range(3)}
            assert len(verdicts) == 1, f"{source.name}: {text}: {verdicts}"
            checked += 1
    assert checked > 500
