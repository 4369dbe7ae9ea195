"""Functions of nki.isa with all their parameters, against what their pages say in NumPy's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glia.base.loc import UNKNOWN
from glia.isa.activation import ACTIVATIONS
from glia.isa.alu import ALU_OPS
from glia.isa.instructions.gpsimd import PARTITION_OPS
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.issue.instruction import attribute
from glia.nki.names.language_errors import KernelAdvice
from glia.nki.tensors.nki_tensor import NkiTensor
from support.nki_ways import both, normal, stored

Array = np.ndarray[Any, Any]
RESET, REDUCE = nisa.reduce_cmd.reset_reduce, nisa.reduce_cmd.reduce
LOAD = nisa.reduce_cmd.load_reduce


def new(*shape: int, dtype: str = "float32") -> NkiTensor:
    return nl.ndarray(shape, dtype, buffer=nl.sbuf)


def results(*tiles: NkiTensor) -> tuple[NkiTensor, ...]:
    return tuple(stored(tile) for tile in tiles)


def column(values: Any) -> Array:
    return np.asarray(values, np.float32).reshape(-1, 1)


def _words(text: str) -> list[str]:
    return text.split()


# The tables of operators and of activation functions in NKI's API common fields.
OPERATORS = _words("""
    invert bitwise_and bitwise_or bitwise_xor left_shift right_shift add subtract multiply
    maximum minimum equal not_equal greater_equal greater less_equal less logical_and logical_or
    logical_xor power abs_max abs_min abs square relu rsqrt reciprocal bypass average
""")
FUNCTIONS = _words("""
    copy square sigmoid relu prelu gelu gelu_dx gelu_apprx_tanh gelu_apprx_sigmoid
    gelu_apprx_sigmoid_dx silu silu_dx tanh softplus mish erf erf_dx exp log sin arctan sqrt
    rsqrt reciprocal sign abs
