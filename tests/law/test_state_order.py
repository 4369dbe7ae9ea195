"""Engines' accumulators and generators: no pass and no concurrency changes what they give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glia.arch import get_target
from glia.base.affine import Affine
from glia.base.dtype import S32, U32
from glia.isa import INSTRUCTIONS
from glia.isa.examples import chip, examples
from glia.isa.instructions.gpsimd import Iota
from glia.isa.instructions.random import Rng, SetRngSeed
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.sync import RegisterMove
from glia.isa.instructions.vector import Memset, TensorCopy
from glia.isa.instructions.vector_accumulate import TensorScalarCumulative, TensorScalarReduce
from glia.isa.instructions.vector_select import RangeSelect
from glia.isa.kit import Instr
from glia.isa.operand import Pattern
from glia.machine.ir import Loop, Program
from glia.machine.legal_instruction import violations
from glia.machine.passes.double_buffer import double_buffer
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.machine.passes.place import place
from glia.machine.passes.schedule import schedule
from glia.machine.text import parse_program, print_program
from glia.neff.package import Neff
from glia.options import CompileOptions
from glia.sim.order.concurrent import run_concurrently, streams_of
from glia.sim.run import run
from support.examples import with_examples
from support.isa_bench import Bench

KEEPING = [name for name, instr in INSTRUCTIONS.items() if instr.states]


def _maker(bench: Bench) -> dict[str, Any]:
    """Makers of instructions from an input, an output and a column of their own."""
    bound = bench.pattern((8, 1))
    seed = bench.pattern((1, 1), U32)

    def bits(_: Pattern, out: Pattern, column: Pattern) -> Instr:
        return Rng(dst=Pattern(out.tile, U32, out.dims, out.offset, out.partition))

    return {
        "sum": lambda a, out, column: TensorScalarReduce(
            dst=out, data=a, op0="square", reduce_op="add", reduced=column
        ),
        "go on": lambda a, out, column: TensorScalarReduce(
            dst=out, data=a, op0="abs", reduce_op="maximum", command="reduce", reduced=column
        ),
        "scan": lambda a, out, column: TensorScalarCumulative(
            dst=out, data=a, operand0=0.5, op0="multiply", op1="add", command="reduce"
        ),
        "select": lambda a, out, column: RangeSelect(
            dst=out, data=a, bound0=bound, compare0="less", bound1=bound, compare1="less",
            command="idle",
        ),
        "function": lambda a, out, column: Activation(
            dst=out, data=a, function="square", command="reset_reduce"
        ),
        "more": lambda a, out, column: Activation(
            dst=out, data=a, function="abs", command="reduce", reduced=column
        ),
        "plain": lambda a, out, column: Activation(dst=out, data=a, function="tanh"),
        "copy": lambda a, out, column: TensorCopy(dst=out, src=a),
        "seed": lambda a, out, column: SetRngSeed(seed=seed),
        "bits": bits,
    }  # fmt: skip


KINDS = list(_maker(Bench(0)))


def _program(kinds: list[str], trips: int) -> tuple[Program, dict[str, Any]]:
    """A program of such instructions, each with memory of its own, twice round a loop."""
    bench = Bench(1, starts=(0,))
    make = _maker(bench)
    first, body = [], []
    for number, kind in enumerate(kinds):
        a, out, column = bench.pattern((8, 6)), bench.pattern((8, 6)), bench.pattern((8, 1))
        instr = make[kind](a, out, column)
        (first if number % 3 == 0 else body).append(instr)
    scratch = bench.pattern((8, 6))
    loop = Loop("i", trips, (*body, Memset(dst=scratch, value=1.0)))
    return bench.program((*first, loop)), bench.contents


@with_examples(25)
@given(kinds=st.lists(st.sampled_from(KINDS), min_size=2, max_size=9), trips=st.integers(1, 3))
def test_passes_and_concurrency_keep_the_order_of_a_state(kinds: list[str], trips: int) -> None:
    program, inputs = _program(kinds, trips)
    expected = run(program, inputs)
    options = CompileOptions()
    ordered = insert_semaphores(place(schedule(double_buffer(program, options), options)))
    for seed in range(len(streams_of(ordered))):
        actual = run_concurrently(ordered, inputs, seed=seed)
        for name, value in expected.items():
            np.testing.assert_array_equal(actual[name], value)


def test_what_shares_no_state_may_change_places() -> None:
    """Otherwise the test above would pass for a scheduler that never moves anything."""
    bench = Bench(2)
    a, b, c = (bench.pattern((8, 4000)) for _ in range(3))
    program = bench.program(
        (
            Activation(dst=b, data=a, function="exp"),
            Activation(dst=c, data=b, function="exp", command="reset_reduce"),
            TensorCopy(dst=bench.pattern((8, 4000)), src=a, on="vector"),
        )
    )
    options = CompileOptions()
    names = [i.mnemonic() for i in schedule(program, options).instructions()]
    assert names != [i.mnemonic() for i in program.instructions()]


@pytest.mark.parametrize("name", KEEPING)
def test_instructions_with_a_state_survive_text_and_neff(name: str) -> None:
    instr = examples()[name]
    tiles = {pattern.tile.name: pattern.tile for _, _, pattern in instr.operands()}
    addresses = {tile: 4096 * number for number, tile in enumerate(tiles)}
    program = Program("one", "trn3", tiles, (), (), {}, (instr,), addresses)
    assert parse_program(print_program(program)) == program
    assert Neff.from_bytes(Neff((program,)).to_bytes()).program.body == program.body


@pytest.mark.parametrize("name", KEEPING)
def test_a_state_belongs_to_engines_that_have_it(name: str) -> None:
    kept = INSTRUCTIONS[name].states
    for each in kept.values():
        assert set(INSTRUCTIONS[name].engines) <= set(each.state.words)
        assert each.lanes == "" or each.lanes in INSTRUCTIONS[name].operand_declarations
    wrong = replace(examples()[name], on="sync")
    assert violations(wrong, get_target("trn3").arch)


def test_what_a_register_says_is_asked_before_it_is_set_anew() -> None:
    dsts = [chip(name, 8, 64, dtype=S32) for name in "ab"]
    body: list[Instr] = []
    for value, dst in enumerate(dsts):
        body.append(RegisterMove(register="$r", value=value, on="gpsimd"))
        body.append(Iota(dst=dst, offset=Affine.of("$r"), steps=(1,)))
    tiles = {dst.tile.name: dst.tile for dst in dsts}
    program = Program("asked", "trn2", tiles, (), (), {}, tuple(body))
    assert schedule(program, CompileOptions()).body == program.body
