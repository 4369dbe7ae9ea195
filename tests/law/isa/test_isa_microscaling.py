"""What microscaled products and quantization do, value by value in exact arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from glia.arch import get_target
from glia.base.dtype import (
    BF16,
    F4E2M1FN_X4,
    F8E4M3FN_X4,
    F8E5M2_X4,
    F8E8M0FNU,
    F16,
    F32,
    U8,
    DType,
)
from glia.base.errors import Unspecified
from glia.isa.examples import chip, examples
from glia.isa.instructions.microscaling import NcMatmulMx, QuantizeMx
from glia.isa.instructions.tensor import NcMatmul
from glia.isa.operand import Pattern
from support.isa_bench import Bench, put, take, wide

Array = np.ndarray[Any, Any]
GREATEST = {F8E4M3FN_X4: (8, 448.0), F8E5M2_X4: (15, 57344.0)}


def values_of(words: Array, dtype: DType) -> Array:
    """[P, F] elements as [P, F, 4] numbers, the first from the lowest bits."""
    assert dtype.packs is not None
    bits = dtype.packs.bits
    plain = words.view(dtype.numpy[0]).astype(np.uint64)
    codes = np.stack([plain >> np.uint64(bits * k) & np.uint64(2**bits - 1) for k in range(4)], -1)
    return codes.astype(np.uint8).view(dtype.packs.numpy).astype(np.float64)


def scales_of(codes: Array, partition: int, column: int) -> float:
    """The scale of a value in this partition: 8 partitions share, 4 rows for each quadrant."""
    row = partition // 32 * 32 + partition % 32 // 8
    code = int(codes.view(np.uint8)[row, column])
    return math.nan if code == 255 else 2.0 ** (code - 127)


def scale_tile(bench: Bench, rows: int, columns: int, start: int, dtype: DType) -> Pattern:
    """Scales that keep products small, from partition `start` of a quadrant on."""
    pattern = bench.pattern((rows, columns), dtype, plain=True)
    pattern = replace(pattern, partition=pattern.partition * 0 + start)
    codes = bench.random.integers(120, 134, (rows, columns)).astype(np.uint8)
    put(bench.contents[pattern.tile.name], pattern, codes.view(dtype.numpy))
    return pattern


@pytest.mark.parametrize("seed", range(6))
def test_nc_matmul_mx(seed: int) -> None:
    bench = Bench(80 + seed)
    kinds = (F8E4M3FN_X4, F8E5M2_X4, F4E2M1FN_X4)
    left, right = kinds[seed % 3], kinds[seed // 2]
    partitions = [32, 64, 96, 128][seed % 4]
    stationary = bench.pattern((partitions, 6), left, plain=True)
    moving = bench.pattern((partitions, 7), right, plain=True)
    stationary, moving = (replace(p, partition=p.partition * 0) for p in (stationary, moving))
    for pattern, kind in ((stationary, left), (moving, right)):
        put(bench.contents[pattern.tile.name], pattern, finite(bench, pattern.shape, kind))
    rows = 32 * (partitions // 32 - 1) + 4
    scales = [
        scale_tile(bench, rows, 6, 4 * (seed % 4), U8),
        scale_tile(bench, rows, 7, 12 - 4 * (seed % 4), F8E8M0FNU),
    ]
    dst = bench.pattern((6, 7), [F32, BF16][seed % 2], memory="PSUM", plain=True)
    a = values_of(bench.value(stationary), left)
    b = values_of(bench.value(moving), right)
    codes = [bench.value(scale) for scale in scales]
    expected = np.zeros((6, 7))
    for p in range(partitions):
        first = [a[p, m] * scales_of(codes[0], p, m) for m in range(6)]
        second = [b[p, n] * scales_of(codes[1], p, n) for n in range(7)]
        expected += np.array([[x @ y for y in second] for x in first])
    accumulate = seed % 2 == 1
    if accumulate:
        expected += wide(bench.value(dst))
    instr = NcMatmulMx(
        dst=dst, stationary=stationary, moving=moving, stationary_scale=scales[0],
        moving_scale=scales[1], accumulate=accumulate,
    )  # fmt: skip
    found = wide(take(bench.run(instr)[dst.tile.name], dst))
    size = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=8e-3 if seed % 2 else 1e-5, atol=1e-6 * size)


def finite(bench: Bench, shape: tuple[int, ...], dtype: DType) -> Array:
    """Random packed values of which none is infinite or NaN."""
    assert dtype.packs is not None
    numbers = bench.random.normal(0, 2, (*shape, 4)).astype(dtype.packs.numpy)
    codes = numbers.view(np.uint8).astype(np.uint64)
    shifts = np.arange(4, dtype=np.uint64) * np.uint64(dtype.packs.bits)
    words = np.bitwise_or.reduce((codes & np.uint64(2**dtype.packs.bits - 1)) << shifts, -1)
    return words.astype(dtype.numpy[0]).view(dtype.numpy)


def test_a_scale_of_all_ones_is_no_number() -> None:
    bench = Bench(90)
    operand = bench.pattern((32, 2), F8E5M2_X4, plain=True)
    operand = replace(operand, partition=operand.partition * 0)
    put(bench.contents[operand.tile.name], operand, finite(bench, (32, 2), F8E5M2_X4))
    scale = scale_tile(bench, 4, 2, 0, U8)
    bench.contents[scale.tile.name][2, scale.offset.constant + 1] = 255
    dst = bench.pattern((2, 2), memory="PSUM", plain=True)
    instr = NcMatmulMx(
        dst=dst, stationary=operand, moving=operand, stationary_scale=scale, moving_scale=scale
    )
    found = take(bench.run(instr)[dst.tile.name], dst)
    assert np.isnan(found[[0, 1, 1], [1, 0, 1]]).all() and np.isfinite(found[0, 0])


def quantized(group: Array, dtype: DType) -> tuple[int, list[float]]:
    """The scale's code and the values over the scale, of one group."""
    exponent, _ = GREATEST[dtype]
    greatest = max(abs(float(v)) for v in group.reshape(-1))
    power = math.floor(math.log2(greatest)) - (exponent - 1) if greatest else -127
    return power + 127, [float(v) / 2.0**power for v in group.reshape(-1)]


