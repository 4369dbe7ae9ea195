"""What a lane gives does not depend on which lane it is, nor on how many sums there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glia.base.dtype import F8E3M4, F8E4M3, F8E4M3FN, F8E5M2, F32, S32, DType
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.vector import TensorCopy, TensorReduce
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile, whole_tile
from glia.machine.ir import Binding, Program
from glia.sim.host.host_program import HostProgram

ROWS, WIDTH = 64, 37  # vectors of 16, then of 4, then one


def applied(
    instr_of: Any, x: Any, result_width: int, dtype: DType = F32, result_dtype: DType | None = None
) -> Any:
    """What an instruction on chip makes of an array."""
    of_result = result_dtype or dtype
    rows, width = x.shape
    given = Tile("x", Memory.HBM, dtype, 1, x.size)
    result = Tile("y", Memory.HBM, of_result, 1, rows * result_width)
    a = Tile("a", Memory.SBUF, dtype, rows, width)
    b = Tile("b", Memory.SBUF, of_result, rows, result_width)
    instr: Instr = instr_of(whole_tile(b), whole_tile(a))
    program = Program(
        name="lanes", target="trn2", tiles={each.name: each for each in (given, result, a, b)},
        inputs=(Binding("x", given, x.shape, dtype),),
        outputs=(Binding("y", result, (rows, result_width), of_result),), constants={},
        addresses={"x": 0, "y": 4 * x.size, "a": 0, "b": 4 * width},
        body=(
            DmaCopy(dst=whole_tile(a), src=Pattern(given, dtype, ((width, rows), (1, width)))),
            instr,
            DmaCopy(
                dst=Pattern(result, of_result, ((result_width, rows), (1, result_width))),
                src=whole_tile(b),
            ),
        ),
    )  # fmt: skip
    host = HostProgram(program)
    assert not host.table.in_python, host.table.reasons
    return host.run({"x": x})["y"].copy()


@pytest.mark.parametrize("function", ["exp", "tanh", "gelu", "sigmoid", "silu"])
def test_no_result_depends_on_its_lane(function: str) -> None:
    random = np.random.default_rng(0)
    x = random.uniform(-110, 95, (ROWS, WIDTH)).astype(np.float32)
    x[0, :8] = [np.nan, np.inf, -np.inf, 0, -0.0, 1e-42, -88.8, -103.9]
    x[1:3] = np.linspace(-104, -86, 2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)  # subnormals
    found = [
        np.roll(
            applied(
                lambda dst, src: Activation(dst=dst, data=src, function=function),
                np.ascontiguousarray(np.roll(x, shift, axis=1)),
                WIDTH,
            ),
            -shift,
            axis=1,
        )
        for shift in (0, 1, 5, 19, 33)
    ]
    assert np.isfinite(found[0]).any()
    for other in found[1:]:
        assert other.tobytes() == found[0].tobytes()


@pytest.mark.parametrize("width", [1, 4, 15, 16, 17, 63, 64, 65, 80, 129, 200])
@pytest.mark.parametrize("op", ["add", "maximum", "minimum"])
@pytest.mark.parametrize("dtype", [F32, S32], ids=str)
def test_sums_of_every_width(width: int, op: str, dtype: DType) -> None:
    """Small whole numbers, whose sums are exact in any order."""
    x = np.random.default_rng(width).integers(-9, 10, (8, width)).astype(dtype.numpy)
    found = applied(lambda dst, src: TensorReduce(dst=dst, data=src, op=op), x, 1, dtype)
    assert found[:, 0].tolist() == getattr(np, op).reduce(x, axis=1).tolist()


@pytest.mark.parametrize("dtype", [F8E4M3, F8E4M3FN, F8E5M2, F8E3M4], ids=str)
def test_narrow_floats_are_rounded_as_numpy_rounds_them(dtype: DType) -> None:
    """Every value, the middle between two, its neighbours, and what is beyond or no number."""
    values = np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float32)
    values = np.unique(values[np.isfinite(values)])
    middle = (values[1:] + values[:-1]) / 2
    near = [np.nextafter(middle, np.float32(side)) for side in (np.inf, -np.inf)]
    others = np.float32([np.nan, np.inf, -np.inf, 1e30, -1e30, 0.0, -0.0, 1e-40, -1e-20])
    negative = np.array([0xFFC00000], np.uint32).view(np.float32)
    step = values[-1] - values[-2]
    ends = np.float32([values[-1] + step / 2, values[-1] + step, np.nextafter(values[-1], np.inf)])
    x = np.concatenate([values, middle, *near, others, negative, ends, -ends])
    x = np.concatenate([x, np.random.default_rng(0).standard_normal(999, np.float32)])
    x = np.pad(x, (0, -x.size % 8)).reshape(8, -1)
    found = applied(lambda dst, src: TensorCopy(dst=dst, src=src), x, x.shape[1], F32, dtype)
    assert found.view(np.uint8).tolist() == x.astype(dtype.numpy).view(np.uint8).tolist()
