"""Scans and statistics along a partition: every pair of operators, every number of elements."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from glia.base.dtype import BF16, F32, S16, DType
from glia.isa.alu import ALU_OPS
from glia.isa.instructions.vector_statistics import BnAggr, BnStats, TensorTensorScan
from support.isa_bench import SCALAR_MEANING, Bench, put, wide

SCANNING = [
    name
    for name, op in ALU_OPS.items()
    if op.arity == 2 and op.family == "arithmetic" and "vector" in op.engines
]
VALUES = np.array([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0], np.float32)


def scanned(ops: tuple[str, str], flags: tuple[bool, ...], rows: Any, start: Any) -> Any:
    """Row by row and element by element, rounded to float32 after each operator."""
    result = []
    for left, right, state in zip(*rows, start, strict=True):
        states = []
        for pair in zip(left, right, strict=True):
            sides = (float(pair[0]), float(state))
            state = np.float32(SCALAR_MEANING[ops[0]](*(sides[::-1] if flags[0] else sides)))
            sides = (float(state), float(pair[1]))
            state = np.float32(SCALAR_MEANING[ops[1]](*(sides[::-1] if flags[1] else sides)))
            states.append(state)
        result.append(states)
    return np.array(result, np.float32)


@pytest.mark.parametrize("first", SCANNING)
def test_scans_of_every_pair_of_operators(first: str) -> None:
    random = np.random.default_rng(1)
    rows = random.choice(VALUES, (2, 4, 5))
    start = random.choice(VALUES, 4)
    flags = (False, True)
    for second, *turned in itertools.product(SCANNING, flags, flags):
        found = TensorTensorScan.compute(rows[0], rows[1], start[:, None], first, second, *turned)
        expected = scanned((first, second), tuple(turned), rows, start)
        np.testing.assert_array_equal(found, expected, f"{first} {second} {turned}")


def statistics(row: list[float]) -> list[float]:
    """Count, mean and variance times count, exactly summed."""
    count = len(row)
    mean = math.fsum(row) / max(count, 1)
    return [count, mean, math.fsum((value - mean) ** 2 for value in row)]


@pytest.mark.parametrize("count", [1, 2, 3, 8, 33, 511, 512])
@pytest.mark.parametrize("dtype", [F32, BF16, S16], ids=str)
def test_bn_stats_of_any_number_of_elements(count: int, dtype: DType) -> None:
    bench = Bench(count, starts=(32,))
    values = bench.random.integers(-90, 90, (5, count))
    data, dst = bench.pattern((5, count), dtype, values=values), bench.pattern((5, 6))
    expected = [
        statistics(row[0::2]) + statistics(row[1::2]) for row in wide(bench.value(data)).tolist()
    ]
    found = bench.results(BnStats(dst=dst, data=data), dst)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("counts", [(7,), (4, 4), (1, 9, 2, 0, 5)], ids=str)
def test_bn_aggr_joins_statistics_of_parts(counts: tuple[int, ...]) -> None:
    bench = Bench(3, starts=(32,))
    parts = [bench.random.normal(3, 2, (6, count)).astype(np.float32) for count in counts]
    triples = [
        list(itertools.chain.from_iterable(statistics(part[p].tolist()) for part in parts))
        for p in range(6)
    ]
    data, dst = bench.pattern((6, len(counts), 3)), bench.pattern((6, 2), memory="PSUM")
    put(bench.contents[data.tile.name], data, np.array(triples, np.float32))
    rows = np.concatenate(parts, 1).astype(np.float64)
    expected = np.stack([rows.mean(1), rows.var(1)], 1)
    found = bench.results(BnAggr(dst=dst, data=data), dst)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