""")


@pytest.mark.parametrize("name", [*OPERATORS, *FUNCTIONS])
def test_every_documented_operator_may_be_given(name: str) -> None:
    assert attribute(getattr(nl, name), UNKNOWN) == name
    assert name in ALU_OPS or name in ACTIVATIONS or name in PARTITION_OPS


def test_partitions_are_averaged() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        dst = new(1, 9)
        nisa.tensor_partition_reduce(dst, nl.average, nl.load(x))
        return stored(dst)

    x = normal(50, 9)
    np.testing.assert_allclose(both(kernel, x), x.mean(axis=0, keepdims=True), atol=1e-6)


# --- indices and selections ---------------------------------------------------------------------

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "equal": np.equal, "less": np.less, "less_equal": np.less_equal, "greater": np.greater,
    "greater_equal": np.greater_equal,
}  # fmt: skip


@pytest.mark.parametrize("name", COMPARISONS)
def test_affine_select(name: str) -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        dst = new(9, 20)
        nisa.affine_select(
            dst, [[-3, 4], [2, 5]], 7, nl.load(x), -1.5, cmp_op=getattr(nl, name), offset=-20
        )
        return stored(dst)

    x = normal(9, 20)
    p, i, j = np.ogrid[:9, :4, :5]
    chosen = COMPARISONS[name](-20 + 7 * p - 3 * i + 2 * j, 0).reshape(9, 20)
    np.testing.assert_array_equal(both(kernel, x), np.where(chosen, x, np.float32(-1.5)))


@pytest.mark.parametrize("first", COMPARISONS)
def test_range_select_goes_on_with_its_maximum(first: str) -> None:
    def kernel(x: NkiTensor, low: NkiTensor, high: NkiTensor) -> tuple[NkiTensor, ...]:
        tile, bounds = nl.load(x), (nl.load(low), nl.load(high))
        left, right, most = new(6, 10), new(6, 10), new(6, 1)
        operators = (getattr(nl, first), nl.less)
        nisa.range_select(left, tile, *operators, *bounds, range_start=-3)
        nisa.range_select(right, tile, *operators, *bounds, REDUCE, most, nl.maximum, 7)
        return results(left, right, most)

    x = normal(6, 10)
    low, high = column([-2, 0, 3, 5, 8, 40]), column([4, 9, 12, 5, 17, 50])
    expected = []
    for start in (-3, 7):
        index = start + np.arange(10, dtype=np.float32)
        chosen = COMPARISONS[first](index, low) & (index < high)
        expected.append(np.where(chosen, x, np.finfo(np.float32).min))
    expected.append(np.maximum(*expected).max(axis=1, keepdims=True))
    for found, wanted in zip(both(kernel, x, low, high), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("reverse", [False, True])
def test_select_reduce_goes_on_with_its_maximum(reverse: bool) -> None:
    def kernel(x: NkiTensor, mask: NkiTensor, other: NkiTensor) -> tuple[NkiTensor, ...]:
        tile, chosen, instead = nl.load(x), nl.load(mask), nl.load(other)
        left, right, first, both_most = new(6, 10), new(6, 10), new(6, 1), new(6, 1)
        nisa.select_reduce(left, chosen, tile, instead, first, RESET, reverse_pred=reverse)
        nisa.select_reduce(right, chosen, tile, -7.5, both_most, REDUCE, nl.maximum, not reverse)
        return results(left, right, first, both_most)

    x, other = normal(6, 10), normal(6, 1, seed=1)
    mask = np.random.default_rng(2).integers(0, 3, (6, 10)).astype(np.uint8)
    chosen = (mask != 0) ^ reverse
    left, right = np.where(chosen, x, other), np.where(~chosen, x, np.float32(-7.5))
    first = left.max(axis=1, keepdims=True)
    most = np.maximum(first, right.max(axis=1, keepdims=True))
    for found, wanted in zip(both(kernel, x, mask, other), (left, right, first, most), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_the_eight_greatest_are_found_and_replaced() -> None:
    def kernel(x: NkiTensor) -> tuple[NkiTensor, ...]:
        tile, most, left = nl.load(x), new(5, 8), new(5, 30)
        places, found = new(5, 8, dtype="uint32"), new(5, 8, dtype="uint16")
        nisa.max8(most, tile)
        nisa.nc_find_index8(found, tile, most)
        nisa.nc_match_replace8(left, tile, most, -99.0, places)
        return results(most, found, left, places)

    x = np.random.default_rng(1).permutation(150).reshape(5, 30).astype(np.float32)
    order = np.argsort(-x, axis=1)[:, :8]
    left = x.copy()
    np.put_along_axis(left, order, -99, axis=1)
    most, found, replaced, places = both(kernel, x)
    np.testing.assert_array_equal(most, np.take_along_axis(x, order, axis=1))
    np.testing.assert_array_equal(found, order)
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(replaced, left)


def test_repeated_values_are_paired_as_documented() -> None:
    def kernel(x: NkiTensor, values: NkiTensor) -> tuple[NkiTensor, ...]:
        tile, eight = nl.load(x), nl.load(values)
        left, places, found = new(1, 11), new(1, 8, dtype="uint32"), new(1, 8, dtype="uint32")
        nisa.nc_match_replace8(dst=left, data=tile, vals=eight, imm=0.0, dst_idx=places)
        nisa.nc_find_index8(dst=found, data=tile, vals=eight)
        return results(places, found)

    x = np.array([[1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    values = np.array([[3, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    places, found = both(kernel, x, values)
    assert places.tolist() == [[2, 10, 9, 8, 7, 6, 5, 4]]
    assert found.tolist() == [[2, 4, 5, 6, 7, 8, 9, 10]]


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_nonzero_with_count(dtype: Any) -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        dst = new(32, 9, dtype="int32")
        nisa.memset(dst, 77)
        nisa.nonzero_with_count(dst, nl.load(x), index_offset=16, padding_val=-5)
        return stored(dst)

    x = np.zeros((32, 8), dtype)
    x[0], x[16], x[1] = [0, 1, 1, 0, 0, 1, 0, 0], 3, 9
    expected = np.full((32, 9), 77)
    expected[0], expected[16] = [17, 18, 21, -5, -5, -5, -5, -5, 3], [*range(16, 24), 8]
    np.testing.assert_array_equal(both(kernel, x), expected)


def test_local_gather_of_some_indices() -> None:
    def kernel(x: NkiTensor, index: NkiTensor) -> NkiTensor:
        dst = new(32, 20, 2)
        nisa.local_gather(dst, nl.load(x), nl.load(index), 2, 20)
        return stored(dst)

    x = normal(32, 40)
    index = np.random.default_rng(1).integers(0, 39, (32, 2)).astype(np.uint16)
    expected = np.empty((32, 20, 2), np.float32)
    for p, i, k in np.ndindex(expected.shape):
        core = p // 16 * 16
        expected[p, i, k] = x[p, int(index[core + i % 16, i // 16]) + k]
    np.testing.assert_array_equal(both(kernel, x, index), expected)


def test_topk_writes_values_and_places() -> None:
    def kernel(x: NkiTensor) -> tuple[NkiTensor, ...]:
        values, places = new(16, 8, dtype="bfloat16"), new(16, 8, dtype="uint32")
        nisa.memset(values, 0.0)
        nisa.memset(places, 0)
        nisa.topk(values, places, nl.load(x, dtype=nl.bfloat16), 42)
        return results(nl.copy(values, dtype=nl.float32), places)

    x = np.random.default_rng(1).permutation(48).reshape(16, 3).astype(np.float32)
    snake = x.T.reshape(-1)[:42]
    values, places = both(kernel, x)
    np.testing.assert_array_equal(values[:8, 0], np.sort(snake)[-8:])
    np.testing.assert_array_equal(places[:8, 0], np.argsort(snake)[-8:])


# --- operators ----------------------------------------------------------------------------------

FLAGS = [(False, False), (True, False), (False, True), (True, True)]


def _two(first: Any, second: Any, is_turned: bool) -> Any:
    return second - first if is_turned else first - second


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_operands_are_exchanged_one_by_one(flags: tuple[bool, bool]) -> None:
    def kernel(x: NkiTensor, y: NkiTensor, c: NkiTensor) -> tuple[NkiTensor, ...]:
        a, b, scalars, running = nl.load(x), nl.load(y), new(6, 9), new(6, 9)
        mixed, each = new(6, 9), nl.load(c)
        nisa.tensor_scalar(scalars, a, nl.subtract, each, flags[0], nl.subtract, 2.5, flags[1])
        nisa.scalar_tensor_tensor(mixed, a, nl.subtract, each, nl.subtract, b, *flags)
        nisa.tensor_tensor_scan(running, a, b, each, nl.multiply, nl.subtract, *flags)
        return results(scalars, mixed, running)

    x, y, c = normal(6, 9), normal(6, 9, seed=1), normal(6, 1, seed=2)
    scalars, mixed, running = both(kernel, x, y, c)
    step = _two(x, c, flags[0])
    np.testing.assert_array_equal(scalars, _two(step, np.float32(2.5), flags[1]))
    np.testing.assert_array_equal(mixed, _two(step, y, flags[1]))
    state = c[:, 0]
    for i in range(9):
        state = _two(x[:, i] * state, y[:, i], flags[1])
        np.testing.assert_allclose(running[:, i], state, rtol=1e-5, atol=1e-5)


def test_a_scan_divides_what_it_takes_by_its_flags() -> None:
    def kernel(x: NkiTensor, y: NkiTensor) -> tuple[NkiTensor, ...]:
        a, b, plain, turned = nl.load(x), nl.load(y), new(3, 5), new(3, 5)
        nisa.tensor_tensor_scan(plain, a, b, 2.0, nl.subtract, nl.maximum)
        nisa.tensor_tensor_scan(turned, a, b, 2.0, nl.subtract, nl.maximum, reverse0=True)
        return results(plain, turned)

    x, y = normal(3, 5), normal(3, 5, seed=1)
    for found, is_turned in zip(both(kernel, x, y), (False, True), strict=True):
        state: Any = np.float32(2)
        for i in range(5):
            state = np.maximum(_two(x[:, i], state, is_turned), y[:, i])
            np.testing.assert_array_equal(found[:, i], state)


def test_scans_start_from_their_initial_value() -> None:
    def kernel(x: NkiTensor, c: NkiTensor) -> tuple[NkiTensor, ...]:
        tile, start = nl.load(x), nl.load(c)
        loaded, further, fresh = (new(4, 6) for _ in "abc")
        scan = nisa.tensor_scalar_cumulative
        scan(loaded, tile, nl.multiply, nl.add, 2.0, start, LOAD)
        scan(further, tile, nl.add, nl.add, start, reduce_cmd=REDUCE)
        scan(fresh, tile, nl.subtract, nl.maximum, 1.0)
        return results(loaded, further, fresh)

    x, c = normal(4, 6), normal(4, 1, seed=1)
    loaded, further, fresh = both(kernel, x, c)
    expected = c + np.cumsum(2 * x, axis=1)
    np.testing.assert_allclose(loaded, expected, rtol=1e-5, atol=1e-5)
    onward = expected[:, -1:] + np.cumsum(x + c, axis=1)
    np.testing.assert_allclose(further, onward, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(fresh, np.maximum.accumulate(x - 1, axis=1))


def test_a_scalar_operation_reduces_from_its_initial_value() -> None:
    def kernel(x: NkiTensor, c: NkiTensor) -> tuple[NkiTensor, ...]:
        tile, start, dst = nl.load(x), nl.load(c), new(4, 2, 3)
        first, second, third = (new(4, 1) for _ in "abc")
        step = nisa.tensor_scalar_reduce
        step(dst, tile, nl.multiply, 3.0, nl.add, first, False, LOAD, start)
        step(dst, tile, nl.add, start, nl.add, second, reduce_cmd=REDUCE, reduce_res_negate=True)
        step(dst, tile, nl.abs, 0, nl.minimum, third)
        return results(first, second, third)

    x, c = normal(4, 2, 3), normal(4, 1, seed=1)
    rows = x.reshape(4, 6)
    first, second, third = both(kernel, x, c)
    expected = c + (3 * rows).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(first, expected, rtol=1e-5, atol=1e-5)
    expected = expected + (rows + c).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(second, -expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(third, np.abs(rows).min(axis=1, keepdims=True))


# --- functions of the tables --------------------------------------------------------------------


def test_exponentials_are_summed_from_their_initial_value() -> None:
    def kernel(x: NkiTensor, c: NkiTensor) -> tuple[NkiTensor, ...]:
        tile, most, dst, first, second = nl.load(x), nl.load(c), new(4, 6), new(4, 1), new(4, 1)
        nisa.exponential(dst, tile, most, first, LOAD, most)
        nisa.exponential(dst, tile, 0.5, second, REDUCE)
        return results(first, second, dst)

    x, c = normal(4, 6), normal(4, 1, seed=1)
    first, second, dst = both(kernel, x, c)
    expected = c + np.exp(x - c).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(first, expected, rtol=1e-5)
    expected = expected + np.exp(x - 0.5).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(second, expected, rtol=1e-5)
    np.testing.assert_allclose(dst, np.exp(x - 0.5), rtol=1e-5)


def test_activations_scale_shift_and_sum() -> None:
    def kernel(x: NkiTensor, b: NkiTensor, s: NkiTensor) -> tuple[NkiTensor, ...]:
        tile, bias, scale = nl.load(x), nl.load(b), nl.load(s)
        dst, reduced, first, second = new(4, 6), new(4, 1), new(4, 1), new(4, 1)
        nisa.activation_reduce(dst, nl.tanh, tile, nl.add, reduced, bias, scale)
        nisa.activation(dst, nl.square, tile, 0.5, 2.0, nl.add, None, RESET)
        nisa.activation(dst, nl.exp, tile, bias, scale, nl.add, first, REDUCE)
        nisa.activation(dst, nl.exp, tile, reduce_op=nl.add, reduce_res=second)
        return results(reduced, first, second, dst)

    x, b, s = normal(4, 6), normal(4, 1, seed=1), normal(4, 1, seed=2)
    reduced, first, second, dst = both(kernel, x, b, s)
    expected = np.tanh(x * s + b).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(reduced, expected, rtol=1e-5, atol=1e-5)
    squares = np.square(2 * x + 0.5).sum(axis=1, keepdims=True)
    expected = squares + np.exp(x * s + b).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(first, expected, rtol=1e-5)
    np.testing.assert_array_equal(second, first)  # idle leaves what was there
    np.testing.assert_allclose(dst, np.exp(x), rtol=1e-5)


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_activate2_takes_two_operators(flags: tuple[bool, bool]) -> None:
    def kernel(x: NkiTensor, b: NkiTensor) -> tuple[NkiTensor, ...]:
        tile, other, dst, most = nl.load(x), nl.load(b), new(4, 6), new(4, 1)
        nisa.activate2(
            dst, nl.prelu, tile, 2.0, 0.25, nl.multiply, nl.subtract, 0.125, *flags, nl.maximum,
            most, RESET,
        )  # fmt: skip
        single = new(4, 6)
        nisa.activate2(
            single, nl.copy, tile, other, other, nl.subtract, nl.bypass, reverse0=flags[0]
        )
        return results(dst, most, single)

    x, b = normal(4, 6), normal(4, 1, seed=1)
    dst, most, single = both(kernel, x, b)
    argument = _two(2 * x, np.float32(0.25), flags[1])
    expected = np.where(argument < 0, argument * np.float32(0.125), argument)
    np.testing.assert_array_equal(dst, expected)
    np.testing.assert_array_equal(most, expected.max(axis=1, keepdims=True))
    np.testing.assert_array_equal(single, _two(x, b, flags[0]))


# --- random numbers, products, transfers --------------------------------------------------------


def test_random_numbers_lie_between_their_bounds() -> None:
    def kernel(low: NkiTensor, high: NkiTensor) -> tuple[NkiTensor, ...]:
        plain, bounded = new(64, 50), new(64, 50)
        nisa.rand2(plain, 2.0, 5.0)
        nisa.rand2(bounded, nl.load(low), nl.load(high))
        return results(plain, bounded)

    low = column(np.arange(64))
    plain, bounded = both(kernel, low, low + 0.5)
    assert plain.min() >= 2 and plain.max() <= 5 and plain.std() > 0.8
    assert (bounded >= low).all() and (bounded <= low + 0.5).all() and bounded.std(axis=1).all()


def test_microscaled_products_add_or_start_over() -> None:
    def kernel(x: NkiTensor) -> tuple[NkiTensor, ...]:
        tile = nl.load(x, dtype=nl.bfloat16)
        packed, scales = new(32, 8, dtype="float8_e4m3fn_x4"), new(32, 8, dtype="uint8")
        nisa.memset(scales, 0)
        nisa.quantize_mx(packed, tile, scales)
        total, fresh = (nl.ndarray((8, 8), nl.float32, buffer=nl.psum) for _ in "ab")
        operands = (packed, packed, scales, scales)
        rows = {"tile_position": (0, 0), "tile_size": (32, 128)}
        nisa.nc_matmul_mx(total, *operands, accumulate=False, **rows)
        nisa.nc_matmul_mx(total, *operands, accumulate=True)
        nisa.nc_matmul_mx(fresh, *operands, accumulate=False)
        nisa.nc_matmul_mx(fresh, *operands, accumulate=False)
        return results(total, fresh)

    x = np.random.default_rng(1).integers(-8, 8, (32, 32)).astype(np.float32)
    total, fresh = both(kernel, x)
    product = x.reshape(32, 8, 4).transpose(1, 0, 2).reshape(8, -1)
    np.testing.assert_array_equal(fresh, product @ product.T)
    np.testing.assert_array_equal(total, 2 * fresh)


def test_rows_are_added_where_indices_lead_and_others_skipped() -> None:
    def kernel(table: NkiTensor, x: NkiTensor, index: NkiTensor) -> NkiTensor:
        out = nl.ndarray((10, 4), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, table)
        rows, places = nl.load(x), nl.load(index)
        there = out.ap(pattern=[[4, 6], [1, 4]], vector_offset=places, indirect_dim=0)
        nisa.dma_compute(there, [there, rows], nl.add, [1.0, 1.0], True, nisa.oob_mode.skip)
        return out

    table, x = normal(10, 4), normal(6, 4, seed=1)
    index = np.array([[3], [12], [0], [9], [10], [5]], np.uint32)
    expected = table.copy()
    for row, (place,) in zip(x, index.tolist(), strict=True):
        if place < 10:
            expected[place] += row
    np.testing.assert_array_equal(both(kernel, table, x, index), expected)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("shape", [(128, 64), (33, 32), (32, 7, 6)])
def test_the_vector_engine_transposes_a_large_tile_in_squares(
    shape: tuple[int, ...], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Releases that chose the engine by themselves took such tiles."""
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
    x = normal(*shape)

    def kernel(x: NkiTensor) -> Any:
        data, turned = new(*shape), new(x.size // shape[0], shape[0])
        nisa.dma_copy(dst=data, src=x)
        nisa.nc_transpose(dst=turned, data=data, engine=nisa.engine.vector)
        return results(turned)

    squares = -(-shape[0] // 32) * -(-(x.size // shape[0]) // 32)
    with pytest.warns(KernelAdvice, match=f"take {squares} instructions"):
        (found,) = both(kernel, x)
    np.testing.assert_array_equal(found, x.reshape(shape[0], -1).T)
