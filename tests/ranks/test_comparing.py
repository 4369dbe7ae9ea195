"""Ranks that cannot meet are told before anything runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glia.compiler import compile_graph
from glia.machine.ir import Loop, Program
from glia.runtime.model import load
from glia.sim.ranks.comparing import MOST_EXCHANGES, require_meetings
from glia.sim.ranks.errors import RankMissing, RanksDisagree
from glia.sim.ranks.rank_threads import run_each_rank

from .test_faults_of_ranks import FAULTS, RANKS, _first, _with, ranked
from .test_runs import OPTIONS, _branch, _rows

# What a run refuses for its groups, it refuses then
AT_RUN_TIME = {"an exchange with a rank that does not exist", "an exchange in no group"}


@pytest.mark.parametrize("name", [each for each in FAULTS if each not in AT_RUN_TIME])
def test_a_fault_is_told_without_inputs_as_in_a_run(name: str) -> None:
    fault = FAULTS[name]
    programs = _with(fault.change(ranked()))
    with pytest.raises(fault.error, match=fault.text):
        require_meetings(programs)
    with pytest.raises(fault.error, match=fault.text):
        run_each_rank(programs, [{}] * RANKS)  # a run would miss its inputs first


@pytest.mark.parametrize("rank", range(RANKS))
def test_any_rank_may_be_the_one_that_differs(rank: int) -> None:
    change = FAULTS["all_gather of another dtype"].change
    with pytest.raises(RanksDisagree, match="dtype"):
        require_meetings(_with(change(ranked()), rank))


def test_what_is_right_is_not_refused() -> None:
    require_meetings([ranked()] * RANKS)
    require_meetings([])


def _repeated(program: Program, trips: int) -> Program:
    return replace(program, body=(Loop("i", trips, program.body),))


def test_loops_of_other_lengths_are_told() -> None:
    programs = [_repeated(ranked(), 3 if rank == 2 else 4) for rank in range(RANKS)]
    with pytest.raises(RankMissing, match="rank 2, which never arrives"):
        require_meetings(programs)
    require_meetings([_repeated(ranked(), 3)] * RANKS)


def test_endless_programs_are_compared_for_a_while() -> None:
    body = (Loop("i", 1 << 40, (_first("all_reduce"),)),)
    require_meetings([replace(ranked(), body=body)] * RANKS)
    assert MOST_EXCHANGES < 1 << 20


@pytest.mark.parametrize("kind", [None, "collective-permute"])
def test_what_depends_on_data_is_left_to_the_run(kind: str | None) -> None:
    neff = compile_graph(_branch(kind), OPTIONS)
    model = load(neff)
    found = model.run_ranks([[np.array(True), *row] for row in _rows(2)])
    assert len(found) == 2
