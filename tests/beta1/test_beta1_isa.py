"""Functions of Beta 1's nki.isa with all their parameters, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glia.nki import beta1 as nki
from glia.nki.beta1 import isa as nisa
from glia.nki.beta1 import language as nl

Array = np.ndarray[Any, Any]
RESET, REDUCE = nisa.reduce_cmd.reset_reduce, nisa.reduce_cmd.reduce
FLAGS = [(False, False), (True, False), (False, True), (True, True)]


@pytest.fixture(autouse=True)
def on_trn2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")


def run(body: Callable[..., tuple[Any, ...]], *arrays: Array) -> list[Array]:
    """What a kernel stores of the tiles that `body` returns."""

    def kernel(*tensors: Any) -> Any:
        stored = []
        for tile in body(*tensors):
            out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
            nl.store(out, tile)
            stored.append(out)
        return tuple(stored)

    found = nki.jit(kernel)(*arrays)
    return list(found) if isinstance(found, tuple | list) else [found]


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def column(rows: int) -> Any:
    return nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)


def two(first: Any, second: Any, is_turned: bool) -> Any:
    return second - first if is_turned else first - second


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_operands_are_exchanged_one_by_one(flags: tuple[bool, bool]) -> None:
    def body(x: Any, y: Any, c: Any) -> tuple[Any, ...]:
        a, b, each = nl.load(x), nl.load(y), nl.load(c)
        return (
            nisa.tensor_scalar(a, np.subtract, each, flags[0], np.subtract, 2.5, flags[1]),
            nisa.scalar_tensor_tensor(
                data=a, op0=np.subtract, operand0=each, op1=np.subtract, operand1=b,
                reverse0=flags[0], reverse1=flags[1],
            ),
            nisa.tensor_tensor_scan(a, b, each, np.subtract, np.subtract, *flags),
            nisa.tensor_tensor_scan(a, b, 1.5, np.multiply, np.maximum),
        )  # fmt: skip

    x, y, c = normal(6, 9), normal(6, 9, seed=1), normal(6, 1, seed=2)
    scalars, mixed, running, greatest = run(body, x, y, c)
    step = two(x, c, flags[0])
    np.testing.assert_array_equal(scalars, two(step, np.float32(2.5), flags[1]))
    np.testing.assert_array_equal(mixed, two(step, y, flags[1]))
    state, most = c[:, 0], np.float32(1.5)
    for i in range(9):
        state = two(two(x[:, i], state, flags[0]), y[:, i], flags[1])
        most = np.maximum(x[:, i] * most, y[:, i])
        np.testing.assert_allclose(running[:, i], state, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(greatest[:, i], most, rtol=1e-5, atol=1e-5)


def test_operators_apply_in_order() -> None:
    def body(x: Any, y: Any) -> tuple[Any, ...]:
        a, b = nl.load(x), nl.load(y)
        options = {"data": a, "operand0": 3.0, "operand1": b}
        return (
            nisa.scalar_tensor_tensor(op0=np.multiply, op1=np.add, **options),
            nisa.scalar_tensor_tensor(op0=np.add, op1=np.multiply, **options),
        )

    x, y = normal(6, 9), normal(6, 9, seed=1)
    first, second = run(body, x, y)
    np.testing.assert_array_equal(first, x * np.float32(3) + y)
    np.testing.assert_array_equal(second, (x + np.float32(3)) * y)


@pytest.mark.parametrize("order", [(1, 0), (2, 1, 0), (3, 1, 2, 0)], ids=str)
def test_transfers_transpose(order: tuple[int, ...]) -> None:
    def body(x: Any) -> tuple[Any, ...]:
        by_hardware = nisa.dma_transpose(x, dge_mode=nisa.dge_mode.hwdge)
        within = nisa.dma_transpose(nl.load(x), axes=order)
        return nisa.dma_transpose(x, axes=order), nisa.dma_transpose(x), by_hardware, within

    x = normal(*(16, 4, 2, 6)[: len(order)]).astype(np.float16)
    for found in run(body, x):
        np.testing.assert_array_equal(found.reshape(-1), x.transpose(order).reshape(-1))


def test_activations_scale_shift_and_sum() -> None:
    def body(x: Any, b: Any, s: Any) -> tuple[Any, ...]:
        tile, bias, scale = nl.load(x), nl.load(b), nl.load(s)
        reduced, most = column(4), column(4)
        plain = nisa.activation(np.exp, tile, bias=bias, scale=scale, dtype=nl.bfloat16)
        summed = nisa.activation_reduce(
            np.tanh, tile, reduce_op=np.add, reduce_res=reduced, bias=bias, scale=0.5
        )
        scaled = nisa.tensor_scalar_reduce(
            data=tile, op0=np.multiply, operand0=scale, reduce_op=np.max, reduce_res=most
        )
        return nl.copy(plain, dtype=nl.float32), summed, scaled, reduced, most

    x, b, s = normal(4, 6), normal(4, 1, seed=1), normal(4, 1, seed=2)
    plain, summed, scaled, reduced, most = run(body, x, b, s)
    np.testing.assert_allclose(plain, np.exp(x * s + b), rtol=1e-2)
    tanh = np.tanh(x * np.float32(0.5) + b)
    np.testing.assert_allclose(summed, tanh, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(reduced, tanh.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(scaled, x * s)
    np.testing.assert_array_equal(most, (x * s).max(axis=1, keepdims=True))


def test_reductions_negate_and_keep_dimensions() -> None:
    def body(x: Any) -> tuple[Any, ...]:
        tile = nl.load(x)
        kept = nisa.tensor_reduce(np.add, tile, axis=[1], negate=True, keepdims=True)
        return kept, nisa.tensor_reduce(np.max, tile, axis=[1])

    x = normal(5, 7)
    kept, most = run(body, x)
    assert kept.shape == (5, 1)
    np.testing.assert_allclose(kept, -x.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(most.reshape(5), x.max(axis=1))


def test_running_results_start_where_they_are_told() -> None:
    def body(x: Any, c: Any) -> tuple[Any, ...]:
        tile, start = nl.load(x), nl.load(c)
        made = [nl.ndarray((4, 6), dtype=nl.float32, buffer=nl.sbuf) for _ in range(3)]
        options = {"op0": np.multiply, "op1": np.subtract, "imm0": 2.0}
        load = nisa.reduce_cmd.load_reduce
        scan = nisa.tensor_scalar_cumulative
        scan(dst=made[0], src=tile, **options, imm1=start, reduce_cmd=load)
        scan(dst=made[1], src=tile, **options, reduce_cmd=REDUCE)
        scan(dst=made[2], src=tile, **options)
        return tuple(made)

    x, c = normal(4, 6), normal(4, 1, seed=1)
    state = c[:, 0]
    found = run(body, x, c)
    for i in range(12):
        state = 2 * x[:, i % 6] - state
        np.testing.assert_allclose(found[i // 6][:, i % 6], state, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[2][:, :2], [[2 * a, 2 * b - 2 * a] for a, b in x[:, :2]],
                               rtol=1e-5, atol=1e-5)  # fmt: skip


@pytest.mark.parametrize("is_turned", [False, True])
def test_copies_and_selections_follow_a_predicate(is_turned: bool) -> None:
    def body(x: Any, mask: Any, c: Any) -> tuple[Any, ...]:
        tile, chosen, most = nl.load(x), nl.load(mask), column(6)
        copied = nl.zeros((6, 10), dtype=nl.float32, buffer=nl.sbuf)
        selected = nl.zeros((6, 10), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy_predicated(src=tile, dst=copied, predicate=chosen, reverse_pred=is_turned)
        nisa.select_reduce(
            dst=selected, predicate=chosen, on_true=tile, on_false=nl.load(c), reduce_res=most,
            reduce_cmd=RESET, reduce_op=np.max, reverse_pred=is_turned,
        )  # fmt: skip
        return copied, selected, most

    x, c = normal(6, 10), normal(6, 1, seed=1)
    mask = np.random.default_rng(2).integers(0, 2, (6, 10)).astype(np.uint8)
    copied, selected, most = run(body, x, mask, c)
    chosen = (mask != 0) ^ is_turned
    expected = np.where(chosen, x, c)
    np.testing.assert_array_equal(copied, np.where(chosen, x, 0))
    np.testing.assert_array_equal(selected, expected)
    np.testing.assert_array_equal(most, expected.max(axis=1, keepdims=True))


def test_what_is_skipped_or_added_to_keeps_its_first_contents() -> None:
    def body(table: Any, index: Any) -> tuple[Any, ...]:
        rows = nl.full((4, 3), 7.0, dtype=nl.float32, buffer=nl.sbuf)
        places, i_f = nl.load(index), nl.arange(3)[None, :]
        nisa.dma_copy(dst=rows, src=table[places, i_f], oob_mode=nisa.oob_mode.skip)
        sums = nl.ndarray((4, 3), dtype=nl.float32, buffer=nl.private_hbm)
        nl.store(sums, nl.full((4, 3), 2.0, dtype=nl.float32, buffer=nl.sbuf))
        nisa.dma_copy(dst=sums, src=rows, dst_rmw_op=np.add)
        return rows, nl.load(sums)

    table, index = normal(5, 3), np.array([[1], [9], [4], [5]], np.int32)
    rows, sums = run(body, table, index)
    expected = np.stack([table[1], np.full(3, 7), table[4], np.full(3, 7)]).astype(np.float32)
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(sums, expected + 2)


def test_range_select_goes_on_with_its_maximum() -> None:
    def body(x: Any, low: Any, high: Any) -> tuple[Any, ...]:
        options = {
            "on_true_tile": nl.load(x), "comp_op0": np.greater_equal, "comp_op1": np.less,
            "bound0": nl.load(low), "bound1": nl.load(high), "reduce_op": np.max,
            "on_false_value": nl.fp32.min,
        }  # fmt: skip
        most = column(3)
        first = nisa.range_select(**options, reduce_cmd=RESET, range_start=-2)
        second = nisa.range_select(**options, reduce_cmd=REDUCE, reduce_res=most, range_start=8)
        return first, second, most

    x = normal(3, 10)
    low = np.array([[0], [5], [20]], np.float32)
    high = np.array([[4], [12], [30]], np.float32)
    expected = []
    for start in (-2, 8):
        index = start + np.arange(10)
        chosen = (index >= low) & (index < high)
        expected.append(np.where(chosen, x, np.finfo(np.float32).min))
    expected.append(np.maximum(*expected).max(axis=1, keepdims=True))
    for found, wanted in zip(run(body, x, low, high), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_the_eight_greatest_are_found_and_replaced() -> None:
    def body(x: Any) -> tuple[Any, ...]:
        tile = nl.load(x)
        most = nisa.max8(src=tile)
        places = nl.ndarray((5, 8), dtype=nl.uint32, buffer=nl.sbuf)
        found = nisa.nc_find_index8(data=tile, vals=most)
        left = nisa.nc_match_replace8(data=tile, vals=most, imm=-99.0, dst_idx=places)
        return most, found, left, places

    x = np.random.default_rng(1).permutation(150).reshape(5, 30).astype(np.float32)
    order = np.argsort(-x, axis=1)[:, :8]
    replaced = x.copy()
    np.put_along_axis(replaced, order, -99, axis=1)
    most, found, left, places = run(body, x)
    np.testing.assert_array_equal(most, np.take_along_axis(x, order, axis=1))
    np.testing.assert_array_equal(found, order)
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(left, replaced)


@pytest.mark.parametrize("valid", [64, 20])
def test_local_gather_of_runs(valid: int) -> None:
    def body(x: Any, index: Any) -> tuple[Any, ...]:
        return (nisa.local_gather(nl.load(x), nl.load(index), 2, valid),)

    x = normal(32, 40)
    index = np.random.default_rng(1).integers(0, 39, (32, 4)).astype(np.uint16)
    (found,) = run(body, x, index)
    gathered = found.reshape(32, valid, 2)
    for p, i, k in np.ndindex(gathered.shape):
        start = int(index[p // 16 * 16 + i % 16, i // 16])
        assert gathered[p, i, k] == x[p, start + k]


def test_statistics_shuffles_and_bounds() -> None:
    def body(x: Any, ids: Any) -> tuple[Any, ...]:
        tile = nl.load(x)
        moved = nl.zeros((32, 6), dtype=nl.float32, buffer=nl.sbuf)
        nisa.nc_stream_shuffle(tile, moved, [31 - i if i != 3 else 255 for i in range(32)])
        bounds = nisa.sequence_bounds(segment_ids=nl.load(ids))
        return nisa.bn_aggr(nisa.bn_stats(tile)), moved, bounds, nisa.reciprocal(tile)

    x, ids = normal(32, 6), np.array([[0, 1, 1, 2, 2, 2, 0, 1]], np.int32)
    pair, moved, bounds, inverse = run(body, x, ids)
    expected = np.stack([x.mean(axis=1), x.var(axis=1)], 1)
    np.testing.assert_allclose(pair, expected, rtol=1e-5, atol=1e-6)
    turned = x[::-1].copy()
    turned[3] = 0
    np.testing.assert_array_equal(moved, turned)
    wanted = [[8, 1, 1, 3, 3, 3, 8, 7], [-1, 3, 3, 6, 6, 6, -1, 8]]
    np.testing.assert_array_equal(bounds.reshape(2, 8), wanted)
    np.testing.assert_array_equal(inverse, 1 / x)


@pytest.mark.parametrize("shape", [(128, 64), (32, 32), (100, 33), (5, 128)])
def test_the_vector_engine_transposes_large_tiles_in_blocks(shape: tuple[int, int]) -> None:
    def body(x: Any) -> tuple[Any, ...]:
        return (nisa.nc_transpose(nl.load(x), engine=nisa.vector_engine),)

    x = normal(*shape)
    (found,) = run(body, x)
    np.testing.assert_array_equal(found, x.T)
