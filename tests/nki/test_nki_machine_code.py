"""Long simulations run instructions as machine code: the same values, errors, prints and lines."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import glia
import glia.nki as nki
import glia.nki.isa as nisa
import glia.nki.language as nl
from glia.base.errors import CompileError
from glia.kernels.flash_attention import flash_attention
from glia.kernels.layernorm import layernorm
from glia.kernels.mamba import mamba
from glia.kernels.rope import rope
from glia.nki.session import interpreter
from glia.runtime.errors import UnknownDevice
from glia.sim.host.classes import single_steps
from support.kernel_checks import assert_close, normal

HALF = ml_dtypes.bfloat16
KERNELS: dict[str, tuple[Any, list[np.ndarray]]] = {
    "layernorm": (layernorm, [normal(200, 96), normal(96), normal(96)]),
    "rope": (rope, [normal(130, 2, 32), normal(130, 16), normal(130, 16)]),
    "mamba": (
        mamba,
        [
            normal(1, 128, 40), abs(normal(1, 128, 40)), -abs(normal(128, 4)), normal(1, 4, 40),
            normal(1, 4, 40),
        ],
    ),
    "flash_attention": (
        flash_attention,
        [normal(1, 2, 64, 300, dtype=HALF), normal(1, 1, 64, 300, dtype=HALF),
         normal(1, 1, 300, 64, dtype=HALF)],
    ),
}  # fmt: skip


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Machine code from the first instruction on; whether each was executed as such."""
    monkeypatch.setattr(interpreter, "WORK_BY_MEANING", 0)
    monkeypatch.setattr(single_steps, "LEAST_WORK", 0)
    ran: list[bool] = []
    execute = single_steps.SingleSteps.execute

    def counted(*given: Any) -> bool:
        ran.append(execute(*given))
        return ran[-1]

    monkeypatch.setattr(single_steps.SingleSteps, "execute", counted)
    return ran


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_give_what_their_meanings_give(
    name: str, target: str, native: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, arrays = KERNELS[name]
    found = glia.simulate(kernel, target=target)(*arrays)
    assert sum(native) > 0.9 * len(native) > 0
    count = len(native)
    monkeypatch.setattr(interpreter, "WORK_BY_MEANING", 1 << 62)
    wanted = glia.simulate(kernel, target=target)(*arrays)
    assert len(native) == count
    monkeypatch.setattr(interpreter, "WORK_BY_MEANING", 0)
    again = glia.simulate(kernel, target=target, device="reference")(*arrays)
    assert len(native) == count
    np.testing.assert_array_equal(again.view(np.uint8), wanted.view(np.uint8))
    tolerance = 1e-5 if wanted.dtype == np.float32 else 0.01
    assert_close(found, wanted.astype(np.float64), tolerance)


@nki.jit
def _printed(x):
    """Prints what an instruction has written, then reads beyond the end of a table."""
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.activation(dst=tile, op=nl.square, data=tile)
    print(tile[2, 3].to_numpy() if hasattr(tile, "to_numpy") else np.asarray(tile)[2, 3])
    index = nl.ndarray((128, 1), nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=index, value=200)
    rows = nl.ndarray((128, 8), x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=x.ap(pattern=[[8, 128], [1, 8]], vector_offset=index))
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=rows)
    return out


def test_prints_and_errors_are_as_before(
    native: list[bool], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An index outside of its table is refused with the line of its instruction."""
    x = np.arange(1024, dtype=np.float32).reshape(128, 8)
    said = []
    for work in (0, 1 << 62):
        monkeypatch.setattr(interpreter, "WORK_BY_MEANING", work)
        with pytest.raises(CompileError) as caught:
            glia.simulate(_printed, target="trn2")(x)
        said.append((capsys.readouterr().out, str(caught.value)))
    assert said[0] == said[1]
    assert "361.0" in said[0][0]
    assert any(native)


def test_the_reference_is_asked_for_by_name(
    native: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, arrays = KERNELS["layernorm"]
    monkeypatch.setenv("GLIA_DEVICE", "reference")
    glia.simulate(kernel)(*arrays)
    assert not native
    monkeypatch.delenv("GLIA_DEVICE")
    glia.simulate(kernel)(*arrays)
    assert native
    with pytest.raises(UnknownDevice, match="devices are host, reference"):
        glia.simulate(kernel, device="cuda")


def test_two_cores_take_turns_as_before(native: list[bool]) -> None:
    """A sum of each core's half, exchanged through shared memory."""

    @nki.jit
    def halves(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        core = nl.program_id(0)
        tile = nl.ndarray((128, 4), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[:, nl.ds(core * 4, 4)])
        nisa.activation(dst=tile, op=nl.square, data=tile)
        nisa.dma_copy(dst=out[:, nl.ds(core * 4, 4)], src=tile)
        return out

    x = np.arange(1024, dtype=np.float32).reshape(128, 8)
    np.testing.assert_array_equal(glia.simulate(halves[2], target="trn2")(x), x * x)
    assert sum(native) == len(native) == 6
