"""Windows at any element of a tensor: a table whose overlapping rows name far more than it has."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

import glia
from glia.base.dtype import F32, S32
from glia.isa.instructions.dma import DmaCopy, DmaGather
from glia.isa.operand import Memory, Pattern, Tile
from glia.sim.memory import MOST_REPEATED, oversized
from support.targets import CORES

SIZE, WINDOW = 600, (20, 300)
STARTS = np.array([[5, 7], [500, 299], [12, 200]], np.int32)
X = np.random.default_rng(0).integers(-3, 4, (SIZE, SIZE)).astype(np.float32)
UPDATES = np.random.default_rng(1).integers(-2, 3, (len(STARTS), *WINDOW)).astype(np.float32)
SCATTERED = lax.ScatterDimensionNumbers((1, 2), (), (0, 1))
GATHERED = lax.GatherDimensionNumbers((1, 2), (), (0, 1))


def windows(x: Any, starts: Any, updates: Any) -> Any:
    scaled = lax.scatter_mul(x, starts, updates, SCATTERED)
    return scaled, lax.gather(x, starts, GATHERED, WINDOW)


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("device", ["reference", "host", "adversarial"])
def test_windows_at_any_element_of_a_large_tensor(target: str, device: str) -> None:
    lowered = jax.jit(windows).lower(X, STARTS, UPDATES)
    neff = glia.compile(lowered, target=target)
    tables = [
        pattern
        for instr in neff.programs[0].instructions()
        for name, _, pattern in instr.operands()
        if name in instr.tables
    ]
    assert max(table.elements for table in tables) > MOST_REPEATED > X.nbytes
    scaled, taken = glia.load(neff, device=device)(X, STARTS, UPDATES)
    wanted = X.copy()
    for n, (row, column) in enumerate(STARTS):
        box = np.s_[row : row + WINDOW[0], column : column + WINDOW[1]]
        np.testing.assert_array_equal(taken[n], X[box])
        wanted[box] *= UPDATES[n]
    np.testing.assert_array_equal(scaled, wanted)


@pytest.mark.parametrize("elements,dims,is_refused", [
    (1 << 20, ((1, 1 << 19), (1, 1 << 19)), False),
    (1 << 20, ((1, 1 << 19), (0, 1 << 30)), True),  # a row is more than a host could go through
    (1 << 20, ((0, 1 << 30), (1, 8)), True),  # so are the rows
    (1 << 36, ((1, 1 << 35), (0, 1 << 35)), True),  # no array has this many bytes
])  # fmt: skip
def test_one_row_of_a_table_counts(
    elements: int, dims: tuple[tuple[int, int], ...], is_refused: bool
) -> None:
    table = Pattern(Tile("table", Memory.HBM, F32, 1, elements), F32, dims)
    row = Pattern(Tile("row", Memory.HBM, F32, 1, elements), F32, ((0, 1), *dims[1:]))
    index = Pattern(Tile("index", Memory.SBUF, S32, 1, 1), S32, ((1, 1), (1, 1)))
    gather = DmaGather(dst=row, src=table, indices=index, queue="q")
    assert oversized(gather) is (row if dims[1][1] == 1 << 30 else table if is_refused else None)
    copied = DmaCopy(dst=table, src=table, queue="q")
    assert oversized(copied) is table, "all of what is copied counts"
