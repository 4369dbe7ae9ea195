"""The reference executor runs whole machine programs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glia.base.affine import Affine
from glia.base.dtype import F32, S32
from glia.base.errors import InternalError
from glia.base.loc import Loc
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.sync import RegisterLoad
from glia.isa.instructions.vector import Memset, TensorCopy
from glia.isa.operand import Pattern
from glia.machine.ir import Binding, Loop, Program
from glia.machine.legal import verify
from glia.machine.text import parse_program, print_program
from glia.sim.policy import AccessOutOfBounds, MalformedProgram, Policy
from glia.sim.run import run
from support.machine_programs import constants_and_names, doubling, matmul, tile, whole

PLACED = {"left": 0, "right": 512, "out": 2560, "total": 2048, "x": 0, "w": 1 << 20, "y": 1 << 22}


@pytest.mark.parametrize("addresses", [{}, PLACED], ids=["unplaced", "placed"])
@pytest.mark.parametrize("extents", [(128, 128, 512), (256, 384, 1024)], ids=str)
def test_a_looped_tiled_matmul(addresses: dict[str, int], extents: tuple[int, int, int]) -> None:
    rows, inner, columns = extents
    program = matmul(rows, inner, columns, addresses)
    verify(program)
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, inner)).astype(np.float32)
    w = random.normal(size=(inner, columns)).astype(np.float32)
    y = run(program, {"x": x, "w": w}, policy=Policy(check_initialized=True))["y"]
    np.testing.assert_allclose(y, x.astype(float) @ w.astype(float), rtol=1e-4, atol=1e-3)


def test_a_program_parsed_from_its_text_computes_the_same() -> None:
    program = matmul(128, 256, 512)
    inputs = {
        b.name: np.random.default_rng(1).normal(size=b.shape).astype(np.float32)
        for b in program.inputs
    }
    parsed = parse_program(print_program(program))
    np.testing.assert_array_equal(run(program, inputs)["y"], run(parsed, inputs)["y"])


@pytest.mark.parametrize("start,rounds", [(1.5, 7), (60.0, 1), (100.0, 0), (0.2, 9)])
def test_while_branch_and_registers(start: float, rounds: int) -> None:
    program = doubling()
    verify(program)
    outputs = run(program, {"x": np.array([start], np.float32)})
    assert outputs["y"][0] == np.float32(start) * 2**rounds
    assert outputs["rounds"][0] == rounds
    assert outputs["parity"][0] == (1.0 if rounds % 2 else 2.0)


def test_constants_negative_steps_and_reinterpreted_bits() -> None:
    program = constants_and_names()
    verify(program)
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    expected = np.float32(-1.5) * rows[::-1] + np.float32(1e-30)
    np.testing.assert_array_equal(run(program, {})["out-1"], expected)
    np.testing.assert_array_equal(program.constants["a table"], np.arange(12))


def _copying(*statements: object, **addresses: int) -> Program:
    """x -> out through a buffer of twice its size, with statements between load and store."""
    x, out, buffer = tile("x", "HBM", 1, 16), tile("out", "HBM", 1, 16), tile("b", "SBUF", 4, 8)
    here = Pattern(buffer, F32, ((1, 4), (1, 4)))
    load = DmaCopy(dst=here, src=Pattern(x, F32, ((4, 4), (1, 4))), queue="q")
    store = DmaCopy(dst=Pattern(out, F32, ((4, 4), (1, 4))), src=here, queue="q")
    return Program(
        name="copying",
        target="trn2",
        tiles={t.name: t for t in (x, out, buffer)},
        inputs=(Binding("x", x, (4, 4), F32),),
        outputs=(Binding("out", out, (4, 4), F32),),
        constants={},
        body=(load, *statements, store),  # type: ignore[arg-type]
        addresses=addresses,
    )


X = np.arange(16, dtype=np.float32).reshape(4, 4)


def test_tiles_at_one_address_share_memory() -> None:
    program = _copying(b=64)
    other = tile("other", "SBUF", 4, 8)
    program = replace(
        program,
        tiles={**program.tiles, "other": other},
        addresses={"b": 64, "other": 72},
        body=(program.body[0], Memset(dst=whole(other), value=7.0), program.body[1]),
    )
    expected = X.copy()
    expected[:, 2:] = 7
    np.testing.assert_array_equal(run(program, {"x": X})["out"], expected)


def test_hbm_tiles_at_one_address_share_memory() -> None:
    program = _copying(x=0, out=32)
    outputs = replace(program.outputs[0], name="x", tile=program.tiles["x"])
    program = replace(program, outputs=(*program.outputs, outputs))
    result = run(program, {"x": X})
    np.testing.assert_array_equal(result["out"], X)
    np.testing.assert_array_equal(result["x"], np.concatenate([X[:2], X[:2]]))


def test_a_run_leaves_its_inputs_alone() -> None:
    x = X.copy()
    run(_copying(), {"x": x})
    np.testing.assert_array_equal(x, X)


def test_fresh_memory_is_poisoned_or_zero() -> None:
    program = _copying()
    program = replace(program, body=program.body[1:])
    assert np.isnan(run(program, {"x": X})["out"]).all()
    assert not run(program, {"x": X}, policy=Policy(poison=None))["out"].any()


def test_the_step_of_one_element_does_not_matter() -> None:
    b = _copying().tiles["b"]
    column = Pattern(b, F32, ((1, 4), (1 << 70, 1)))
    program = replace(_copying(), body=(*_copying().body[:1], Memset(dst=column, value=1.0)))
    run(program, {"x": X})


@pytest.mark.parametrize("counts", [(1 << 40, 1 << 30), (0, 1 << 70)])
def test_a_pattern_that_names_an_element_without_end_is_refused(counts: tuple[int, int]) -> None:
    b = _copying().tiles["b"]
    again = Pattern(b, F32, ((1, 4), *((0, count) for count in counts)))
    program = replace(_copying(), body=(TensorCopy(dst=again, src=again),))
    with pytest.raises(AccessOutOfBounds, match=rf"b names \[4, {counts[0]}, {counts[1]}\]"):
        run(program, {"x": X})


def test_an_access_outside_a_tile_names_instruction_line_and_elements() -> None:
    b = _copying().tiles["b"]
    column = Pattern(b, F32, ((1, 4), (1, 1)), Affine.of("i"))
    copy = TensorCopy(dst=column, src=column, loc=Loc("model.py", 3))
    with pytest.raises(AccessOutOfBounds) as fault:
        run(_copying(Loop("i", 9, (copy,))), {"x": X})
    for part in ("elements 8..8 of b (SBUF), which has 8", "tensor_copy(", "model.py:3"):
        assert part in str(fault.value)


@pytest.mark.parametrize("index,legal", [(4, True), (5, False), (-1, False)])
def test_a_register_is_checked_when_it_runs(index: int, legal: bool) -> None:
    program = _copying()
    b, one = program.tiles["b"], tile("one", "HBM", 1, 1, S32)
    source = Pattern(b, F32, ((1, 4), (1, 4)), Affine.of("$i"))
    target = Pattern(b, F32, ((1, 4), (1, 4)))
    steps = (
        RegisterLoad(register="i", src=Pattern(one, S32, ((1, 1),)), on="vector"),
        TensorCopy(dst=target, src=source),
    )
    program = replace(
        program,
        tiles={**program.tiles, "one": one},
        constants={"one": np.array([index], np.int32)},
        body=(program.body[0], *steps, program.body[1]),
    )
    verify(program)
    if legal:
        assert np.isnan(run(program, {"x": X})["out"]).all()
    else:
        with pytest.raises(AccessOutOfBounds, match=r"elements (5..8|-1..2) of b"):
            run(program, {"x": X})


def test_wrong_inputs_are_refused() -> None:
    program = _copying()
    with pytest.raises(InternalError, match="input x is missing"):
        run(program, {})
    with pytest.raises(InternalError, match="not f32"):
        run(program, {"x": X.astype(np.float64)})
    with pytest.raises(InternalError, match="input x is"):
        run(program, {"x": X[:2]})


def test_an_unset_register_is_a_fault_of_the_program() -> None:
    b = _copying().tiles["b"]
    unset = Pattern(b, F32, ((1, 4), (1, 1)), Affine.of("$nowhere"))
    with pytest.raises(MalformedProgram, match="nowhere"):
        run(_copying(TensorCopy(dst=unset, src=unset)), {"x": X})
