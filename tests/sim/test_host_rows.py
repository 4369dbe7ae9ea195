"""Rows chosen by index whose operands share bytes with others, or with themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glia.base.affine import Affine
from glia.base.dtype import S32
from glia.isa.instructions.dma import DmaCopy, DmaGather, DmaScatter
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Binding, Program
from glia.machine.legal import verify
from glia.sim.host.host_program import HostProgram
from glia.sim.run import run

TABLE, RESULT = (Tile(name, Memory.HBM, S32, 1, 32) for name in ("t", "d"))
INDEX, GIVEN = Tile("i", Memory.SBUF, S32, 128, 1), Tile("g", Memory.HBM, S32, 1, 128)


def of(tile: Tile, *dims: tuple[int, int], offset: int = 0) -> Pattern:
    return Pattern(tile, S32, dims, Affine.of(offset))


CHOSEN = of(INDEX, (1, 3), (1, 1))
ROWS: dict[str, Any] = {
    "a scatter into what it reads": DmaScatter(
        dst=of(TABLE, (2, 8), (1, 2)), src=of(TABLE, (2, 3), (1, 2)), indices=CHOSEN, queue="q"
    ),
    "a scatter that adds to what it reads": DmaScatter(
        dst=of(TABLE, (2, 8), (1, 2)), src=of(TABLE, (2, 3), (1, 2)), indices=CHOSEN,
        combine="add", queue="q",
    ),
    "a gather from what it writes": DmaGather(
        dst=of(TABLE, (2, 3), (1, 2), offset=1), src=of(TABLE, (2, 8), (1, 2)), indices=CHOSEN,
        queue="q",
    ),
    "a gather that adds to elements that share bytes": DmaGather(
        dst=of(RESULT, (1, 3), (1, 2)), src=of(TABLE, (2, 8), (1, 2)), indices=CHOSEN,
        combine="add", queue="q",
    ),
    "a scatter to rows that share bytes with themselves": DmaScatter(
        dst=of(RESULT, (4, 4), (1, 2), (1, 2)), src=of(TABLE, (4, 3), (2, 2), (1, 2)),
        indices=CHOSEN, combine="add", queue="q",
    ),
    "a scatter to rows that share bytes": DmaScatter(
        dst=of(RESULT, (1, 6), (1, 4)), src=of(TABLE, (4, 3), (1, 4)), indices=CHOSEN,
        combine="add", queue="q",
    ),
}  # fmt: skip


@pytest.mark.parametrize("index", [[1, 2, 3], [3, 1, 3], [0, 0, 0]], ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_rows_that_share_bytes_are_those_of_the_reference(name: str, index: list[int]) -> None:
    bindings = [Binding(t.name, t, (t.elements,), S32) for t in (TABLE, RESULT, GIVEN)]
    load = DmaCopy(dst=of(INDEX, (1, 128), (1, 1)), src=of(GIVEN, (1, 128), (1, 1)), queue="in")
    program = Program(
        name="rows", target="trn2", tiles={t.name: t for t in (TABLE, RESULT, INDEX, GIVEN)},
        inputs=tuple(bindings), outputs=tuple(bindings[:2]), constants={},
        body=(load, ROWS[name]), addresses={"t": 0, "d": 128, "g": 256, "i": 0},
    )  # fmt: skip
    verify(program)
    inputs = {
        "t": np.arange(32, dtype=np.int32), "d": np.full(32, 100, np.int32),
        "g": np.pad(np.int32(index), (0, 125)),
    }  # fmt: skip
    wanted, host = run(program, inputs), HostProgram(program)
    for _ in range(2):
        found = host.run({key: value.copy() for key, value in inputs.items()})
        for key, array in wanted.items():
            assert found[key].tolist() == array.tolist()
