"""Products of few rows: their weights arrive in long runs and few transfers, once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.arch import Arch
from glia.frontend.registry import read_module
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.dma_transpose import DmaTranspose
from glia.machine.ir import walk
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.tile.ir import Load, Nest
from glia.tile.passes import schedule
from support.targets import CORES


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize(("rows", "is_left"), [(1, True), (4, True), (1, False)])
def test_weights_move_past_the_few_rows(target: str, rows: int, is_left: bool) -> None:
    x = jax.ShapeDtypeStruct((rows, 2048), jnp.bfloat16)
    w = jax.ShapeDtypeStruct((2048, 1024), jnp.bfloat16)
    lowered = jax.jit(lambda x, w: x @ w if is_left else (w.T @ x.T)).lower(x, w)
    options = CompileOptions(target=target)
    nests = run_pipeline(read_module(lowered), options, stop_after="schedule_nests")
    (found,) = (s for s in nests.schedules.values() if s.engine == "tensor")
    assert (found.stationary == "left") == is_left
    columns = nests.buffers[nests.outputs[0]].shape[0 if not is_left else 1]
    assert max(found.tiles.values()) == columns == 1024
    assert found.tiles[found.contract] == 512


@pytest.mark.parametrize("order", ["kcn", "knc", "ckn", "cnk", "nkc", "nck"])
@pytest.mark.parametrize("result", ["kn", "nk"])
def test_weights_of_two_axes_that_stay_are_right_in_every_order(order: str, result: str) -> None:
    """Only one of the two is on the partitions of the result; the other is none of the columns."""
    extents = {"k": 128, "c": 8, "n": 3}
    rng = np.random.default_rng(0)
    weights = rng.integers(-8, 8, [extents[axis] for axis in order]).astype(np.float32)
    x = rng.integers(-8, 8, extents["c"]).astype(np.float32)
    lowered = jax.jit(lambda w, x: jnp.einsum(f"{order},c->{result}", w, x)).lower(weights, x)
    target = CORES[sum(map(ord, order[0] + result[0])) % len(CORES)]
    (found,) = glia.load(glia.compile(lowered, target=target, verify=True))(weights, x)
    np.testing.assert_array_equal(found, np.einsum(f"{order},c->{result}", weights, x))


def test_blocks_of_a_product_come_in_one_transfer() -> None:
    x, w = np.ones((4, 1024), np.float32), np.ones((1024, 64), np.float32)
    neff = glia.compile(jax.jit(lambda x, w: x @ w).lower(x, w))
    loads = [each for each in walk(neff.program.body) if isinstance(each, DmaCopy)]
    sources = [each.src.tile.name for each in loads if each.queue == "load"]
    assert len(sources) == len(set(sources)) == 2
    (found,) = glia.load(neff)(x, w)
    np.testing.assert_array_equal(found, x @ w)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("target", CORES)
def test_tiles_of_any_width_give_the_same_values(
    target: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tile may be several instructions wide along the rows, the columns and what is summed."""
    rng = np.random.default_rng(seed)
    m, k, n = int(rng.choice([1, 3, 70])), int(rng.choice([256, 640])), int(rng.choice([384, 1024]))

    def any_tiles(
        nest: Nest,
        tiles: dict[str, int],
        rows: str,
        contract: str,
        operands: tuple[Load, Load],
        arch: Arch,
    ) -> dict[str, int]:
        found = dict(tiles)
        for axis, extent in nest.extents.items():
            if extent % 128 == 0 and (axis in (rows, contract) or m == 1 or axis == "n"):
                most = extent // 128 if axis != "n" or axis == rows else min(extent // 128, 8)
                found[axis] = 128 * int(rng.integers(1, most + 1))
        return found

    monkeypatch.setattr(schedule, "wide_tiles", any_tiles)
    x, w, v = (rng.integers(-4, 5, s).astype(np.float32) for s in ((m, k), (k, n), (n, 256)))
    bias = rng.integers(-4, 5, n).astype(np.float32)
    lowered = jax.jit(lambda x, w, b, v: jnp.maximum(x @ w + b, 0) @ v).lower(x, w, bias, v)
    (found,) = glia.load(glia.compile(lowered, target=target, verify=True))(x, w, bias, v)
    np.testing.assert_array_equal(found, np.maximum(x @ w + bias, 0) @ v)


@pytest.mark.parametrize("target", CORES)
def test_keys_of_several_heads_are_transposed_in_long_runs(target: str) -> None:
    q = jax.ShapeDtypeStruct((8, 4, 128), jnp.bfloat16)
    keys = jax.ShapeDtypeStruct((256, 8, 128), jnp.bfloat16)
    lowered = jax.jit(lambda q, k: jnp.einsum("grd,kgd->grk", q, k)).lower(q, keys)
    neff = glia.compile(lowered, target=target)
    turned = [each for each in walk(neff.program.body) if isinstance(each, DmaTranspose)]
    runs = [each.dst.contiguous_bytes for each in turned if each.src.tile.name.startswith("input1")]
    assert runs and min(runs) >= 128
