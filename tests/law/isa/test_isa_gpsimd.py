"""What GpSimd's gathers, searches and index patterns do, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glia.base.dtype import BF16, F8E4M3FN_X4, F32, S32, TF32, U8, U16, U32, DType
from glia.base.errors import Unspecified
from glia.isa.instructions.gpsimd import AffineSelect, Iota
from glia.isa.instructions.gpsimd_gather import (
    LocalGather,
    NcNGather,
    NonzeroWithCount,
    SequenceBounds,
    Topk,
)
from glia.sim.policy import AccessOutOfBounds, Policy
from support.isa_bench import Bench, put, take, wide

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("dtype", [F32, BF16, U8], ids=str)
@pytest.mark.parametrize("run,valid", [(1, None), (4, 37), (2, 64)])
def test_local_gather_reads_indices_down_the_partitions_of_a_core(
    dtype: DType, run: int, valid: int | None
) -> None:
    bench = Bench(50)
    src = bench.pattern((48, 9, 5), dtype)
    places = bench.random.integers(0, 45 - run + 1, (48, 4))
    index = bench.pattern((48, 4), U16, values=places)
    count = 64 if valid is None else valid
    dst = bench.pattern((48, count * run), dtype)
    flat = bench.value(src).reshape(48, 45)
    expected = bench.value(dst)
    for p in range(48):
        core = p // 16
        for j in range(count):
            place = places[16 * core + j % 16, j // 16]
            for e in range(run):
                expected[p, j * run + e] = flat[p, place + e]
    instr = LocalGather(
        dst=dst, src_buffer=src, index=index, num_elem_per_idx=run, num_valid_indices=valid
    )
    bench.check(instr, dst=expected)


def test_local_gather_beyond_the_partition_is_not_specified() -> None:
    bench = Bench(51)
    src, dst = bench.pattern((16, 8)), bench.pattern((16, 32))
    index = bench.pattern((16, 1), U16, values=np.full((16, 1), 7))
    with pytest.raises(Unspecified, match="element 8 of 8"):
        bench.run(LocalGather(dst=dst, src_buffer=src, index=index, num_elem_per_idx=2))


@pytest.mark.parametrize("dtype", [F32, BF16, S32], ids=str)
def test_nc_n_gather_stays_in_its_partition(dtype: DType) -> None:
    bench = Bench(52)
    data, dst = bench.pattern((20, 4, 6), dtype), bench.pattern((20, 3, 5), dtype)
    chosen = bench.random.integers(0, 24, (20, 15))
    indices = bench.pattern((20, 15), U32, values=chosen)
    flat = bench.value(data).reshape(20, 24)
    expected = np.array([[flat[p, i] for i in chosen[p]] for p in range(20)])
    bench.check(NcNGather(dst=dst, data=data, indices=indices), dst=expected.reshape(20, 3, 5))


def test_nc_n_gather_of_what_is_not_there_is_a_fault() -> None:
    bench = Bench(53)
    data, dst = bench.pattern((2, 6)), bench.pattern((2, 1))
    indices = bench.pattern((2, 1), U32, values=np.array([[5], [6]]))
    with pytest.raises(AccessOutOfBounds, match="index 6 is out of bounds for 6 elements"):
        bench.run(NcNGather(dst=dst, data=data, indices=indices))


@pytest.mark.parametrize("dtype", [F32, S32], ids=str)
def test_nonzero_with_count_works_in_the_first_partition_of_each_core(dtype: DType) -> None:
    bench = Bench(54)
    values = bench.random.integers(0, 2, (40, 12)) * bench.random.integers(-3, 4, (40, 12))
    values[16] = 0
    src = bench.pattern((40, 12), dtype, values=values)
    dst = bench.pattern((40, 13), S32)
    expected = bench.value(dst)
    for p in (0, 16, 32):
        places = [j + 100 for j in range(12) if values[p, j] != 0]
        expected[p] = [*places, *[-7] * (12 - len(places)), len(places)]
    instr = NonzeroWithCount(dst=dst, src=src, index_offset=100, padding_val=-7)
    bench.check(instr, dst=expected)


def test_nonzero_with_count_finds_nan_and_negative_zero_as_floats_do() -> None:
    bench = Bench(55)
    src = bench.pattern((1, 4), values=np.array([[np.nan, -0.0, 0.0, 1e-45]]))
    dst = bench.pattern((1, 5), S32)
    bench.check(NonzeroWithCount(dst=dst, src=src), dst=np.array([[0, 3, -1, -1, 2]]))


def bounds(ids: list[float]) -> tuple[list[int], list[int]]:
    """The start and the end of each element's run, walking the list."""
    starts, ends = [], []
    for i, each in enumerate(ids):
        first = last = i
        while first > 0 and ids[first - 1] == each:
            first -= 1
        while last + 1 < len(ids) and ids[last + 1] == each:
            last += 1
        starts.append(len(ids) if each == 0 else first)
        ends.append(-1 if each == 0 else last + 1)
    return starts, ends


