"""A kernel gives what NumPy gives, and what is wrong with it is told at its own line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import glia
import glia.nki.isa as nisa
import glia.nki.language as nl
from glia.base.errors import CompileError
from glia.machine.legal import verify
from glia.nki.names.errors import (
    BrokenRule,
    ImpossibleTensor,
    IndexOutsideTensor,
    MaskNotSupported,
    NoSuchName,
    NotAnOutput,
    NotInNki,
    OutsideKernel,
)
from glia.nki.run.trace import trace
from glia.nki.tensors.nki_tensor import NkiTensor

RANDOM = np.random.default_rng(3)


def array(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def load(tensor: NkiTensor) -> NkiTensor:
    tile = nl.ndarray(tensor.shape, tensor.dtype)
    nisa.dma_copy(tile, tensor)
    return tile


def store(tile: NkiTensor) -> NkiTensor:
    result = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm, name="result")
    nisa.dma_copy(dst=result, src=tile)
    return result


def add(a: NkiTensor, b: NkiTensor) -> NkiTensor:
    total = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(total, load(a), load(b), nl.add)
    return store(total)


def exponential(x: NkiTensor, factor: float = 1.0) -> NkiTensor:
    tile = load(x)
    nisa.activation(dst=tile, op=nl.exp, data=tile, scale=factor)
    return store(tile)


def matmul(x: NkiTensor, w: NkiTensor) -> NkiTensor:
    """x.T @ w in tiles of 128 rows of both, summed in PSUM."""
    inner, rows = x.shape
    columns = w.shape[1]
    result = nl.ndarray((rows, columns), nl.float32, buffer=nl.shared_hbm)
    for m in nl.affine_range(rows // nl.tile_size.pmax):
        total = nl.ndarray((128, columns), nl.float32, buffer=nl.psum)
        for k in nl.sequential_range(inner // 128):
            left = load(x[k * 128 : (k + 1) * 128, nl.ds(m * 128, 128)])
            nisa.nc_matmul(total, left, load(w[k * 128 : (k + 1) * 128]))
        out = nl.ndarray((128, columns), nl.float32)
        nisa.tensor_copy(out, total)
        nisa.dma_copy(result[m * 128 : (m + 1) * 128, ...], out)
    return result


def test_tensors_add() -> None:
    a, b = array(128, 512), array(128, 512)
    np.testing.assert_array_equal(glia.simulate(add)(a, b), a + b)


def test_int32_adds_exactly_where_an_engine_can() -> None:
    a = np.full((4, 8), 2**24, np.int32)
    b = np.ones((4, 8), np.int32)
    np.testing.assert_array_equal(glia.simulate(add)(a, b), a + b)


def _of_words(data1: NkiTensor, data2: NkiTensor, dtype: str, **options: Any) -> NkiTensor:
    """data1 + data2 in the dtype of a tile."""
    out = nl.ndarray(data1.shape, dtype)
    nisa.tensor_tensor(out, load(data1), load(data2), nl.add, **options)
    return store(out)


@pytest.mark.parametrize(
    ("dtype", "options", "is_exact"),
    [
        ("int32", {}, True),
        ("int32", {"engine": nisa.engine.vector}, False),
        ("float32", {}, False),
    ],
)
def test_only_words_throughout_are_added_as_integers(
    dtype: str, options: dict[str, Any], is_exact: bool
) -> None:
    a, b = np.full((4, 8), 2**24 + 1, np.int32), np.ones((4, 8), np.int32)
    found = glia.simulate(_of_words)(a, b, dtype, **options)
    assert (found == 2**24 + (2 if is_exact else 0)).all()


def test_an_option_that_is_documented_as_not_supported_yet_is_refused() -> None:
    def reversed_reduction(x: NkiTensor) -> None:
        tile, column = load(x), nl.ndarray((128, 1), nl.float32)
        nisa.tensor_scalar_reduce(tile, tile, nl.subtract, 1.0, nl.add, column, reverse0=True)

    with pytest.raises(NotInNki, match="tensor_scalar_reduce with reverse0=True"):
        trace(reversed_reduction, array(128, 512))


def test_activation_scales_and_takes_constants() -> None:
    x = array(64, 100)
    result = glia.simulate(exponential, target="trn3")(x, factor=0.5)
    np.testing.assert_allclose(result, np.exp(x * np.float32(0.5)), rtol=1e-6)


@pytest.mark.parametrize("inner", [128, 256])
def test_products_accumulate_in_psum(inner: int) -> None:
    x, w = array(inner, 256), array(inner, 512)
    np.testing.assert_allclose(glia.simulate(matmul)(x, w), x.T @ w, rtol=1e-4, atol=1e-4)


def test_a_sum_starts_over_after_another_write() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        tile, total = load(x), nl.ndarray((32, 32), nl.float32, nl.psum)
        nisa.nc_matmul(total, tile, tile)
        nisa.memset(total, 0.0)
        nisa.nc_matmul(total, tile, tile)
        out = nl.ndarray((32, 32), nl.float32)
        nisa.tensor_copy(out, total)
        return store(out)

    x = array(32, 32)
    np.testing.assert_allclose(glia.simulate(kernel)(x), x.T @ x, rtol=1e-4, atol=1e-5)


def test_vector_functions_take_their_documented_parameters() -> None:
    def kernel(x: NkiTensor, shift: NkiTensor) -> tuple[NkiTensor, ...]:
        tile, column = load(x), load(shift)
        scaled = nl.ndarray(tile.shape, nl.float32)
        nisa.tensor_scalar(scaled, tile, nl.subtract, column, op1=nl.multiply, operand1=2)
        greatest = nl.ndarray((32, 1), nl.float32)
        nisa.tensor_reduce(greatest, nl.maximum, scaled, axis=1)
        top = nl.ndarray((32, 8), nl.float32)
        nisa.max8(top, tile)
        index = nl.ndarray((32, 24), nl.int32)
        nisa.iota(index, [[10, 4], [1, 6]], offset=5, channel_multiplier=100)
        column_sum = nl.ndarray((1, 24), nl.float32)
        nisa.tensor_partition_reduce(column_sum, nl.add, tile)
        return tuple(store(each) for each in (scaled, greatest, top, index, column_sum))

    x, shift = array(32, 24), array(32, 1)
    scaled, greatest, top, index, column_sum = glia.simulate(kernel)(x, shift)
    expected = (x - shift) * np.float32(2)
    np.testing.assert_array_equal(scaled, expected)
    np.testing.assert_array_equal(greatest[:, 0], expected.max(axis=1))
    np.testing.assert_array_equal(top, np.sort(x, axis=1)[:, :-9:-1])
    p, i, j = np.ogrid[:32, :4, :6]
    np.testing.assert_array_equal(index, (5 + 100 * p + 10 * i + j).reshape(32, 24))
    np.testing.assert_allclose(column_sum[0], x.sum(axis=0), rtol=1e-5, atol=1e-5)


def test_rows_are_selected_scanned_summarised_and_moved() -> None:
    def kernel(x: NkiTensor, mask: NkiTensor) -> tuple[NkiTensor, ...]:
        tile, chosen = load(x), load(mask)
        turned = nl.ndarray((32, 32), nl.float32, nl.psum)
        nisa.nc_transpose(turned, tile)
        copied = nl.ndarray((32, 32), nl.float32)
        nisa.tensor_copy(copied, turned, engine=nisa.scalar_engine)
        merged, inverse, running, fused, moved = (nl.ndarray((32, 32), nl.float32) for _ in "abcde")
        nisa.memset(merged, -1.0)
        nisa.tensor_copy_predicated(merged, tile, chosen, reverse_pred=True)
        nisa.reciprocal(inverse, tile)
        nisa.tensor_tensor_scan(running, tile, tile, 0.5, op0=nl.maximum, op1=nl.maximum)
        nisa.scalar_tensor_tensor(fused, tile, nl.add, 1.0, nl.multiply, copied)
        nisa.nc_stream_shuffle(moved, tile, [31 - i for i in range(32)])
        halves, mean = nl.ndarray((32, 6), nl.float32), nl.ndarray((32, 2), nl.float32)
        nisa.bn_stats(halves, tile)
        nisa.bn_aggr(mean, halves)
        results = (copied, merged, inverse, running, fused, moved, mean)
        return tuple(store(each) for each in results)

    x = array(32, 32)
    mask = (x > 0).astype(np.uint8)
    copied, merged, inverse, running, fused, moved, mean = glia.simulate(kernel)(x, mask)
    np.testing.assert_array_equal(copied, x.T)
    np.testing.assert_array_equal(merged, np.where(mask == 0, x, np.float32(-1)))
    np.testing.assert_array_equal(inverse, 1 / x)
    np.testing.assert_array_equal(running, np.maximum(np.maximum.accumulate(x, axis=1), 0.5))
    np.testing.assert_array_equal(fused, (x + 1) * x.T)
    np.testing.assert_array_equal(moved, x[::-1])
    expected = np.stack([x.mean(axis=1), x.var(axis=1)], axis=1)
    np.testing.assert_allclose(mean, expected, rtol=1e-4, atol=1e-5)


VIEWS: list[tuple[Callable[[Any], Any], Callable[[np.ndarray], np.ndarray]]] = [
    (lambda t: t[3:17:4, 1:], lambda a: a[3:17:4, 1:]),
    (lambda t: t[-1, ...], lambda a: a[-1]),
    (lambda t: t[..., -5:-1], lambda a: a[..., -5:-1]),
    (lambda t: t.reshape((10, 4, 12))[:, 2], lambda a: a.reshape(10, 4, 12)[:, 2]),
]


@pytest.mark.parametrize(("view", "expected"), VIEWS)
def test_views_of_hbm_are_those_of_numpy(
    view: Callable[[Any], Any], expected: Callable[[np.ndarray], np.ndarray]
) -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        part = view(x)
        result = nl.ndarray(part.shape, part.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(result, part)
        return result

    x = array(20, 24)
    np.testing.assert_array_equal(glia.simulate(kernel)(x), expected(x))


def test_views_on_chip_keep_partitions_and_a_free_dimension() -> None:
    shapes = []

    def kernel(x: NkiTensor) -> NkiTensor:
        tile = load(x)
        shapes.extend((tile[2].shape, tile[:, 0, 5].shape, tile[:, 1].shape))
        return store(tile[:, 1, 2:4])

    x = array(8, 3, 6)
    np.testing.assert_array_equal(glia.simulate(kernel)(x), x[:, 1, 2:4])
    assert shapes == [(1, 3, 6), (8, 1), (8, 6)]


def test_a_traced_program_is_legal_and_names_its_tensors() -> None:
    program = trace(matmul, array(256, 128), array(256, 512))
    verify(program, "trn2")
    assert [b.name for b in program.inputs] == ["x", "w"]
    assert [b.shape for b in program.outputs] == [(128, 512)]


def wide(x: NkiTensor) -> NkiTensor:
    tile = load(x)
    total = nl.ndarray((128, 1024), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(total, tile[:, :128], tile)
    return store(tile)


def test_a_broken_rule_is_reported_with_its_numbers_at_the_users_line() -> None:
    with pytest.raises(BrokenRule) as caught:
        trace(wide, array(128, 1024))
    assert "moving must have at most 512 columns" in str(caught.value)
    assert "moving is f32[128, 1024] in SBUF" in str(caught.value)
    lines, first = inspect.getsourcelines(wide)
    line = first + next(i for i, text in enumerate(lines) if "nc_matmul" in text)
    assert (caught.value.loc.file, caught.value.loc.line) == (__file__, line)


def _slice_too_far(x: NkiTensor) -> NkiTensor:
    return load(x[:, 0:600])


def _row_too_far(x: NkiTensor) -> NkiTensor:
    return load(x[128])


def _on_chip_output(x: NkiTensor) -> NkiTensor:
    return load(x)


def _part_of_an_output(x: NkiTensor) -> NkiTensor:
    return store(load(x))[0:4]


def _nothing(x: NkiTensor) -> None:
    load(x)


def _too_many_partitions(x: NkiTensor) -> NkiTensor:
    tile = nl.ndarray((256, 4), nl.float32)
    nisa.tensor_tensor(tile, tile, tile, nl.add)
    return tile


def _unknown_dtype(x: NkiTensor) -> NkiTensor:
    return nl.ndarray((4, 4), "float99")


def _dtype_in_a_list(x: NkiTensor) -> NkiTensor:
    return nl.ndarray((4, 4), ["float32"])  # type: ignore[arg-type]


def _unknown_buffer(x: NkiTensor) -> NkiTensor:
    return nl.ndarray((4, 4), nl.float32, buffer="sram")  # type: ignore[arg-type]


def _outer_axis(x: NkiTensor) -> None:
    tile = load(x)
    nisa.tensor_reduce(tile, nl.add, tile, axis=("p", 0))


def _moved_partitions(x: NkiTensor) -> NkiTensor:
    return load(x).reshape((64, 1024))


def _function_of_nl(x: NkiTensor) -> NkiTensor:
    return nl.add(x, x)


def _unknown_instruction(x: NkiTensor) -> NkiTensor:
    return nisa.nc_matmul_9(x, x)


def _mask(x: NkiTensor) -> None:
    nisa.tensor_copy(x, x, mask=x)


def _assignment(x: NkiTensor) -> None:
    x[0] = x[1]


def _hbm_operand(x: NkiTensor) -> None:
    nisa.reciprocal(x, x)


def _number_as_destination(x: NkiTensor) -> None:
    nisa.memset(3, 0.0)


def _skips_without_an_index(x: NkiTensor) -> None:
    nisa.dma_transpose(
        nl.ndarray((128, 64), nl.float32), x[0:64, 0:128], oob_mode=nisa.oob_mode.skip
    )


WRONG: list[tuple[Callable[..., Any], type[CompileError]]] = [
    (_slice_too_far, IndexOutsideTensor),
    (_row_too_far, IndexOutsideTensor),
    (_on_chip_output, NotAnOutput),
    (_part_of_an_output, NotAnOutput),
    (_nothing, NotAnOutput),
    (_too_many_partitions, BrokenRule),
    (_unknown_dtype, ImpossibleTensor),
    (_dtype_in_a_list, ImpossibleTensor),
    (_unknown_buffer, NotInNki),
    (_outer_axis, NotInNki),
    (_moved_partitions, ImpossibleTensor),
    (_function_of_nl, BrokenRule),
    (_unknown_instruction, NoSuchName),
    (_mask, MaskNotSupported),
    (_assignment, NotInNki),
    (_hbm_operand, BrokenRule),
    (_skips_without_an_index, BrokenRule),
    (_number_as_destination, BrokenRule),
]


@pytest.mark.parametrize(("kernel", "error"), WRONG)
def test_what_is_wrong_is_refused_at_the_kernels_line(
    kernel: Callable[..., Any], error: type[CompileError]
) -> None:
    with pytest.raises(error) as caught:
        trace(kernel, array(128, 512))
    lines, first = inspect.getsourcelines(kernel)
    assert caught.value.loc.file == __file__
    assert first <= caught.value.loc.line < first + len(lines)


def test_nothing_is_recorded_outside_a_kernel() -> None:
    with pytest.raises(OutsideKernel):
        nl.ndarray((128, 4), nl.float32)
