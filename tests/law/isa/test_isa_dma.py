"""What data movement does, against an independent statement of its meaning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from glia.arch import get_target
from glia.base.dtype import (
    BF16,
    F4E2M1FN_X4,
    F8E4M3FN_X4,
    F32,
    S16,
    S32,
    TF32,
    U8,
    U32,
    DType,
)
from glia.base.errors import Unspecified
from glia.isa.examples import chip, hbm
from glia.isa.instructions.dma import DmaCopy, DmaGather, DmaScatter
from glia.isa.instructions.dma_transpose import DmaCompute, DmaGatherTranspose, DmaTranspose
from glia.machine.legal_instruction import violations
from glia.sim.policy import AccessOutOfBounds
from support.isa_bench import Bench, take, wide

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("dtype", [F32, BF16, S32], ids=str)
def test_dma_copy_keeps_row_major_order_across_shapes(dtype: DType) -> None:
    bench = Bench(30)
    src, dst = bench.pattern((6, 4, 5), F32, memory="HBM"), bench.pattern((10, 12), dtype)
    bench.check(DmaCopy(dst=dst, src=src, queue="q"), dst=bench.value(src).reshape(10, 12))


@pytest.mark.parametrize("out_of_bounds", ["error", "skip"])
def test_dma_gather(out_of_bounds: str) -> None:
    bench = Bench(31)
    src, dst = bench.pattern((9, 2, 3), memory="HBM"), bench.pattern((7, 6), BF16)
    chosen = bench.random.integers(0, 9, (7, 1))
    if out_of_bounds == "skip":
        chosen[2:4] = [[-1], [9]]
    indices_ = bench.pattern((7, 1), S32, values=chosen)
    expected = wide(bench.value(dst))
    for p in range(7):
        if 0 <= chosen[p, 0] < 9:
            expected[p] = bench.value(src)[chosen[p, 0]].reshape(-1)
    instr = DmaGather(dst=dst, src=src, indices=indices_, out_of_bounds=out_of_bounds, queue="q")
    bench.check(instr, dst=expected)


@pytest.mark.parametrize("combine", ["", "add"])
def test_dma_scatter_takes_duplicates_in_order(combine: str) -> None:
    bench = Bench(32)
    dst, src = bench.pattern((6, 5), BF16, memory="HBM"), bench.pattern((8, 5))
    chosen = np.array([[0], [3], [3], [5], [-1], [3], [6], [1]])
    indices_ = bench.pattern((8, 1), S32, values=chosen)
    expected = bench.value(dst)
    for p in range(8):
        if 0 <= chosen[p, 0] < 6:
            row = bench.value(src)[p]
            kept = wide(expected[chosen[p, 0]]) if combine else 0
            expected[chosen[p, 0]] = (kept + row).astype(ml_dtypes.bfloat16)
    instr = DmaScatter(
        dst=dst, src=src, indices=indices_, combine=combine, out_of_bounds="skip", queue="q"
    )
    bench.check(instr, dst=expected)


def test_rows_that_no_valid_index_names_are_not_touched() -> None:
    indices = np.array([[3], [-1], [0], [10], [9], [3]], np.int32)
    table, rows = np.zeros((10, 4)), np.zeros((6, 4))
    index = chip("i", 6, 1, dtype=S32)
    options = {"indices": index, "queue": "q", "out_of_bounds": "skip"}
    gather = DmaGather(dst=chip("rows", 6, 4), src=hbm("table", 10, 4), **options)
    views = {"dst": rows, "src": table, "indices": indices}
    assert gather.rows_touched("src", views).tolist() == [3, 0, 9, 3]
    assert gather.rows_touched("dst", views).tolist() == [0, 2, 4, 5]
    assert gather.rows_touched("indices", views) is None
    scatter = DmaScatter(dst=hbm("table", 10, 4), src=chip("rows", 6, 4), **options)
    views = {"dst": table, "src": rows, "indices": indices}
    assert scatter.rows_touched("dst", views).tolist() == [3, 0, 9, 3]
    assert scatter.rows_touched("src", views) is None


@pytest.mark.parametrize("combine", ["", "add"])
@pytest.mark.parametrize("out_of_bounds", ["error", "skip"])
def test_rows_that_are_only_skipped_need_no_contents(combine: str, out_of_bounds: str) -> None:
    options = {"queue": "q", "out_of_bounds": out_of_bounds, "combine": combine}
    index, rows, table = chip("i", 6, 1, dtype=S32), chip("rows", 6, 4), hbm("table", 10, 4)
    gather = DmaGather(dst=rows, src=table, indices=index, **options)
    assert gather.may_be_fresh("dst") == (out_of_bounds == "skip" and not combine)
    scatter = DmaScatter(dst=table, src=rows, indices=index, **options)
    assert scatter.may_be_fresh("dst") == (not combine)
    for each in (gather, scatter):
        assert not each.may_be_fresh("src") and not each.may_be_fresh("indices")


def test_a_gather_out_of_bounds_is_a_fault() -> None:
    bench = Bench(33)
    src, dst = bench.pattern((9, 4), memory="HBM"), bench.pattern((2, 4))
    chosen = bench.pattern((2, 1), S32, values=np.array([[3], [9]]))
    with pytest.raises(AccessOutOfBounds, match="index 9 is out of bounds for 9 rows"):
        bench.run(DmaGather(dst=dst, src=src, indices=chosen, queue="q"))


@pytest.mark.parametrize("to", [F32, BF16, S16, U8, TF32], ids=str)
@pytest.mark.parametrize("source", [F32, BF16, S32, TF32], ids=str)
def test_dma_copy_converts_through_float32(source: DType, to: DType) -> None:
    bench = Bench(70)
    values = bench.random.integers(-(2**31), 2**31, (4, 8)) // 2 ** bench.random.integers(0, 31)
    values[0, :3] = [2**24 + 1, -300, 70000]
    floats = values.astype(np.float32)
    floats = narrowed(floats, TF32) if source is TF32 else floats
    given = floats.view(TF32.numpy) if source is TF32 else values
    src = bench.pattern((4, 8), source, values=given, memory="HBM")
    dst = bench.pattern((8, 4), to)
    through = floats if source is S32 else narrowed(floats, source)
    after = bench.run(DmaCopy(dst=dst, src=src, queue="q"))
    found = take(after[dst.tile.name], dst).reshape(-1)
    wanted = narrowed(through.reshape(-1), to)
    if to.is_integer:
        info = np.iinfo(to.numpy)
        wanted = np.array([min(max(round(float(v)), info.min), info.max) for v in wanted])
    found = found.view(np.float32) if to is TF32 else found
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))


def narrowed(values: Array, dtype: DType) -> Array:
    """float32 values as a float dtype holds them."""
    if dtype is TF32:
        exponent = np.maximum(np.frexp(values.astype(np.float64))[1] - 1, -126)
        scaled = np.ldexp(values.astype(np.float64), 10 - exponent)
        return np.ldexp(np.rint(scaled), exponent - 10).astype(np.float32)
    return wide(values.astype(dtype.numpy)) if dtype.is_float else values


def test_a_copy_of_one_dtype_keeps_every_bit() -> None:
    bench = Bench(71)
    for dtype in (F8E4M3FN_X4, F4E2M1FN_X4, TF32):
        src, dst = bench.pattern((6, 4), dtype, memory="HBM"), bench.pattern((3, 8), dtype)
        instr = DmaCopy(dst=dst, src=src, queue="q")
        bench.check(instr, dst=bench.value(src).reshape(3, 8))


@pytest.mark.parametrize("dtype", [S32, U32], ids=str)
def test_all_ones_and_minus_one_name_no_row(dtype: DType) -> None:
    bench = Bench(72)
    src, dst = bench.pattern((9, 4), memory="HBM"), bench.pattern((3, 4))
    chosen = np.array([[8], [-1], [0]]).astype(np.int32).view(dtype.numpy)
    indices_ = bench.pattern((3, 1), dtype, values=chosen)
    expected = bench.value(dst)
    expected[0], expected[2] = bench.value(src)[8], bench.value(src)[0]
    instr = DmaGather(dst=dst, src=src, indices=indices_, out_of_bounds="skip", queue="q")
    bench.check(instr, dst=expected)
    with pytest.raises(AccessOutOfBounds, match="out of bounds for 9 rows"):
        bench.run(replace(instr, out_of_bounds="error"))


@pytest.mark.parametrize("out_of_bounds", ["error", "skip"])
def test_a_gather_adds_in_float32(out_of_bounds: str) -> None:
    bench = Bench(73)
    src, dst = bench.pattern((9, 5), BF16, memory="HBM"), bench.pattern((4, 5), BF16)
    chosen = np.array([[2], [2], [8], [9 if out_of_bounds == "skip" else 0]])
    indices_ = bench.pattern((4, 1), U32, values=chosen)
    expected = bench.value(dst)
    for p, (row,) in enumerate(chosen):
        if row < 9:
            expected[p] = (wide(expected[p]) + wide(bench.value(src)[row])).astype(BF16.numpy)
    instr = DmaGather(
        dst=dst, src=src, indices=indices_, combine="add", out_of_bounds=out_of_bounds, queue="q"
    )
    bench.check(instr, dst=expected)


def test_a_promise_of_unique_indices_must_be_kept() -> None:
    bench = Bench(74)
    dst, src = bench.pattern((6, 5), memory="HBM"), bench.pattern((3, 5))
    for chosen, is_kept in (([0, 4, 9], True), ([4, 9, 9], True), ([4, 0, 4], False)):
        indices_ = bench.pattern((3, 1), S32, values=np.array(chosen)[:, None])
        instr = DmaScatter(
            dst=dst, src=src, indices=indices_, combine="add", unique_indices=True,
            out_of_bounds="skip", queue="q",
        )  # fmt: skip
        if is_kept:
            bench.run(instr)
        else:
            with pytest.raises(Unspecified, match="names a row twice"):
                bench.run(instr)


@pytest.mark.parametrize("count", [1, 2, 16])
def test_dma_compute_adds_from_the_first_source_on(count: int) -> None:
    bench = Bench(75)
    srcs = tuple(
        bench.pattern([(24, 5), (6, 4, 5), (12, 10)][i % 3], [F32, BF16, S32][i % 2],
                      memory=["HBM", "SBUF"][i % 2])
        for i in range(count)
    )  # fmt: skip
    dst = bench.pattern((8, 15), BF16)
    total = wide(bench.value(srcs[0])).reshape(-1)
    for src in srcs[1:]:
        total = total + wide(bench.value(src)).reshape(-1)
    instr = DmaCompute(dst=dst, srcs=srcs, scales=(1.0,) * count, queue="q")
    bench.check(instr, dst=total.reshape(8, 15))


@pytest.mark.parametrize("shape", [(7, 12), (5, 3, 12), (4, 3, 2, 9)], ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16, U8], ids=str)
@pytest.mark.parametrize("memory", ["HBM", "SBUF"])
def test_dma_transpose(shape: tuple[int, ...], dtype: DType, memory: str) -> None:
    bench = Bench(76)
    axes = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}[len(shape)]
    src = bench.pattern(shape, dtype, memory=memory)
    dst = bench.pattern(tuple(shape[a] for a in axes), dtype)
    source = bench.value(src)
    expected = bench.value(dst)
    for place in np.ndindex(*shape):
        expected[tuple(place[a] for a in axes)] = source[place]
    for given in ((), axes):
        bench.check(DmaTranspose(dst=dst, src=src, axes=given, queue="q"), dst=expected)


@pytest.mark.parametrize("row,columns", [((7,), 1), ((3, 7), 1), ((1, 3, 7), 2)], ids=str)
@pytest.mark.parametrize("out_of_bounds", ["error", "skip"])
def test_a_transposing_gather_reads_indices_column_by_column(
    row: tuple[int, ...], columns: int, out_of_bounds: str
) -> None:
    bench = Bench(77)
    rows = 128 if columns > 1 else 32
    count = 144 if columns > 1 else 16
    src = bench.pattern((11, *row), BF16, memory="HBM")
    chosen = bench.random.integers(0, 11, (rows, columns))
    if out_of_bounds == "skip":
        chosen[3, 0] = 11
    indices_ = bench.pattern((rows, columns), U32, values=chosen)
    turned = (*row[::-1], count) if len(row) < 3 else (row[2], row[0], row[1], count)
    dst = bench.pattern(turned, BF16)
    source, expected = bench.value(src), bench.value(dst)
    for j in range(count):
        index = chosen[j % rows, j // rows]
        if index < 11:
            for place in np.ndindex(*row):
                target = place[::-1] if len(row) < 3 else (place[2], place[0], place[1])
                expected[(*target, j)] = source[(index, *place)]
    instr = DmaGatherTranspose(
        dst=dst, src=src, indices=indices_, out_of_bounds=out_of_bounds, queue="q"
    )
    bench.check(instr, dst=expected)


def test_a_transposing_gather_out_of_bounds_is_a_fault() -> None:
    bench = Bench(78)
    src, dst = bench.pattern((9, 4), BF16, memory="HBM"), bench.pattern((4, 16), BF16)
    chosen = np.full((16, 1), 2)
    chosen[7] = 9
    indices_ = bench.pattern((16, 1), U32, values=chosen)
    with pytest.raises(AccessOutOfBounds, match="index 9 is out of bounds for 9 rows"):
        bench.run(DmaGatherTranspose(dst=dst, src=src, indices=indices_, queue="q"))


def test_transposing_and_adding_transfers_are_slower() -> None:
    arch = get_target("trn2").arch
    moved = {"dst": chip("t", 64, 64), "queue": "q"}
    plain = DmaCopy(src=hbm("x", 64, 64), **moved)
    turned = DmaTranspose(src=hbm("x", 64, 64), **moved)
    within = DmaTranspose(src=chip("x", 64, 64), **moved)
    added = DmaCompute(srcs=(hbm("x", 64, 64),), **moved)
    assert plain.transfer_nanoseconds(arch) < turned.transfer_nanoseconds(arch)
    assert turned.rate(arch) == 0.9 and within.rate(arch) == added.rate(arch) == 0.5


@pytest.mark.parametrize("mode,on,target,is_legal", [
    ("hwdge", "sync", "trn2", True), ("hwdge", "scalar", "trn2", True),
    ("hwdge", "gpsimd", "trn2", False), ("hwdge", "sync", "trn1", False),
    ("swdge", "gpsimd", "trn1", True), ("swdge", "sync", "trn1", False),
    ("none", "vector", "trn1", True), ("unknown", "tensor", "trn3", True),
])  # fmt: skip
def test_who_may_have_descriptors_made(mode: str, on: str, target: str, is_legal: bool) -> None:
    instr = DmaCopy(dst=chip("o", 64, 32), src=hbm("x", 64, 32), queue="q", dge_mode=mode, on=on)
    assert bool(violations(instr, get_target(target).arch)) != is_legal


def test_transfers_read_everything_before_they_write() -> None:
    bench = Bench(79)
    tile = bench.pattern((8, 9), plain=True)
    left, right = (
        replace(tile, dims=((1, 8), (1, 8)), offset=tile.offset + shift) for shift in (0, 1)
    )
    bench.check(DmaCopy(dst=right, src=left, queue="q"), dst=bench.value(left))
    bench.check(DmaTranspose(dst=left, src=left, queue="q"), dst=bench.value(left).T)
    total = bench.value(left) + bench.value(right)
    bench.check(DmaCompute(dst=left, srcs=(left, right), queue="q"), dst=total)


def test_chosen_rows_convert_through_float32_too() -> None:
    bench = Bench(85)
    values = np.array([[2**24 + 1, -7], [2**31 - 1, 5]])
    through = np.array([[2**24, 0], [2**31, 5]], np.uint32)  # as float32, then saturated
    indices_ = bench.pattern((2, 1), S32, values=np.array([[0], [1]]))
    table = bench.pattern((2, 2), S32, values=values, memory="HBM")
    gathered = bench.pattern((2, 2), U32)
    bench.check(DmaGather(dst=gathered, src=table, indices=indices_, queue="q"), dst=through)
    rows = bench.pattern((2, 2), S32, values=values)
    scattered = bench.pattern((2, 2), U32, memory="HBM")
    bench.check(DmaScatter(dst=scattered, src=rows, indices=indices_, queue="q"), dst=through)
