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
from glia.isa.operand import Memory, Pattern
from glia.neff.package import Neff
from glia.runtime import model as runtime
from glia.runtime.errors import DeviceMemoryExhausted, ProgramFault
from glia.runtime.status import Status
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


def test_an_access_outside_its_tensor_names_the_instruction() -> None:
    glia.load(with_offset(0))(X)
    with pytest.raises(ProgramFault) as caught:
        glia.load(with_offset(5))(X)
    text = str(caught.value)
    assert "NRT_EXEC_COMPLETED_WITH_ERR(1004): elements 5..1028 of w (HBM), which has 1024" in text
    assert "instruction: dma_copy(" in text
    assert caught.value.status is Status.NRT_EXEC_COMPLETED_WITH_ERR


def test_a_device_too_large_for_the_host_says_how_large(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(program: object, inputs: object) -> dict[str, np.ndarray]:
        raise MemoryError

    monkeypatch.setattr(runtime, "import_object", lambda path: refuse)
    neff = example_neff()
    needed = sum(t.bytes for t in neff.program.tiles.values() if t.memory is Memory.HBM)
    with pytest.raises(DeviceMemoryExhausted, match=f"needs {needed} bytes") as caught:
        glia.load(neff)(X)
    assert caught.value.status is Status.NRT_RESOURCE


def test_stablehlo_without_jaxlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax._src.lib", None)
    with pytest.raises(FrameworkMissing, match=r'pip install "glia\[jax\]"'):
        glia.compile(STABLEHLO + "\n return %x : tensor<2xf32> } }")
