"""A run that is not precise holds low precision in float32 and changes nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from glia.base.dtype import BF16, F8E4M3, F8E5M2, F16, F32, S32, U16, DType
from glia.base.errors import InternalError
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.sync import RegisterMove
from glia.isa.instructions.vector import TensorCopy, TensorScalar, TensorTensor
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Binding, Branch, Loop, Program, While
from glia.sim.float32_mode import promote_to_float32
from glia.sim.order.concurrent import run_concurrently, run_cores
from glia.sim.policy import Policy
from glia.sim.run import run
from support.isa_bench import Bench, take

Array = np.ndarray[Any, Any]
WIDE = Policy(is_precise=False)


def chain(bench: Bench, dtype: DType) -> tuple[Program, Pattern, Array]:
    """out = tanh(1 + x / 64) + x, each step in a tile of the dtype; and out in float32."""
    x, small, near, out = (bench.pattern((6, 9), dtype) for _ in range(4))
    body = (
        TensorScalar(dst=small, data=x, operand0=1 / 64, op0="multiply", operand1=1.0, op1="add"),
        Activation(dst=near, data=small, function="tanh"),
        TensorTensor(dst=out, data1=near, data2=x, op="add"),
    )
    value = bench.value(x).astype(np.float32)
    expected = np.tanh(value * np.float32(1 / 64) + np.float32(1)) + value
    return bench.program(body), out, expected


@pytest.mark.parametrize("dtype", [BF16, F8E4M3, F8E5M2], ids=str)
def test_wide_tensors_are_not_rounded(dtype: DType) -> None:
    bench = Bench(1)
    program, out, expected = chain(bench, dtype)
    wide = run(program, bench.contents, policy=WIDE)[out.tile.name]
    assert wide.dtype == np.float32
    np.testing.assert_allclose(take(wide, out), expected, rtol=1e-6)
    precise = run(program, bench.contents)[out.tile.name]
    assert precise.dtype == dtype.numpy
    assert np.abs(take(precise, out).astype(np.float32) - expected).max() > 1e-3


@pytest.mark.parametrize("dtype", [F32, F16, S32], ids=str)
def test_other_dtypes_are_held_as_they_are(dtype: DType) -> None:
    bench = Bench(2)
    program, out, _ = chain(bench, dtype)
    wide = run(program, bench.contents, policy=WIDE)[out.tile.name]
    precise = run(program, bench.contents)[out.tile.name]
    assert wide.dtype == dtype.numpy
    np.testing.assert_array_equal(wide, precise)


def test_a_wide_run_gives_what_the_program_in_float32_gives() -> None:
    low, high = Bench(3), Bench(3)
    program, out, _ = chain(low, BF16)
    same, _, _ = chain(high, F32)
    contents = {name: array.astype(np.float32) for name, array in low.contents.items()}
    expected = run(same, contents)
    for name, array in run(program, low.contents, policy=WIDE).items():
        np.testing.assert_array_equal(array, expected[name])
    assert out.dtype is BF16


def test_concurrent_engines_hold_tensors_the_same_way() -> None:
    bench = Bench(4)
    data, out = bench.pattern((6, 9), BF16, memory="HBM"), bench.pattern((6, 9), BF16, memory="HBM")
    program = bench.program(DmaCopy(dst=out, src=data, queue="q"))
    found = run_concurrently(program, bench.contents, policy=WIDE)
    expected = run(program, bench.contents, policy=WIDE)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    with pytest.raises(InternalError, match="share HBM"):
        run_cores([program, program], [bench.contents, bench.contents], policy=WIDE)


def test_a_tile_whose_bits_are_used_stays_as_it_is() -> None:
    bench = Bench(5)
    data, out = bench.pattern((6, 9), BF16), bench.pattern((6, 9), BF16)
    bits = [Pattern(p.tile, U16, p.dims, p.offset, p.partition) for p in (data, out)]
    program = bench.program(TensorCopy(dst=bits[1], src=bits[0]))
    assert keep_wide_dtypes(program)[out.tile.name] is BF16
    found = run(program, bench.contents, policy=WIDE)[out.tile.name]
    np.testing.assert_array_equal(take(found, out), bench.value(data))


def test_tiles_that_share_bytes_of_hbm_stay_as_they_are() -> None:
    tiles = {name: Tile(name, Memory.HBM, BF16, 1, 8) for name in "abc"}
    whole = {name: Pattern(tile, BF16, ((1, 8),)) for name, tile in tiles.items()}
    body = (DmaCopy(dst=whole["c"], src=whole["b"], queue="q"),)
    inputs = (Binding("x", tiles["a"], (8,), BF16),)
    outputs = (Binding("y", tiles["c"], (8,), BF16),)
    addresses = {"a": 0, "b": 0, "c": 64}
    program = Program("one", "trn2", tiles, inputs, outputs, {}, body, addresses)
    x = np.arange(8).astype(BF16.numpy)
    wide = keep_wide_dtypes(program)
    assert wide == {"a": BF16, "b": BF16, "c": F32}
    np.testing.assert_array_equal(run(program, {"x": x}, policy=WIDE)["y"], np.arange(8.0))


def keep_wide_dtypes(program: Program) -> dict[str, DType]:
    return {name: tile.dtype for name, tile in promote_to_float32(program).tiles.items()}


def test_control_flow_and_constants_are_widened_too() -> None:
    bench = Bench(6)
    parts = [bench.pattern((6, 4), BF16) for _ in range(4)]
    constant = Tile("k", Memory.HBM, BF16, 1, 24)
    left = RegisterMove(register="left", value=0)
    load = DmaCopy(dst=parts[0], src=Pattern(constant, BF16, ((4, 6), (1, 4))), queue="q")
    body = (
        Loop("i", 2, (_third(parts[1], parts[0]),)),
        RegisterMove(register="left", value=1),
        While((), "left", (_third(parts[2], parts[1]), left)),
        Branch("left", ((_third(parts[3], parts[2]),),)),
    )
    program = bench.program(body)
    contents = np.arange(1.0, 25.0).reshape(6, 4).astype(BF16.numpy)
    tiles = {**program.tiles, "k": constant}
    statements = (*program.body[: len(parts)], load, *program.body[len(parts) :])
    program = replace(program, tiles=tiles, constants={"k": contents}, body=statements)
    found = run(program, bench.contents, policy=WIDE)[parts[3].tile.name]
    expected = contents.astype(np.float64) / 27
    np.testing.assert_allclose(take(found, parts[3]), expected, rtol=1e-6)


def _third(dst: Pattern, data: Pattern) -> TensorScalar:
    return TensorScalar(dst=dst, data=data, operand0=1 / 3, op0="multiply")
