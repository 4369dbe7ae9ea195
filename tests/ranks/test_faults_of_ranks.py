"""Faults planted in programs of several ranks are caught; what is right raises no alarm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from glia.base.dtype import F32, S32
from glia.base.errors import CompileError, Unspecified
from glia.base.loc import Loc
from glia.compiler import compile_graph
from glia.graph import ops
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.isa.kit import Instr
from glia.isa.operand import Pattern
from glia.machine.ir import Program
from glia.options import CompileOptions
from glia.sim.order.concurrent import Deadlock, Race, run_cores
from glia.sim.policy import ExecutionFault, Policy
from glia.sim.ranks.errors import RankMissing, RanksDisagree
from glia.sim.ranks.rank_threads import run_each_rank
from support.clean_programs import edited, without_one_wait

RANKS = 4
STRICT = Policy(check_initialized=True)
ROW = TensorType(F32, (8, 16))
ADD = ops.combiner("add", F32)


def _collective(x: Node, kind: str, line: int, rows: int = 8, groups=None, pairs=()) -> Node:
    dimension = 0 if kind in ("all-gather", "all-to-all", "reduce-scatter") else -1
    body = (ADD,) if "reduce" in kind else ()
    groups = () if pairs else groups or ((0, 1), (2, 3))
    return ops.Collective((x,), kind, TensorType(F32, (rows, 16)), dimension, groups, pairs, body,
                          loc=Loc("model.py", line))  # fmt: skip


@cache
def ranked() -> Program:
    """Compute, sum up, permute, exchange, gather, scatter: each from what comes before."""
    x = Parameter(0, ROW, "x")
    total = _collective(ops.Map("tanh", (x,)), "all-reduce", 10)
    moved = _collective(ops.Map("exp", (total,)), "collective-permute", 20,
                        pairs=((0, 1), (1, 2), (2, 3), (3, 0)))  # fmt: skip
    dealt = _collective(ops.Map("add", (moved, x)), "all-to-all", 30)
    whole = _collective(ops.Map("negate", (dealt,)), "all-gather", 40, rows=16)
    piece = _collective(ops.Map("tanh", (whole,)), "reduce-scatter", 50)
    graph = Graph("ranked", (x,), (ops.Map("multiply", (piece, x)),), ("y",), (), 1, RANKS)
    return compile_graph(graph, CompileOptions(target="trn2", auto_cast="none")).program


@cache
def _inputs() -> tuple[dict[str, np.ndarray], ...]:
    rng = np.random.default_rng(3)
    return tuple({"x": rng.standard_normal((8, 16), np.float32)} for _ in range(RANKS))


def _concurrently(programs: list[Program], seed: int = 0) -> list[dict[str, np.ndarray]]:
    return run_cores(programs, _inputs(), lnc=1, seed=seed, policy=STRICT)


def _with(faulty: Program, rank: int = 1) -> list[Program]:
    return [faulty if each == rank else ranked() for each in range(RANKS)]


def test_what_is_right_raises_no_alarm_in_any_order() -> None:
    expected = run_each_rank([ranked()] * RANKS, _inputs())
    for seed in range(20):
        found = _concurrently([ranked()] * RANKS, seed)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours["y"], theirs["y"])


def _around_exchanges() -> Iterator[tuple[str, Program]]:
    """The program without the wait of an exchange for what it sends, or of a load for it."""
    instructions = list(ranked().instructions())
    for text, program in without_one_wait(ranked()):
        queue = instructions[int(text.split()[0])].queue
        sends = queue == "exchange" and "queue.store" in text
        if sends or (queue == "reload" and "queue.exchange" in text):
            yield text, program


UNSYNCHRONISED = dict(_around_exchanges())


@pytest.mark.parametrize("name", UNSYNCHRONISED)
def test_an_exchange_that_does_not_wait_is_caught(name: str) -> None:
    with pytest.raises(ExecutionFault):
        _concurrently(_with(UNSYNCHRONISED[name]))


@dataclass(frozen=True)
class Fault:
    """A change of one rank's program; what a run in threads says, and with concurrent engines."""

    change: Callable[[Program], Program]
    error: type[Exception]
    text: str
    concurrent: tuple[type[Exception], ...] = (ExecutionFault,)


def _first(mnemonic: str) -> Instr:
    return next(i for i in ranked().instructions() if i.mnemonic() == mnemonic)


def _changed(mnemonic: str, **fields: object) -> Callable[[Program], Program]:
    return lambda program: edited(program, _first(mnemonic), replace(_first(mnemonic), **fields))


