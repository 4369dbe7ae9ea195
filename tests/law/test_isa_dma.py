"""What data movement does, against an independent statement of its meaning."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from glia.base.dtype import BF16, F32, S32, DType
from glia.isa import (
    DmaCopy,
    DmaGather,
    DmaScatter,
)
from glia.sim.policy import AccessOutOfBounds
from law.isa_bench import Bench, wide


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


def test_a_gather_out_of_bounds_is_a_fault() -> None:
    bench = Bench(33)
    src, dst = bench.pattern((9, 4), memory="HBM"), bench.pattern((2, 4))
    chosen = bench.pattern((2, 1), S32, values=np.array([[3], [9]]))
    with pytest.raises(AccessOutOfBounds, match="index 9 is out of bounds for 9 rows"):
        bench.run(DmaGather(dst=dst, src=src, indices=chosen, queue="q"))
