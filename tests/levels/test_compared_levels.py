"""The level that is kept is the fastest one, in however many processes levels are compiled."""

from __future__ import annotations

import os
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
import glia.core_programs
from glia.alternatives import ComparedLevel, fastest_level
from glia.base.errors import Misfit
from glia.machine.ir import Program
from glia.options import CompileOptions

LEVEL_3 = CompileOptions(optlevel=3)
EMPTY = Program("empty", "trn2", {}, (), (), {}, ())


@dataclass
class Builder:
    """Builds programs of no instructions, whose level is known by their count."""

    refused: tuple[int, ...] = ()
    killed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.process, self.built = os.getpid(), list[int]()

    def __call__(self, options: CompileOptions) -> tuple[Program, ...]:
        self.built.append(options.optlevel)
        if options.optlevel in self.killed and os.getpid() != self.process:
            os._exit(9)
        if options.optlevel in self.refused:
            raise Misfit("SBUF is full", {})
        return (EMPTY,) * options.optlevel


def time_levels(monkeypatch: pytest.MonkeyPatch, times: dict[int, float | None]) -> None:
    monkeypatch.setattr(
        "glia.alternatives.latency_us", lambda programs, target: times[len(programs)]
    )


@pytest.mark.parametrize("processes", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("times", "best"),
    [
        ({3: 5.0, 2: 6.0, 1: 7.0}, 3),
        ({3: 5.0, 2: 4.0, 1: 7.0}, 2),
        ({3: 5.0, 2: 4.0, 1: 3.0}, 1),
        ({3: 5.0, 2: 5.0, 1: 5.0}, 3),
        ({3: 5.0, 2: None, 1: 4.0}, 1),
    ],
    ids=str,
)
def test_the_fastest_level_is_kept(
    monkeypatch: pytest.MonkeyPatch, times: dict[int, float | None], best: int, processes: int
) -> None:
    time_levels(monkeypatch, times)
    programs, chosen, compared = fastest_level(LEVEL_3, Builder(), processes)
    assert (len(programs), chosen) == (best, best)
    assert compared == tuple(ComparedLevel(level, us) for level, us in times.items())


@pytest.mark.parametrize("processes", [1, 3])
def test_a_lower_level_that_does_not_fit_has_no_time(
    monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    time_levels(monkeypatch, {3: 5.0, 1: 4.0})
    _, chosen, compared = fastest_level(LEVEL_3, Builder(refused=(2,)), processes)
    assert chosen == 1
    assert [each.latency_us for each in compared] == [5.0, None, 4.0]
    with pytest.raises(Misfit):
        fastest_level(LEVEL_3, Builder(refused=(3,)), processes)


def test_only_a_faster_level_is_built_in_this_process_too(monkeypatch: pytest.MonkeyPatch) -> None:
    time_levels(monkeypatch, {3: 5.0, 2: 6.0, 1: 4.0})
    build = Builder()
    fastest_level(LEVEL_3, build, 3)
    assert build.built == [3, 1]


def test_a_level_whose_process_is_killed_is_built_here(monkeypatch: pytest.MonkeyPatch) -> None:
    time_levels(monkeypatch, {3: 5.0, 2: 4.0, 1: 6.0})
    build = Builder(killed=(1, 2))
    _, chosen, compared = fastest_level(LEVEL_3, build, 3)
    assert chosen == 2
    assert [each.latency_us for each in compared] == [5.0, 4.0, 6.0]
    assert build.built == [3, 2, 1]


def test_any_number_of_processes_gives_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glia.core_programs, "LEAST_SECONDS", 0)
    arrays = [np.ones((256, 256), np.float32)] * 2
    module = jax.jit(lambda a, b: jax.nn.softmax(jnp.tanh(a @ b))).lower(*arrays)
    neffs = [glia.compile(module, optlevel=3, num_parallel_jobs=jobs) for jobs in (1, 2, 8)]
    assert len({neff.to_bytes() for neff in neffs}) == 1
    assert len(neffs[0].report["level"]["alternatives"]) == 3