def _retyped(mnemonic: str) -> Callable[[Program], Program]:
    instr = _first(mnemonic)

    def retyped(patterns: tuple[Pattern, ...]) -> tuple[Pattern, ...]:
        return tuple(replace(pattern, dtype=S32) for pattern in patterns)

    return _changed(mnemonic, srcs=retyped(instr.srcs), dsts=retyped(instr.dsts))


def _halved(mnemonic: str) -> Callable[[Program], Program]:
    """The instruction on the first half of the columns of its tensors."""
    instr = _first(mnemonic)

    def halved(patterns: tuple[Pattern, ...]) -> tuple[Pattern, ...]:
        return tuple(
            replace(p, dims=(*p.dims[:-1], (p.dims[-1][0], p.dims[-1][1] // 2))) for p in patterns
        )

    return _changed(mnemonic, srcs=halved(instr.srcs), dsts=halved(instr.dsts))


def _without(mnemonic: str) -> Callable[[Program], Program]:
    """The program without an exchange; a barrier of no effect keeps its signals and waits."""
    instr = _first(mnemonic)

    def change(program: Program) -> Program:
        alone = {"groups": ((1,),)} if hasattr(instr, "groups") else {"source_target_pairs": ()}
        if mnemonic in ("all_gather", "reduce_scatter"):
            return edited(program, instr)
        return edited(program, instr, replace(instr, **alone))

    return change


def _twice(mnemonic: str) -> Callable[[Program], Program]:
    instr = _first(mnemonic)
    return lambda program: edited(program, instr, instr, replace(instr, signals=()))


OTHERS = ((0, 2), (1, 3))
FAULTS = {
    **{
        f"{name} in other groups": Fault(
            _changed(name, groups=OTHERS), RanksDisagree, "differ in the group", (Deadlock,)
        )
        for name in ("all_reduce", "all_to_all", "all_gather", "reduce_scatter")
    },
    **{
        f"{name} of another dtype": Fault(_retyped(name), RanksDisagree, "dtype of srcs, f32 and")
        for name in ("all_reduce", "collective_permute", "all_to_all", "all_gather")
    },
    **{
        f"{name} of fewer elements": Fault(_halved(name), RanksDisagree, "elements of srcs")
        for name in ("all_reduce", "collective_permute", "all_to_all", "all_gather",
                     "reduce_scatter")
    },
    **{
        f"{name} with another function": Fault(
            _changed(name, op="maximum"), RanksDisagree, "op, "
        )
        for name in ("all_reduce", "reduce_scatter")
    },
    **{
        f"no {name}": Fault(_without(name), RanksDisagree, "waits in", (Deadlock, Race))
        for name in ("all_reduce", "all_to_all", "all_gather")
    },
    "no last exchange": Fault(
        _without("reduce_scatter"), RankMissing, r"model.py:50.*rank 1, which never arrives",
        (Deadlock, Race),
    ),
    "other pairs": Fault(
        _changed("collective_permute", source_target_pairs=((0, 1), (1, 0))),
        RanksDisagree, "model.py:20", (Deadlock,),
    ),
    "one exchange more": Fault(_twice("all_gather"), RanksDisagree, "all_gather"),
    "one sum more": Fault(_twice("all_reduce"), RanksDisagree, "all_reduce"),
    "an exchange with a rank that does not exist": Fault(
        _changed("all_to_all", groups=((0, 2), (1, 9))), ExecutionFault, "among 10 ranks",
        (Deadlock,),
    ),
    "an exchange in no group": Fault(
        _changed("all_to_all", groups=((0, 2), (3, 4))), Unspecified, "rank 1 is in none",
        (Unspecified,),
    ),
}  # fmt: skip


def test_there_are_enough_faults() -> None:
    assert len(FAULTS) + len(UNSYNCHRONISED) >= 30


@pytest.mark.parametrize("name", FAULTS)
def test_ranks_that_differ_are_told_in_what(name: str) -> None:
    fault = FAULTS[name]
    programs = _with(fault.change(ranked()))
    with pytest.raises(fault.error, match=fault.text):
        run_each_rank(programs, _inputs())
    with pytest.raises(fault.concurrent):
        _concurrently(programs)


def test_both_source_lines_are_told() -> None:
    programs = _with(FAULTS["no all_to_all"].change(ranked()))
    with pytest.raises(CompileError) as caught:
        run_each_rank(programs, _inputs())
    assert "model.py:30" in str(caught.value)
