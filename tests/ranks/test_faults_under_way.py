"""Faults in programs whose exchanges overlap, repeat or depend on data are caught, no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, shard_map
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

import glia
from glia.base.errors import CompileError
from glia.isa.instructions.collectives import Collective, CollectivePermute
from glia.isa.kit import Instr
from glia.machine import ProgramBuilder
from glia.machine.ir import Program
from glia.sim.order.concurrent import Deadlock, run_cores
from glia.sim.policy import ExecutionFault, Policy
from glia.sim.ranks.errors import RankMissing, RanksDisagree
from glia.sim.ranks.rank_threads import run_each_rank
from support.clean_programs import edited, with_a_lower_count, without_one_wait

RANKS = 4
STRICT = Policy(check_initialized=True)
MESH, GRID = AbstractMesh((RANKS,), ("r",)), AbstractMesh((2, 2), ("d", "m"))
Inputs = tuple[dict[str, np.ndarray], ...]


@dataclass(frozen=True)
class Case:
    """A program of four ranks, and the inputs of each."""

    program: Program
    inputs: Inputs

    def concurrently(self, programs: list[Program], seed: int = 0) -> list[dict[str, Any]]:
        return run_cores(programs, self.inputs, lnc=1, seed=seed, policy=STRICT)

    def planted(self, faulty: Program, rank: int) -> list[Program]:
        return [faulty if each == rank else self.program for each in range(RANKS)]


def compiled(local: Callable[..., Any], shapes: dict[str, tuple[int, ...]], mesh=MESH) -> Case:
    """A function of each rank's own arrays, with a strategy, so that exchanges are under way."""
    kinds = [jax.ShapeDtypeStruct((RANKS, *shape), np.float32) for shape in shapes.values()]
    specs = (P(mesh.axis_names),) * len(kinds)
    mapped = shard_map(
        lambda *xs: local(*(x[0] for x in xs))[None], mesh=mesh, in_specs=specs,
        out_specs=P(mesh.axis_names), check_vma=False,
    )  # fmt: skip
    module = jax.jit(mapped).trace(*kinds).lower(lowering_platforms=("cpu",))
    neff = glia.compile(
        module, target="trn2", auto_cast="none", distribution_strategy="llm-training", optlevel=1
    )
    return Case(neff.program, _random_inputs(neff.program))


def _random_inputs(program: Program) -> Inputs:
    rng = np.random.default_rng(5)
    return tuple(
        {b.name: rng.standard_normal(b.shape, np.float32) for b in program.inputs}
        for _ in range(RANKS)
    )


@cache
def overlapped() -> Case:
    """Weights are gathered while others are used, and sums travel beside products."""

    def local(x: Any, first: Any, second: Any) -> Any:
        one = jnp.tanh(x @ lax.all_gather(first, "r", tiled=True))
        total = lax.psum(one, "r")
        two = jnp.exp(x @ lax.all_gather(second, "r", tiled=True))
        return lax.psum(two, "r") + total * one

    return compiled(local, {"x": (8, 32), "first": (8, 32), "second": (8, 32)})


@cache
def ring() -> Case:
    """A loop passes a block around and adds up what it sees."""
    pairs = [(rank, (rank + 1) % RANKS) for rank in range(RANKS)]

    def local(x: Any) -> Any:
        def step(_: Any, state: Any) -> Any:
            block, total = state
            return lax.ppermute(block, "r", pairs), total + jnp.tanh(block * total)

        return lax.fori_loop(0, RANKS, step, (x, x))[1]

    return compiled(local, {"x": (8, 16)})


@cache
def two_axes() -> Case:
    """Sums within one axis of a mesh, then within the other, and tokens dealt in between."""

    def local(x: Any) -> Any:
        total = lax.psum(jnp.sin(x), "m")
        dealt = lax.all_to_all(total * x, "d", 0, 0, tiled=True)
        return lax.psum_scatter(jnp.tile(dealt, (2, 1)), "m", scatter_dimension=0, tiled=True)

    return compiled(local, {"x": (8, 16)}, GRID)


@cache
def on_chip() -> Case:
    """Written by hand: a sum in SBUF, while another queue sends what was loaded."""
    b = ProgramBuilder("on_chip")
    x, y, z = b.input("x", (32, 8)), b.output("y", (32, 8)), b.output("z", (32, 8))
    tile, total = b.sbuf((32, 8), name="tile"), b.sbuf((32, 8), name="total")
    moved = b.hbm((32, 8), name="moved")
    groups, ring_pairs = ((0, 1), (2, 3)), ((0, 1), (1, 2), (2, 3), (3, 0))
    b.dma_copy(tile, x, signals="loaded")
    b.all_reduce(srcs=(tile,), dsts=(total,), op="add", groups=groups, queue="sums",
                 waits="loaded", signals="summed")  # fmt: skip
    b.collective_permute(srcs=(x,), dsts=(moved,), source_target_pairs=ring_pairs, queue="ring",
                         signals="moved")  # fmt: skip
    b.activation(tile, total, "tanh", waits="summed", signals="squashed")
    b.dma_copy(y, tile, waits="squashed", queue="out")
    b.dma_copy(z, moved, waits="moved", queue="other")
    program = b.finish()
    return Case(program, _random_inputs(program))