@pytest.mark.parametrize("to", [F8E4M3FN_X4, F8E5M2_X4], ids=str)
@pytest.mark.parametrize("source", [BF16, F16], ids=str)
@pytest.mark.parametrize("partitions,start,scale", [(32, 8, U8), (64, 0, F8E8M0FNU), (128, 12, U8)])
def test_quantize_mx(to: DType, source: DType, partitions: int, start: int, scale: DType) -> None:
    bench = Bench(91)
    spread = np.exp2(bench.random.integers(-8, 8, (partitions // 8, 5)))
    values = bench.random.normal(0, 1, (partitions, 5, 4))
    values *= np.repeat(spread, 8, axis=0)[:, :, None]
    values[:8, 0] = 0
    src = bench.pattern((partitions, 20), source, values=values.reshape(partitions, 20))
    dst = bench.pattern((partitions, 5), to, plain=True)
    src, dst = (replace(p, partition=p.partition * 0) for p in (src, dst))
    put(bench.contents[src.tile.name], src, values.reshape(partitions, 20).astype(source.numpy))
    rows = 32 * (partitions // 32 - 1) + 4
    scales = scale_tile(bench, rows, 5, start, scale)
    given = wide(bench.value(src)).reshape(partitions, 5, 4)
    before = bench.value(scales).view(np.uint8)
    after = bench.run(QuantizeMx(dst=dst, src=src, dst_scale=scales))
    found = values_of(take(after[dst.tile.name], dst), to)
    codes = take(after[scales.tile.name], scales).view(np.uint8)
    expected = before.copy()
    assert to.packs is not None
    for group in range(partitions // 8):
        for column in range(5):
            members = given[8 * group : 8 * group + 8, column]
            code, over = quantized(members, to)
            expected[group // 4 * 32 + group % 4, column] = code
            rounded = np.array(over, np.float32).astype(to.packs.numpy).astype(np.float64)
            seen = found[8 * group : 8 * group + 8, column].reshape(-1)
            np.testing.assert_array_equal(seen, rounded)
            assert np.abs(seen).max() <= GREATEST[to][1]
    np.testing.assert_array_equal(codes, expected)
    assert codes[0, 0] == 0  # a group of zeros has the least scale


def test_the_scale_leaves_room_to_round_up() -> None:
    bench = Bench(92)
    values = np.full((32, 4), 1.9921875)  # the greatest bfloat16 below 2
    src = bench.pattern((32, 4), BF16, values=values)
    dst = bench.pattern((32, 1), F8E4M3FN_X4, plain=True)
    src, dst = (replace(p, partition=p.partition * 0) for p in (src, dst))
    put(bench.contents[src.tile.name], src, values.astype(BF16.numpy))
    scale = scale_tile(bench, 4, 1, 0, U8)
    after = bench.run(QuantizeMx(dst=dst, src=src, dst_scale=scale))
    code = take(after[scale.tile.name], scale)[0, 0]
    assert code == 127 - 7
    assert values_of(take(after[dst.tile.name], dst), F8E4M3FN_X4).tolist()[0] == [[256.0] * 4]


@pytest.mark.parametrize("value,said", [
    (np.inf, "of an infinity or NaN"), (np.nan, "of an infinity or NaN"),
    (2.0**-125, "less than 2"),
])  # fmt: skip
def test_what_quantize_mx_does_not_specify(value: float, said: str) -> None:
    bench = Bench(93)
    values = np.zeros((32, 4))
    values[5, 2] = value
    src = bench.pattern((32, 4), BF16)
    dst = bench.pattern((32, 1), F8E4M3FN_X4, plain=True)
    src, dst = (replace(p, partition=p.partition * 0) for p in (src, dst))
    put(bench.contents[src.tile.name], src, values.astype(BF16.numpy))
    scale = scale_tile(bench, 4, 1, 0, U8)
    with pytest.raises(Unspecified, match=said):
        bench.run(QuantizeMx(dst=dst, src=src, dst_scale=scale))


def test_a_microscaled_product_takes_the_time_of_a_quarter_of_its_rows() -> None:
    instr = examples()["nc_matmul_mx"]
    assert isinstance(instr, NcMatmulMx)
    assert instr.products == 4 * 64 * 8 * 8
    arch = get_target("trn3").arch
    quick = replace(instr, moving=chip("m", 128, 512, dtype=F8E5M2_X4))
    plain = NcMatmul(
        dst=chip("s", 8, 512, memory="PSUM"), stationary=chip("a", 128, 8, dtype=BF16),
        moving=chip("m", 128, 512, dtype=BF16),
    )  # fmt: skip
    assert quick.cycles(arch) == plain.cycles(arch) == 512
