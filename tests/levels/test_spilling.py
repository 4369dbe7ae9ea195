"""Where SBUF or PSUM is full, loops stop to overlap, then buffers go to HBM; values stay."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import glia
from glia.arch.instances import get_target
from glia.frontend.hlo import import_hlo
from glia.isa.instructions.dma import DmaCopy
from glia.isa.operand import Memory, usable_bytes_per_partition
from glia.machine.ir import Program
from glia.machine.passes.on_chip_space import OnChipMemoryFull
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.tile.passes.choose_layouts import evict
from support.corpus import BY_NAME, assert_close, hlo_bytes

OPTIONS = CompileOptions(auto_cast="none")


def _full(*live: str) -> OnChipMemoryFull:
    """SBUF that is full of these tiles."""
    return OnChipMemoryFull(
        memory="SBUF", tile="t", bytes=1, capacity=0, held=0, largest="", live=frozenset(live)
    )


def test_evicting_what_is_live_ends_without_residents() -> None:
    program = BY_NAME["attention"]
    laid_out = run_pipeline(import_hlo(hlo_bytes(program)), OPTIONS, stop_after="choose_layouts")
    error = _full(*(f"{name}.0'1" for name in laid_out.layouts))
    steps = [laid_out]
    while (easier := evict(steps[-1], OPTIONS, error, len(steps))) is not None:
        steps.append(easier)
    counts = [len(step.layouts) for step in steps]
    assert counts[0] and not counts[-1] and counts == sorted(set(counts), reverse=True)
    assert steps[1].notes[-1].endswith("spilled to HBM to make room for working tiles")


def test_a_resident_buffer_that_is_not_live_where_memory_is_full_stays() -> None:
    program = BY_NAME["attention"]
    laid_out = run_pipeline(import_hlo(hlo_bytes(program)), OPTIONS, stop_after="choose_layouts")
    first, *rest = laid_out.layouts
    easier = evict(laid_out, OPTIONS, _full(f"{first}.0"), 1)
    assert easier is not None and set(easier.layouts) == set(rest)
    assert evict(laid_out, OPTIONS, _full("elsewhere.0"), 1) is None
    assert evict(laid_out, OPTIONS, ValueError(), 1) is None


@pytest.fixture
def one_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the level that is asked for is compiled."""
    monkeypatch.setattr(
        "glia.core_programs.fastest_level",
        lambda options, build, processes: (build(options), options.optlevel, ()),
    )


@pytest.mark.usefixtures("one_level")
def test_what_overflows_is_fixed_then_evicted_until_it_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import glia.machine.passes.place as module

    program = BY_NAME["attention"]
    tries: list[Program] = []
    place = module.place

    def refuse_often(machine: Program, options: object = None) -> object:
        tries.append(machine)
        if len(tries) <= 4:
            tiles = (t.name for t in machine.tiles.values() if t.memory is Memory.SBUF)
            raise _full(*tiles)
        return place(machine, options)

    monkeypatch.setattr(module, "place", refuse_often)
    neff = glia.compile(hlo_bytes(program), verify=True)
    assert len(tries) == 5
    notes = [note for machine in tries for note in machine.notes]
    assert any("do not overlap, to fit on chip" in note for note in notes)
    assert any("spilled to HBM" in note for note in neff.notes)
    assert_close(program, glia.load(neff)(*(np.asarray(a) for a in program.arguments)))


def test_a_memory_that_is_never_free_is_an_error_after_a_few_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import glia.machine.passes.place as module

    tries: list[int] = []

    def refuse(machine: Program, options: object = None) -> object:
        tries.append(1)
        tiles = (t.name for t in machine.tiles.values() if t.memory is Memory.SBUF)
        raise _full(*tiles)

    monkeypatch.setattr(module, "place", refuse)
    with pytest.raises(OnChipMemoryFull):
        glia.compile(hlo_bytes(BY_NAME["attention"]))
    assert len(tries) <= 40


