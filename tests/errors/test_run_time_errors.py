"""What goes wrong when a loaded model runs, or a framework is missing, is explained."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

import glia
from glia.base.affine import Affine
from glia.base.dtype import F32
from glia.frontend.errors import FrameworkMissing
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.sync import RegisterMove
from glia.isa.instructions.vector import Memset
from glia.isa.operand import Memory, Pattern
from glia.machine import ProgramBuilder
from glia.machine.ir import Loop, Statement
from glia.neff.package import Neff
from glia.runtime import model as runtime
from glia.runtime.errors import (
    DeviceMemoryExhausted,
    ProgramFault,
    UndocumentedResult,
    WrongDType,
    WrongShape,
)
from glia.runtime.status import Status
from glia.sim import watchdog
from glia.sim.policy import BadLimit
from glia.sim.watchdog import ExecutionTimeout, RunTooLarge
from support.neff_programs import SHAPE, B, W, example_neff, rows

X = np.zeros(SHAPE, np.float32)
STABLEHLO = "module { func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {"


def with_offset(offset: int) -> Neff:
    """The example model with one more load, from a row that a register names."""
    neff = example_neff()
    program = neff.program
    far = Pattern(W, F32, rows(W).dims, Affine.of("$row"))
    load = DmaCopy(dst=rows(B), src=far, queue="in")
    body = (RegisterMove(register="row", value=offset), load, *program.body)
    return replace(neff, programs=(replace(program, body=body),))


def looped(*body: Statement, trips: int = 1 << 30) -> Neff:
    """The example model with a loop in front that repeats `body`."""
    neff = example_neff()
    program = replace(neff.program, body=(Loop("again", trips, body), *neff.program.body))
    return replace(neff, programs=(program,))


@pytest.mark.parametrize("device", ["reference", "adversarial", "host"])
@pytest.mark.parametrize("body", [(), (Memset(dst=rows(B), value=0.0),)])
def test_a_run_of_hours_is_refused(device: str, body: tuple[Statement, ...]) -> None:
    with pytest.raises(RunTooLarge, match="NEURON_SIM_MOST_INSTRUCTIONS"):
        glia.load(looped(*body), device=device)(X)


def test_the_limit_of_a_run_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    model = glia.load(looped(Memset(dst=rows(B), value=0.0), trips=50))
    model(X)
    monkeypatch.setenv("NEURON_SIM_MOST_INSTRUCTIONS", "50")
    with pytest.raises(RunTooLarge, match="the limit is 50"):
        model(X)


@pytest.mark.parametrize("text", ["30s", "-1", "1.5", "soon", "\u0663"])
def test_a_limit_that_is_no_number_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = glia.load(example_neff())
    for name in ("NEURON_RT_EXEC_TIMEOUT", "NEURON_SIM_MOST_ITERATIONS"):
        with monkeypatch.context() as changed, pytest.raises(BadLimit, match=name):
            changed.setenv(name, text)
            model(X)


@pytest.mark.parametrize("value", ["ab", None, [[1.0], [2.0, 3.0]], {}])
def test_a_value_that_is_no_array_names_the_input(value: object) -> None:
    with pytest.raises((WrongDType, WrongShape), match="input 'x'"):
        glia.load(example_neff())(value)


@pytest.mark.parametrize("device", ["reference", "adversarial", "host"])
def test_a_run_ends_at_its_timeout(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog.time, "monotonic", iter(range(0, 1000, 3)).__next__)
    monkeypatch.setenv("NEURON_RT_EXEC_TIMEOUT", "5")
    with pytest.raises(ExecutionTimeout, match=r"NRT_TIMEOUT\(5\): execution timeout \(5 s\)"):
        glia.load(looped(Memset(dst=rows(B), value=0.0), trips=50), device=device)(X)


def test_what_no_document_tells_has_a_code() -> None:
    b = ProgramBuilder("scatters")
    table, index = b.output("table", (8, 4)), b.input("index", (2, 1), "s32")
    rows, where = b.sbuf((2, 4)), b.sbuf((2, 1), "s32")
    b.memset(rows, 1.0)
    b.dma_copy(where, index)
    b.dma_scatter(table, rows, where, unique_indices=True)
    model = glia.load(b.finish())
    model(np.int32([[0], [1]]))
    with pytest.raises(UndocumentedResult, match="names a row twice"):
        model(np.int32([[1], [1]]))


def test_an_access_outside_its_tensor_names_the_instruction() -> None:
    glia.load(with_offset(0))(X)
    with pytest.raises(ProgramFault) as caught:
        glia.load(with_offset(5))(X)
    text = str(caught.value)
    assert "NRT_EXEC_COMPLETED_WITH_ERR(1004): elements 5..1028 of w (HBM), which has 1024" in text
    assert "instruction: dma_copy(" in text
    assert caught.value.status is Status.NRT_EXEC_COMPLETED_WITH_ERR


def test_a_device_too_large_for_the_host_says_how_large(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> dict[str, np.ndarray]:
        raise MemoryError

    monkeypatch.setattr(runtime, "import_object", lambda path: refuse)
    neff = example_neff()
    needed = sum(t.bytes for t in neff.program.tiles.values() if t.memory is Memory.HBM)
    with pytest.raises(DeviceMemoryExhausted, match=f"needs {needed} bytes") as caught:
        glia.load(neff)(X)
    assert caught.value.status is Status.NRT_RESOURCE


def test_stablehlo_without_jaxlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jaxlib", None)
    with pytest.raises(FrameworkMissing, match=r'pip install "glia\[jax\]"'):
        glia.compile(STABLEHLO + "\n return %x : tensor<2xf32> } }")