CASES = {case.__name__: case for case in (overlapped, ring, two_axes, on_chip)}


@pytest.mark.parametrize("name", CASES)
def test_what_is_right_raises_no_alarm_in_any_order(name: str) -> None:
    case = CASES[name]()
    programs = [case.program] * RANKS
    expected = run_each_rank(programs, case.inputs)
    for seed in range(10):
        found = case.concurrently(programs, seed)
        for ours, theirs in zip(found, expected, strict=True):
            for key, value in theirs.items():
                np.testing.assert_array_equal(ours[key], value)


def _is_exchange(instr: Instr) -> bool:
    return isinstance(instr, Collective | CollectivePermute)


def _around_exchanges(case: Case) -> Iterator[tuple[str, Program]]:
    """The program without the wait of an exchange for what it sends, or of a reader for it.

    Other waits may follow from those.
    """
    instructions = list(case.program.instructions())
    for text, program in (*without_one_wait(case.program), *with_a_lower_count(case.program)):
        instr = instructions[int(text.split()[0])]
        reads = instr.queue == "reload" and "queue.exchange" in text
        sends = _is_exchange(instr) and "queue.store" in text
        if reads or sends or case is on_chip():
            yield text, program


UNSYNCHRONISED = {
    f"{name} {text}": (case, program)
    for name, case in CASES.items()
    for text, program in _around_exchanges(case())
}


@pytest.mark.parametrize("name", UNSYNCHRONISED)
def test_what_does_not_wait_for_an_exchange_is_caught_on_any_rank(name: str) -> None:
    case, program = UNSYNCHRONISED[name]
    for rank in (0, RANKS - 1):
        with pytest.raises(ExecutionFault):
            case().concurrently(case().planted(program, rank))


# --- ranks that differ by data --------------------------------------------------------------------


def by_data(trips: bool) -> Case:
    """Exchanges in a loop that runs as often as data say, or in one arm of a branch."""

    def local(x: Any) -> Any:
        count = x[0, 0].astype(jnp.int32)
        if trips:
            return lax.fori_loop(0, count, lambda _, t: t + lax.psum(t, "r"), x)
        return lax.cond(count > 1, lambda t: lax.psum(t, "r"), lambda t: t * 2, x)

    return compiled(local, {"x": (4, 8)})


def _with_counts(case: Case, counts: tuple[int, ...]) -> Case:
    (name,) = case.inputs[0]
    inputs = [{name: each[name].copy()} for each in case.inputs]
    for arrays, count in zip(inputs, counts, strict=True):
        arrays[name].reshape(-1)[0] = count
    return Case(case.program, tuple(inputs))


DIFFERENT = [(True, (2, 2, 3, 2)), (True, (1, 2, 2, 2)), (True, (2, 2, 2, 0)),
             (False, (2, 2, 0, 2)), (False, (0, 2, 2, 2)), (False, (2, 0, 2, 0))]  # fmt: skip


@pytest.mark.parametrize("trips, counts", DIFFERENT)
def test_ranks_whose_data_let_them_miss_an_exchange_are_told(
    trips: bool, counts: tuple[int, ...]
) -> None:
    case = _with_counts(by_data(trips), counts)
    with pytest.raises((RanksDisagree, RankMissing)):
        run_each_rank([case.program] * RANKS, case.inputs)
    with pytest.raises(Deadlock):
        case.concurrently([case.program] * RANKS)


@pytest.mark.parametrize("trips", [True, False])
@pytest.mark.parametrize("count", [0, 2, 3])
def test_ranks_whose_data_agree_raise_no_alarm(trips: bool, count: int) -> None:
    case = _with_counts(by_data(trips), (count,) * RANKS)
    expected = run_each_rank([case.program] * RANKS, case.inputs)
    for ours, theirs in zip(case.concurrently([case.program] * RANKS), expected, strict=True):
        for key, value in theirs.items():
            np.testing.assert_array_equal(ours[key], value)


# --- exchanges of other programs ------------------------------------------------------------------


def _exchanges(case: Case) -> list[Instr]:
    return [each for each in case.program.instructions() if _is_exchange(each)]


def _in_the_other_order(case: Case) -> Program:
    """The first two exchanges, each in the place, queue and signals of the other."""
    first, second = _exchanges(case)[:2]
    marked = edited(case.program, first, replace(second, signals=first.signals, waits=first.waits))
    return edited(marked, second, replace(first, signals=second.signals, waits=second.waits))


def _without_the_last(case: Case) -> Program:
    last = _exchanges(case)[-1]
    return edited(case.program, last)


CHANGES = {
    "in the other order": _in_the_other_order,
    "without the last exchange": _without_the_last,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["overlapped", "two_axes", "on_chip"])
def test_a_rank_with_other_exchanges_is_told(name: str, change: str) -> None:
    case = CASES[name]()
    programs = case.planted(CHANGES[change](case), 2)
    with pytest.raises((CompileError, ExecutionFault)):
        case.concurrently(programs)


def test_there_are_twenty_more_faults() -> None:
    assert len(UNSYNCHRONISED) + len(DIFFERENT) + 3 * len(CHANGES) >= 20
