"""What tensor indirection reads and writes, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glia.base.dtype import BF16, F8E4M3FN_X4, F32, S32, U8, U16, U32, DType
from glia.base.errors import Unspecified
from glia.isa.instructions.indirect import TensorGather, TensorScatter
from support.isa_bench import Bench

Array = np.ndarray[Any, Any]
ELEMENTS = 45


def _offset(index: Array, partition: int, i: int, group: int) -> int:
    """Offset i of the group that a partition is in."""
    return int(index[partition // group * group + i % group, i // group])


def _lists(bench: Bench, partitions: int, group: int) -> Array:
    """An index of two columns, the offsets of each group distinct."""
    count = 2 * group
    lists = [
        bench.random.permutation(64)[:count].reshape(2, group).T for _ in range(partitions // group)
    ]
    return np.concatenate(lists)


@pytest.mark.parametrize("dtype", [F32, BF16, U8, F8E4M3FN_X4], ids=str)
@pytest.mark.parametrize("group,count,memory", [(16, 19, "SBUF"), (32, 40, "PSUM")])
def test_a_gather_reads_the_offsets_of_its_group(
    dtype: DType, group: int, count: int, memory: str
) -> None:
    bench = Bench(60, starts=(0,))
    src = bench.pattern((64, 8, 8), dtype, memory)
    places = _lists(bench, 64, group)
    index = bench.pattern((64, 2), U32, values=places)
    dst = bench.pattern((64, count), dtype)
    flat = bench.value(src).reshape(64, 64)
    expected = bench.value(dst)
    for p in range(64):
        for i in range(count):
            expected[p, i] = flat[p, _offset(places, p, i, group)]
    bench.check(TensorGather(dst=dst, src=src, index=index, group=group), dst=expected)


@pytest.mark.parametrize("dtype", [F32, BF16, U8, F8E4M3FN_X4], ids=str)
@pytest.mark.parametrize("group,count,memory", [(16, 19, "PSUM"), (32, 40, "SBUF")])
def test_a_scatter_writes_the_offsets_of_its_group_and_nothing_else(
    dtype: DType, group: int, count: int, memory: str
) -> None:
    bench = Bench(61, starts=(0,))
    dst = bench.pattern((64, 8, 8), dtype, memory)
    places = _lists(bench, 64, group)
    index = bench.pattern((64, 2), S32, values=places)
    src = bench.pattern((64, count), dtype)
    values = bench.value(src)
    expected = bench.value(dst).reshape(64, 64)
    for p in range(64):
        for i in range(count):
            expected[p, _offset(places, p, i, group)] = values[p, i]
    instr = TensorScatter(dst=dst, src=src, index=index, group=group)
    bench.check(instr, dst=expected.reshape(64, 8, 8))


def test_an_offset_outside_the_partition_is_not_specified() -> None:
    bench = Bench(62, starts=(0,))
    src, dst = bench.pattern((16, 8)), bench.pattern((16, 4))
    index = bench.pattern((16, 1), U16, values=np.full((16, 1), 8))
    with pytest.raises(Unspecified, match="element 8 of 8"):
        bench.run(TensorGather(dst=dst, src=src, index=index))


def test_an_element_that_is_written_twice_is_not_specified() -> None:
    bench = Bench(63, starts=(0,))
    src, dst = bench.pattern((16, 2)), bench.pattern((16, 8))
    index = bench.pattern((16, 1), U16, values=np.full((16, 1), 3))
    with pytest.raises(Unspecified, match="writes an element twice"):
        bench.run(TensorScatter(dst=dst, src=src, index=index))
