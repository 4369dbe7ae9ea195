"""A contraction gives the same values in whatever blocks it runs, on every target."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
import glia.tuning.choose_blocks as module
from glia.arch import get_target
from glia.tile.blocking.model import BlockedOperand, Blocking, BlockingModel, Contraction
from glia.tile.blocking.search import EFFORTS, blockings, propose_blockings
from glia.tile.ir import Program
from glia.tile.text import parse_program, print_program
from support.targets import CORES

BLOCKINGS = 3  # of each case
TARGETS = [
    name if name in ("trn1", "trn2") else pytest.param(name, marks=pytest.mark.nightly)
    for name in CORES
]
CASES = {
    "product": ("mk,kn->mn", (300, 400), (400, 1100)),
    "transposed": ("mk,nk->mn", (384, 256), (1030, 256)),
    "batch": ("bmk,bkn->bmn", (2, 260, 200), (2, 200, 600)),
    "heads": ("bsd,hde->bhse", (2, 140, 256), (3, 256, 64)),
    "parts": ("mk,kn->mn", (430, 400), (400, 1300)),
}
FIRST = {"parts": ((130, 0), (0, 200))}  # of what is read of each operand, in each dimension


def some_blockings(facts: Contraction, target: str, count: int) -> list[Blocking]:
    """Blockings of all orders, cuts and places of loads that fit on chip."""
    arch, effort = get_target(target).arch, EFFORTS[2]
    model = BlockingModel(facts, arch)
    fitting = [
        each
        for each in blockings(facts, arch, effort)
        if model.estimate(each).fits(facts, arch)
        and model.estimate(each).instructions <= effort.instructions
    ]
    return random.Random(count).sample(fitting, min(count, len(fitting)))


def _fastest(facts: Contraction, target: str, optlevel: int) -> Blocking | None:
    """The fastest blocking that fits, by a look at each."""
    arch, effort = get_target(target).arch, EFFORTS[optlevel]
    model = BlockingModel(facts, arch)
    tried = [(model.estimate(each), each) for each in blockings(facts, arch, effort)]
    fitting = [
        (found.ns, found.instructions, number)
        for number, (found, _) in enumerate(tried)
        if found.fits(facts, arch) and found.instructions <= effort.instructions
    ]
    return tried[min(fitting)[2]][1] if fitting else None


@pytest.mark.parametrize("optlevel", [1, 2, 3])
@pytest.mark.parametrize("target", CORES)
def test_the_blocking_found_is_the_fastest_that_fits_a_room(target: str, optlevel: int) -> None:
    whole = _facts(512, 640, 384)
    found = set()
    for room in (1 << 10, 3 << 10, 12 << 10, 48 << 10, 192 << 10):
        facts = replace(whole, sbuf_bytes=room)
        chosen = next(iter(propose_blockings(facts, target, optlevel, 1)), None)
        assert chosen == _fastest(facts, target, optlevel)
        found.add(chosen)
    assert len(found) > 2


@pytest.mark.parametrize("target", CORES)
def test_proposals_are_unlike_each_other_and_in_order(target: str) -> None:
    facts = replace(_facts(1024, 2048, 1536), sbuf_bytes=64 << 10)
    found = propose_blockings(facts, target, 2, 12)
    model = BlockingModel(facts, get_target(target).arch)
    times = [model.estimate(each).ns for each in found]
    assert len(found) == 12 and times == sorted(times)
    assert all(model.estimate(each).sbuf_bytes <= facts.sbuf_bytes for each in found)
    cuts = [(*((loop.axis, loop.extent) for loop in each.loops), each.depths) for each in found]
    assert len(set(cuts)) > 6


def _facts(rows: int, depth: int, columns: int) -> Contraction:
    """A product in bfloat16 of these extents."""
    axes = (("m", rows), ("n", columns), ("k", depth))
    tiles = (("m", 128), ("n", 128), ("k", 128))
    left, right = (BlockedOperand(names, 2, "hbm") for names in (("k", "m"), ("k", "n")))
    stored = BlockedOperand(("m", "n"), 4, "hbm")
    return Contraction(axes, tiles, "m", "k", left, right, "bfloat16", stored, 4, 1 << 20)


def compiled_in(
    blocking: Blocking, lowered: Any, target: str, patch: pytest.MonkeyPatch
) -> tuple[glia.Neff, Program]:
    """The product in these blocks, and its tile program."""
    seen: list[Program] = []
    patch.setattr(module, "LEAST_ARRAY_NS", 0)
    patch.setattr(module, "propose_blockings", lambda *_: (blocking,))

    def note(snapshot: Any) -> None:
        if snapshot.level == "tile":
            seen.append(snapshot.ir)

    neff = glia.compile(lowered, target=target, auto_cast="none", verify=True, observer=note)
    return neff, seen[-1]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_blocks_change_no_value(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, *shapes = CASES[name]
    generator = np.random.default_rng(1)
    a, b = (generator.standard_normal(shape).astype(np.float32) for shape in shapes)
    parts = [tuple(slice(low, None) for low in each) for each in FIRST.get(name, ((), ()))]
    product = np.einsum(spec, a[parts[0]], b[parts[1]])
    bias = generator.standard_normal(product.shape).astype(np.float32)

    def function(a: Any, b: Any, c: Any) -> Any:
        return jnp.maximum(jnp.einsum(spec, a[parts[0]], b[parts[1]]) + c, 0)

    lowered = jax.jit(function).lower(a, b, bias)
    wanted = np.maximum(product + bias, 0)
    found: list[Contraction] = []
    with monkeypatch.context() as patch:
        patch.setattr(module, "LEAST_ARRAY_NS", 0)
        patch.setattr(module, "propose_blockings", lambda facts, *_: found.append(facts) or ())
        glia.compile(lowered, target=target, auto_cast="none")
    tried = some_blockings(found[0], target, BLOCKINGS)
    assert len(tried) == BLOCKINGS
    for blocking in tried:
        with monkeypatch.context() as patch:
            neff, program = compiled_in(blocking, lowered, target, patch)
        assert any(schedule.blocks for schedule in program.schedules.values())
        assert not any("slower way" in note for note in neff.notes), neff.notes
        assert parse_program(print_program(program)).schedules == program.schedules
        (result,) = glia.load(neff)(a, b, bias)
        np.testing.assert_allclose(result, wanted, 1e-4, 1e-3, err_msg=str(blocking))


@pytest.mark.parametrize("target", CORES)
def test_large_products_keep_the_array_busy(target: str) -> None:
    """The whole of SBUF and PSUM are used, and DMA and the array work at the same time."""
    x = jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16)
    neff = glia.compile(jax.jit(lambda a, b: a @ b).lower(x, x), target=target)
    timing = glia.load(neff).profile().timing
    busy = timing.busy_ns["tensor"]
    assert busy > 0.65 * (timing.end_ns - timing.begin_ns)


@pytest.mark.parametrize("rows", ["m", "n"])
@pytest.mark.parametrize("target", CORES)
def test_transfers_have_runs_along_what_is_not_on_the_partitions(target: str, rows: str) -> None:
    """Those of operands have the contracted axis there, those of the result its rows."""
    extents = {"m": 512, "n": 512, "k": 512}
    left, right = BlockedOperand(("m", "k"), 2, "resident"), BlockedOperand(("k", "n"), 2, "hbm")
    stationary, moving = (left, right) if rows == "m" else (right, left)
    stored = BlockedOperand(("m", "n"), 2, "hbm")
    tiles = {"m": 512, "n": 512, "k": 128} | {rows: 128}
    facts = Contraction(
        tuple(extents.items()), tuple(tiles.items()), rows, "k", stationary, moving, "bf16",
        stored, 0, 1 << 17,
    )  # fmt: skip
    model = BlockingModel(facts, get_target(target).arch)
    plain_ns = 2 * 512 * 512 / model.dma_bytes_per_ns
    assert model.load_ns(right, extents) < 1.5 * plain_ns
    stored_ns = model.load_ns(stored, extents, rows)
    assert (stored_ns < 1.5 * plain_ns) == (rows == "m")