@pytest.mark.parametrize("dtype", [F32, S32], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_sequence_bounds(dtype: DType, seed: int) -> None:
    bench = Bench(56 + seed)
    count = int(bench.random.integers(1, 40))
    ids = bench.random.integers(0, 4, (1, count)) if seed else np.full((1, count), 2)
    src = bench.pattern((1, count), dtype, values=ids)
    dst = bench.pattern((1, 2, count), dtype)
    expected = np.array([bounds(ids[0].tolist())], np.int32)
    bench.check(SequenceBounds(dst=dst, segment_ids=src), dst=expected)


def test_sequence_bounds_of_the_documented_example() -> None:
    bench = Bench(57)
    src = bench.pattern((1, 9), S32, values=np.array([[0, 1, 1, 2, 2, 2, 0, 3, 3]]))
    dst = bench.pattern((1, 18), S32)
    starts, ends = [9, 1, 1, 3, 3, 3, 9, 7, 7], [-1, 3, 3, 6, 6, 6, -1, 9, 9]
    bench.check(SequenceBounds(dst=dst, segment_ids=src), dst=np.array([starts + ends], np.int32))


@pytest.mark.parametrize("n,count", [(42, 8), (42, 42), (8, 1), (64, 17), (50, 33)])
def test_topk_lists_the_greatest_of_each_snake_from_the_least_up(n: int, count: int) -> None:
    bench = Bench(58)
    values = bench.random.permutation(32 * 4).reshape(32, 4) - 60  # no two alike
    src = bench.pattern((32, 4), BF16, values=values)
    val_dst, idx_dst = bench.pattern((32, count), BF16), bench.pattern((32, count), U32)
    value, index = wide(bench.value(val_dst)), bench.value(idx_dst)
    for core in (0, 1):
        snake = [(values[16 * core + i % 16, i // 16], i) for i in range(n)]
        for j, (each, place) in enumerate(sorted(snake)[-count:]):
            value[16 * core + j % 16, j // 16] = each
            index[16 * core + j % 16, j // 16] = place
    bench.check(Topk(val_dst=val_dst, idx_dst=idx_dst, src=src, n=n), val_dst=value, idx_dst=index)


def test_topk_pairs_equal_values_with_places_that_hold_them() -> None:
    bench = Bench(59)
    values = bench.random.integers(0, 3, (16, 4))
    src = bench.pattern((16, 4), BF16, values=values, plain=True)
    val_dst, idx_dst = bench.pattern((16, 20), BF16), bench.pattern((16, 20), U32)
    after = bench.run(Topk(val_dst=val_dst, idx_dst=idx_dst, src=src, n=60))
    value = wide(take(after[val_dst.tile.name], val_dst))
    index = take(after[idx_dst.tile.name], idx_dst)
    snake = values.reshape(-1, order="F")[:60]
    listed = [(value[j % 16, j // 16], int(index[j % 16, j // 16])) for j in range(20)]
    assert [v for v, _ in listed] == sorted(snake.tolist())[-20:]
    assert len({place for _, place in listed}) == 20
    assert all(snake[place] == v for v, place in listed)


def test_topk_of_nan_is_not_specified_but_unused_elements_may_be_anything() -> None:
    bench = Bench(60)
    values = np.ones((16, 2))
    values[:, 1] = np.nan
    src = bench.pattern((16, 2), BF16, values=values)
    val_dst, idx_dst = bench.pattern((16, 2), BF16), bench.pattern((16, 2), U32)
    bench.run(Topk(val_dst=val_dst, idx_dst=idx_dst, src=src, n=16))
    with pytest.raises(Unspecified, match="some are NaN"):
        bench.run(Topk(val_dst=val_dst, idx_dst=idx_dst, src=src, n=17))


@pytest.mark.parametrize("dtype", [S32, F32, BF16, U8, TF32], ids=str)
def test_iota_counts_over_a_pattern_of_its_own(dtype: DType) -> None:
    bench = Bench(61)
    if dtype is TF32:
        dst = bench.pattern((5, 24), TF32, values=np.zeros((5, 24), TF32.numpy), plain=True)
    else:
        dst = bench.pattern((5, 4, 6), dtype)
    values = [
        [3 + 2 * p + 60 * w - 20 * z + 5 * y + x
         for w in range(2) for z in range(2) for y in range(2) for x in range(3)]
        for p in range(5)
    ]  # fmt: skip
    instr = Iota(
        dst=dst, offset=3, channel_multiplier=2, steps=(60, -20, 5, 1), counts=(2, 2, 2, 3)
    )
    expected = np.array(values, np.int32).reshape(dst.shape)
    if dtype is TF32:
        after = bench.run(instr)
        found = take(after[dst.tile.name], dst).view(np.float32)
        np.testing.assert_array_equal(found, expected)
    else:
        bench.check(instr, dst=expected)


def test_iota_wraps_in_32_bits() -> None:
    bench = Bench(62)
    dst = bench.pattern((2, 3), S32)
    instr = Iota(dst=dst, offset=2**31 - 2, channel_multiplier=1, steps=(1,))
    wrapped = [[2**31 - 2, 2**31 - 1, -(2**31)], [2**31 - 1, -(2**31), -(2**31) + 1]]
    bench.check(instr, dst=np.array(wrapped, np.int32))


@pytest.mark.parametrize(
    "op", ["equal", "not_equal", "greater", "greater_equal", "less", "less_equal"]
)
@pytest.mark.parametrize("to", [F32, BF16, S32], ids=str)
def test_affine_select_over_a_pattern_of_its_own(op: str, to: DType) -> None:
    bench = Bench(63)
    data, dst = bench.pattern((6, 2, 4)), bench.pattern((6, 8), to)
    compare = {
        "equal": int.__eq__, "not_equal": int.__ne__, "greater": int.__gt__,
        "greater_equal": int.__ge__, "less": int.__lt__, "less_equal": int.__le__,
    }[op]  # fmt: skip
    source = bench.value(data).reshape(6, 8)
    expected = np.full((6, 8), -9984.0, np.float32)
    for p in range(6):
        for j in range(8):
            if compare(-2 + p - j % 4 * 2 + j // 4, 0):
                expected[p, j] = source[p, j]
    instr = AffineSelect(
        dst=dst, data=data, offset=-2, channel_multiplier=1, steps=(1, -2), counts=(2, 4),
        compare_op=op, false_value=-9984.0,
    )  # fmt: skip
    bench.check(instr, dst=expected)


def test_affine_select_keeps_integers_and_what_is_no_number() -> None:
    bench = Bench(64)
    values = np.array([[2**24 + 1, -5, 2**31 - 1]])
    data, dst = bench.pattern((1, 3), S32, values=values), bench.pattern((1, 3), S32)
    instr = AffineSelect(dst=dst, data=data, steps=(1,), compare_op="not_equal", false_value=3e38)
    bench.check(instr, dst=np.array([[2**31 - 1, -5, 2**31 - 1]], np.int32))
    bits = np.array([[0x7FC12345, 0x7F812345]], np.uint32)
    source, target = bench.pattern((1, 2)), bench.pattern((1, 2))
    put(bench.contents[source.tile.name], source, bits.view(np.float32))
    after = bench.run(
        AffineSelect(dst=target, data=source, steps=(1,), compare_op="greater_equal",
                     false_value=0.0)
    )  # fmt: skip
    np.testing.assert_array_equal(take(after[target.tile.name], target).view(np.uint32), bits)


def test_gathers_move_packed_floats_whole() -> None:
    bench = Bench(65)
    codes = bench.random.integers(0, 2**32, (16, 6), np.uint32)
    chosen = bench.random.integers(0, 6, (16, 3))
    data, dst = (
        bench.pattern((16, n), F8E4M3FN_X4, values=v, plain=True)
        for n, v in ((6, codes.view(F8E4M3FN_X4.numpy)), (3, np.zeros((16, 3), F8E4M3FN_X4.numpy)))
    )
    indices = bench.pattern((16, 3), U32, values=chosen)
    after = bench.run(NcNGather(dst=dst, data=data, indices=indices))
    found = take(after[dst.tile.name], dst).view(np.uint32)
    np.testing.assert_array_equal(found, np.take_along_axis(codes, chosen, 1))


def test_what_is_partly_written_may_be_fresh() -> None:
    bench = Bench(66)
    src, dst = bench.pattern((32, 4)), bench.pattern((32, 5), S32)
    bench.run(NonzeroWithCount(dst=dst, src=src), policy=Policy(check_initialized=True))


def test_a_gather_and_a_selection_may_write_what_they_read() -> None:
    bench = Bench(67)
    data = bench.pattern((8, 6))
    chosen = bench.random.integers(0, 6, (8, 6))
    indices = bench.pattern((8, 6), U32, values=chosen)
    turned = np.take_along_axis(bench.value(data), chosen, 1)
    bench.check(NcNGather(dst=data, data=data, indices=indices), dst=turned)
    kept = np.where(np.arange(6) >= 2, bench.value(data), np.float32(-1))
    instr = AffineSelect(
        dst=data, data=data, offset=-2, steps=(1,), compare_op="greater_equal", false_value=-1
    )
    bench.check(instr, dst=kept)


def test_the_false_value_of_a_selection_is_a_float32() -> None:
    bench = Bench(68)
    data, dst = bench.pattern((1, 2), S32), bench.pattern((1, 2), S32)
    instr = AffineSelect(
        dst=dst, data=data, offset=1, steps=(0,), compare_op="equal", false_value=2**24 + 1
    )
    bench.check(instr, dst=np.full((1, 2), 2**24, np.int32))
