"""How the model that blocks are chosen by ranks random schedules, beside the timing model.

    python benchmarks/blocking.py [--count N]

Of each product and target as many random blockings are compiled and timed as the count allows. It
prints the rank correlation of both times for each, and for all together in multiples of the time of
the array.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from scipy.stats import spearmanr

import glia
import glia.tuning.choose_blocks as choose_blocks
from glia.arch import get_target
from glia.profile.report import profile_programs
from glia.tile.blocking.model import Blocking, BlockingModel, Contraction
from glia.tile.blocking.search import EFFORTS, blockings

OPTLEVEL = 2
COUNT = 200
CASES = (
    ("mk,kn->mn", (2048, 2048), (2048, 2048), jnp.bfloat16, "trn2"),
    ("mk,kn->mn", (2048, 4096), (4096, 3072), jnp.bfloat16, "trn1"),
    ("mk,nk->mn", (1024, 2048), (2048, 2048), jnp.float32, "trn1"),
    ("bmk,bkn->bmn", (4, 1024, 1024), (4, 1024, 1024), jnp.bfloat16, "trn2"),
)


@dataclass(frozen=True)
class Row:
    """One schedule: what the model and the timing model say, in nanoseconds."""

    blocking: Blocking
    modelled_ns: float
    timed_ns: float
    array_ns: float


def rows(case: tuple[Any, ...], count: int) -> Iterator[Row]:
    """Random blockings of a product that fit on chip, timed."""
    spec, left, right, dtype, target = case
    arguments = (jax.ShapeDtypeStruct(shape, dtype) for shape in (left, right))
    lowered = jax.jit(lambda a, b: jnp.einsum(spec, a, b)).lower(*arguments)
    facts = facts_of(lowered, target)
    arch, effort = get_target(target).arch, EFFORTS[OPTLEVEL]
    model = BlockingModel(facts, arch)
    estimates = ((each, model.estimate(each)) for each in blockings(facts, arch, effort))
    fitting = [
        (each, found.ns)
        for each, found in estimates
        if found.fits(facts, arch) and found.instructions <= effort.instructions
    ]
    for blocking, modelled_ns in random.Random(count).sample(fitting, min(count, len(fitting))):
        with mock.patch.object(choose_blocks, "propose_blockings", lambda *_: (blocking,)):  # noqa: B023
            neff = glia.compile(
                lowered, target=target, auto_cast="none", optlevel=OPTLEVEL, logical_nc_config=1
            )
        timing = profile_programs(neff.programs, target).timing
        yield Row(blocking, modelled_ns, timing.end_ns - timing.begin_ns, model.array_ns)


def facts_of(lowered: Any, target: str) -> Contraction:
    """What the search knows of the only contraction of a module."""
    found: list[Contraction] = []

    def note(facts: Contraction, *_: object) -> tuple[Blocking, ...]:
        found.append(facts)
        return ()

    with mock.patch.object(choose_blocks, "propose_blockings", note):
        glia.compile(
            lowered, target=target, auto_cast="none", optlevel=OPTLEVEL, logical_nc_config=1
        )
    return found[0]


def correlation(found: list[Row]) -> float:
    """The rank correlation of both times, in multiples of the time of the array."""
    modelled = [row.modelled_ns / row.array_ns for row in found]
    timed = [row.timed_ns / row.array_ns for row in found]
    return float(spearmanr(modelled, timed)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="random schedules, all together")
    count = parser.parse_args().count // len(CASES)
    found: list[Row] = []
    for case in CASES:
        own = list(rows(case, count))
        spec, left, right, dtype, target = case
        shapes = f"{left} x {right} {dtype.__name__} on {target}"
        print(f"{spec} {shapes}: {len(own)} schedules, {correlation(own):.3f}", flush=True)
        found += own
    print(f"all: {len(found)} schedules, {correlation(found):.3f}")


if __name__ == "__main__":
    main()
