"""When SBUF is full, buffers go to HBM and tiles shrink until the program fits; values stay."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import glia
from glia.compiler import run_pipeline
from glia.frontend.hlo import import_hlo
from glia.machine.passes.place import OnChipMemoryFull
from glia.options import CompileOptions
from glia.tile.passes.choose_layouts import evict
from support.corpus import BY_NAME, assert_close, hlo_bytes

OPTIONS = CompileOptions(auto_cast="none")


def test_giving_up_residents_and_tiles_ends_and_keeps_the_value() -> None:
    program = BY_NAME["attention"]
    laid_out = run_pipeline(import_hlo(hlo_bytes(program)), OPTIONS, stop_after="choose_layouts")
    steps = [laid_out]
    while (easier := evict(steps[-1], OPTIONS)) is not None:
        steps.append(easier)
    assert steps[0].layouts and not steps[-1].layouts
    assert steps[1].notes[-1].endswith("spilled to HBM to make room for working tiles")


def test_a_program_is_compiled_again_until_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    import glia.machine.passes.place as module

    program = BY_NAME["attention"]
    tries: list[int] = []
    place = module.place

    def refuse_twice(machine: object, options: object = None) -> object:
        tries.append(1)
        if len(tries) <= 2:
            raise OnChipMemoryFull(memory="SBUF", tile="t", bytes=1, capacity=0, held=0)
        return place(machine, options)

    monkeypatch.setattr(module, "place", refuse_twice)
    neff = glia.compile(hlo_bytes(program), verify=True)
    assert len(tries) == 3
    assert any("spilled to HBM" in note for note in neff.notes)
    assert_close(program, glia.load(neff)(*(np.asarray(a) for a in program.arguments)))


def test_rows_longer_than_sbuf_are_swept_in_pieces() -> None:
    x = np.random.default_rng(0).standard_normal((3, 70_001), np.float32)
    softmax = jax.jit(lambda x: jax.nn.softmax(x, -1))
    data = softmax.lower(x).compiler_ir("hlo").as_serialized_hlo_module_proto()
    (found,) = glia.load(glia.compile(data, verify=True))(x)
    np.testing.assert_allclose(found, np.asarray(softmax(x)), 1e-5, 1e-9)
