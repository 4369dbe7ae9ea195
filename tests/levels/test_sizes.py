"""Every kind of nest compiles at every size, on every target, and computes what its graph does."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any

import numpy as np
import pytest

import glia
from glia.arch.instances import COMPILED_TARGETS, get_target
from glia.frontend.registry import read_module
from glia.graph.evaluate import evaluate
from support.size_walk.kinds import KINDS, Model, hlo_bytes
from support.size_walk.limits import limits, long_limits

LARGEST = 600  # of the nightly walk
SHARE = 4  # one in so many sizes around limits is tried each time for a kind, all in a night
LEVELS = (1, 2, 3)
# Programs that grow with the square or worse of the extent: steps of a sort, or scores
SQUARE = frozenset(("sort", "sort_rows", "top_k", "argmax", "attention", "reduce_all"))

Case = tuple[str, str, int, int]  # kind, target, extent, optimisation level


def cases_at_limits(kind: str, share: int = 1) -> Iterator[Case]:
    """A kind at sizes around limits, one of `share`; targets and levels take turns."""
    first = tuple(KINDS).index(kind)
    sizes = limits(get_target("trn2").arch)
    for number, extent in enumerate(sizes[first % share :: share], first // share):
        target = COMPILED_TARGETS[number % len(COMPILED_TARGETS)]
        yield kind, target, extent, LEVELS[number % len(LEVELS)]


def walk(day: int, kind: str) -> Iterator[Case]:
    """A kind at every size up to the largest, each on one target; in five days on all targets."""
    for extent in range(1, 1 + LARGEST):
        target = COMPILED_TARGETS[(day + extent) % len(COMPILED_TARGETS)]
        yield kind, target, extent, LEVELS[extent % len(LEVELS)]


def check(case: Case, *, is_run: bool) -> None:
    """Compile; with `is_run` with the law of every level, and compare with the graph's values."""
    kind, target, extent, level = case
    model = KINDS[kind](extent)
    data = hlo_bytes(model)
    neff = glia.compile(data, target=target, optlevel=level, verify=is_run)
    if is_run:
        _compare(case, data, neff, model)


def _compare(case: Case, data: bytes, neff: Any, model: Model) -> None:
    arguments = [np.asarray(each) for each in model[1]]
    found = glia.load(neff)(*arguments)
    wanted = evaluate(read_module(data), arguments)
    for a, b in zip(found, wanted, strict=True):
        wide_a, wide_b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        finite = np.abs(wide_b[np.isfinite(wide_b)])
        tolerance = 0 if b.dtype.kind in "iub" else 1e-2 if b.dtype.itemsize == 2 else 5e-5
        scale = tolerance * np.max(finite, initial=1.0)
        np.testing.assert_allclose(wide_a, wide_b, tolerance, scale, err_msg=f"{case}")


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_at_sizes_next_to_limits(kind: str) -> None:
    for number, case in enumerate(cases_at_limits(kind, SHARE)):
        check(case, is_run=number % 3 == 1)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_at_the_sizes_next_to_every_limit(kind: str) -> None:
    for case in cases_at_limits(kind):
        check(case, is_run=True)


def test_all_kinds_together_meet_every_limit_on_every_target() -> None:
    every = [case for kind in KINDS for case in cases_at_limits(kind, SHARE)]
    sizes = {(target, extent) for _, target, extent, _ in every}
    assert sizes == {(t, n) for t in COMPILED_TARGETS for n in limits(get_target(t).arch)}
    for kind in KINDS:
        week = {case[:3] for day in range(len(COMPILED_TARGETS)) for case in walk(day, kind)}
        assert len(week) == LARGEST * len(COMPILED_TARGETS)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_at_sizes_from_1_to_600(kind: str) -> None:
    for case in walk(date.today().toordinal(), kind):
        check(case, is_run=case[2] % 5 == 0)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in SQUARE])
def test_a_kind_at_sizes_next_to_the_limits_of_partitions(kind: str) -> None:
    for number, extent in enumerate(long_limits(get_target("trn2").arch)):
        check((kind, "trn2", extent, 2), is_run=number == 0)


def test_iterations_of_a_long_padded_loop_that_nothing_clips_stay_a_loop() -> None:
    """A dilated input of 20000 columns is read in tiles, of which a guard clips the outer ones."""
    model = KINDS["convolution_transposed"](20_000)
    neff = glia.compile(hlo_bytes(model), target="trn2", verify=True)
    assert sum(1 for _ in neff.programs[0].instructions()) < 2000
    _compare(("convolution_transposed", "trn2", 20_000, 2), hlo_bytes(model), neff, model)