@pytest.mark.usefixtures("one_level")
def test_groups_whose_blocks_do_not_fit_run_nest_by_nest(monkeypatch: pytest.MonkeyPatch) -> None:
    import glia.machine.passes.place as module

    place = module.place

    def refuse_groups(machine: Program, options: object = None) -> object:
        if not any("one by one, to fit on chip" in note for note in machine.notes):
            raise _full(*(t.name for t in machine.tiles.values() if t.memory is Memory.SBUF))
        return place(machine, options)

    monkeypatch.setattr(module, "place", refuse_groups)
    x = np.random.default_rng(0).standard_normal((512, 1024)).astype(np.float32)
    neff = glia.compile(jax.jit(jax.nn.softmax).lower(x), verify=True)
    (found,) = glia.load(neff)(x)
    np.testing.assert_allclose(found, jax.nn.softmax(x), rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("one_level")
def test_iterations_that_do_not_fit_side_by_side_run_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop whose copies of a product are said to fill PSUM is fixed; the others overlap."""
    import glia.machine.passes.place as module

    place, refused = module.place, list[str]()

    def refuse_copies(machine: Program, options: object = None) -> object:
        copies = {
            t.name for t in machine.tiles.values() if t.memory is Memory.PSUM and "'" in t.name
        }
        if copies and not refused:
            refused.extend(sorted(copies)[:1])
        if refused and refused[0] in machine.tiles:
            raise _full(*refused)
        return place(machine, options)

    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)

    monkeypatch.setattr(module, "place", refuse_copies)
    x = np.random.default_rng(0).standard_normal((2, 513, 2, 16)).astype(np.float32)
    neff = glia.compile(jax.jit(attend).lower(x, x, x), verify=True)
    assert refused and refused[0] not in neff.program.tiles
    note = next(note for note in neff.notes if note.endswith("do not overlap, to fit on chip"))
    fixed, total = int(note.split()[0]), int(note.split()[2])
    assert 0 < fixed < total
    np.testing.assert_allclose(glia.load(neff)(x, x, x)[0], attend(x, x, x), 0.02, 0.02)


def test_a_strided_convolution_transposes_its_input_in_pieces() -> None:
    x = np.random.default_rng(0).standard_normal((8, 14, 14, 1024)).astype(ml_dtypes.bfloat16)
    w = np.random.default_rng(1).standard_normal((1, 1, 1024, 128)).astype(ml_dtypes.bfloat16)

    def convolve(x: Any, w: Any) -> Any:
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, w, (2, 2), "VALID", dimension_numbers=layout)

    data = jax.jit(convolve).lower(x, w).compiler_ir("hlo").as_serialized_hlo_module_proto()
    (found,) = glia.load(glia.compile(data, verify=True))(x, w)
    wanted = x[:, ::2, ::2].astype(np.float32) @ w[0, 0].astype(np.float32)
    np.testing.assert_allclose(found.astype(np.float32), wanted, 0.02, 0.5)


def test_rows_longer_than_sbuf_are_swept_in_pieces() -> None:
    x = np.random.default_rng(0).standard_normal((3, 70_001), np.float32)
    softmax = jax.jit(lambda x: jax.nn.softmax(x, -1))
    data = softmax.lower(x).compiler_ir("hlo").as_serialized_hlo_module_proto()
    (found,) = glia.load(glia.compile(data, verify=True))(x)
    np.testing.assert_allclose(found, np.asarray(softmax(x)), 1e-5, 1e-9)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_products_whose_terms_sbuf_does_not_hold_are_added_up_in_parts(target: str) -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((64, 70_000), np.float32)
    w = generator.standard_normal((70_000, 256), np.float32)
    neff = glia.compile(jax.jit(lambda x, w: jax.nn.relu(x @ w)).lower(x, w), target=target)
    arch = get_target(target).arch
    assert w.nbytes > 128 * usable_bytes_per_partition(Memory.SBUF, arch)
    loads = [each for each in neff.program.instructions() if isinstance(each, DmaCopy)]
    parts = [p.tile for each in loads for p in each.written_patterns() if p.memory is Memory.SBUF]
    assert parts and all(each.bytes < w.nbytes // 4 for each in parts)
    wanted = np.maximum(x.astype(np.float64) @ w, 0)
    (found,) = glia.load(neff)(x, w)
    assert np.linalg.norm(found - wanted) <= 1e-5 * np.linalg.norm(wanted)
