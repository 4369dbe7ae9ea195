"""A core whose program is another's at other addresses gets that one, moved; no other does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.arch import get_target
from glia.base.dtype import U8
from glia.frontend.registry import read_module
from glia.machine.ir import Program as MachineProgram
from glia.machine.legal import program_violations
from glia.machine.relocation import relocated
from glia.machine.shared_places import separate_memories, shared_places, shared_tiles
from glia.machine.text import print_program
from glia.neff.package import Neff
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.pipeline import BEFORE_CORES
from glia.runtime.model import load
from glia.tile.cores.divide import divided
from glia.tile.cores.same_code import shifts_between
from glia.tile.cores.sharing import Sharing
from glia.tile.ir import Literal, Load, Nest, Program
from glia.tile.nest_rewriting import map_leaves, map_loads
from support.corpus import PROGRAMS, assert_close, hlo_bytes
from support.corpus import Program as Sample

TARGETS = ("trn2", "trn3")
UNLIKE = ("complex", "fft")  # complex numbers are pairs of tensors
SAMPLES = [p for p in PROGRAMS if not any(part in p.name for part in UNLIKE)]
FEWEST_ALIKE = 15  # of the samples, those whose halves of rows are the same code


def options(target: str) -> CompileOptions:
    return CompileOptions(target, auto_cast="none", optlevel=2, verify=True)


def halves(module: Any, target: str) -> tuple[Program, ...]:
    """The programs of two cores, of which each has half of the first axis of every nest."""
    whole = run_pipeline(read_module(module), options(target), stop_after=BEFORE_CORES)
    found = Sharing(whole, get_target(target).arch)
    found.chosen = [choices[0] for choices in found.choices]
    return divided(found)


def compiled(nests: Program, target: str) -> Any:
    return run_pipeline(nests, options(target), start_after=BEFORE_CORES)


def moved_program(made: MachineProgram, first: Program, second: Program) -> MachineProgram | None:
    """The compiled first program at the addresses of the second."""
    shifts, tiles = shifts_between(first, second), shared_tiles(made, first)
    assert shifts is not None
    return relocated(made, {tiles[n]: shift for n, shift in shifts.items()}, second.notes)


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("hqd,hkd->hqk", q, k).astype(jnp.float32) / 8
    seen = jnp.tril(jnp.ones(scores.shape[1:], bool))
    return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)).astype(q.dtype) @ v


def convolved(x: Any, w: Any) -> Any:
    return jax.nn.relu(jax.lax.conv(x, w, (1, 1), "SAME"))


def rotary(x: Any, cosine: Any, sine: Any) -> Any:
    left, right = x[..., :32], x[..., 32:]
    turned = (left * cosine - right * sine, right * cosine + left * sine)
    return jnp.concatenate(turned, axis=-1)


def adamw(weight: Any, mean: Any, square: Any, slope: Any) -> Any:
    mean = 0.9 * mean + 0.1 * slope
    square = 0.999 * square + 0.001 * slope * slope
    step = mean / (jnp.sqrt(square) + 1e-8) + 0.01 * weight
    return weight - 1e-3 * step, mean, square


def ones(*shapes: tuple[int, ...]) -> list[jax.Array]:
    return [jnp.ones(shape, jnp.bfloat16) for shape in shapes]


MODELS: dict[str, tuple[Callable[..., Any], list[jax.Array]]] = {
    "matmul": (lambda x, y: jnp.tanh(x @ y), ones((512, 512), (512, 256))),
    "softmax": (jax.nn.softmax, ones((512, 640))),
    "attention": (attention, ones(*[(4, 256, 64)] * 3)),
    "convolution": (convolved, ones((4, 64, 14, 14), (64, 64, 3, 3))),
    "rotary": (rotary, [*ones((1024, 8, 64)), *ones(*[(1024, 1, 32)] * 2)]),
    "adamw": (adamw, ones(*[(1024, 512)] * 4)),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_the_moved_program_is_the_one_that_compiling_gives(name: str, target: str) -> None:
    function, arguments = MODELS[name]
    first, second = halves(jax.jit(function).lower(*arguments), target)
    moved = moved_program(compiled(first, target), first, second)
    assert moved
    assert print_program(moved) == print_program(compiled(second, target))


def moved_pair(sample: Sample, target: str) -> tuple[MachineProgram, ...]:
    """The programs of two cores, one of them moved; none where it cannot be."""
    first, second = halves(hlo_bytes(sample), target)
    if shifts_between(first, second) is None:
        return ()
    made = compiled(first, target)
    moved = moved_program(made, first, second)
    if moved is None or any(program_violations(moved, get_target(target))):
        return ()
    return separate_memories((made, moved), shared_places(first)[1])


@pytest.mark.parametrize("target", TARGETS)
def test_moved_programs_give_what_jax_gives(target: str) -> None:
    pairs = {sample: moved_pair(sample, target) for sample in SAMPLES}
    alike = {sample: programs for sample, programs in pairs.items() if programs}
    assert len(alike) >= FEWEST_ALIKE
    for sample, programs in alike.items():
        arrays = [np.asarray(each) for each in sample.arguments]
        assert_close(sample, list(load(Neff(programs), device="reference")(*arrays)))


def with_nest(program: Program, change: Callable[[Nest], Nest]) -> Program:
    """A program with its last nest changed."""
    *rest, last = program.body
    assert isinstance(last, Nest)
    return replace(program, body=(*rest, change(last)))


def further(load: Load) -> Load:
    """A load that is turned, by a row."""
    return replace(load, index=(load.index[0] + bool(load.index[1].constant), load.index[1]))


def doubled(load: Load) -> Load:
    return replace(load, index=(load.index[0] + load.index[0], *load.index[1:]))


def added_up(nest: Nest) -> Nest:
    return replace(nest, target=replace(nest.target, combine="add"))


def with_other_zero(nest: Nest) -> Nest:
    def negated(leaf: Any) -> Any:
        return replace(leaf, value=-leaf.value) if isinstance(leaf, Literal) else leaf

    return replace(nest, body=map_leaves(nest.body, negated))


def sum_of_two(x: jax.Array, y: jax.Array) -> jax.Array:
    """A nest that reads one buffer twice, and a literal."""
    return jnp.maximum(x + y[0], jnp.float32(0.0)) + x[:, ::-1]


CHANGES: dict[str, Callable[[Nest], Nest]] = {
    "one load lies further on": lambda nest: map_loads(nest, further),
    "another step": lambda nest: map_loads(nest, doubled),
    "another way to write": added_up,
    "a zero of the other sign": with_other_zero,
    "another axis": lambda nest: replace(nest, axes=nest.axes[::-1]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_differs_in_anything_but_addresses_is_compiled(name: str) -> None:
    module = jax.jit(sum_of_two).lower(jnp.ones((8, 16)), jnp.ones((8, 16)))
    first, second = halves(module, "trn2")
    assert shifts_between(first, second) == {"input0": 64, "output0": 64}
    assert shifts_between(first, with_nest(second, CHANGES[name])) is None


def test_other_constants_are_compiled() -> None:
    table = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)
    module = jax.jit(lambda x: x @ jnp.asarray(table[:, :1]) + x[:, :1]).lower(jnp.ones((64, 8)))
    first, second = halves(module, "trn2")
    assert shifts_between(first, second)
    (name,) = first.constants
    copy = {name: first.constants[name].copy()}
    assert shifts_between(first, replace(second, constants=copy))
    assert shifts_between(first, replace(second, constants={name: -copy[name]})) is None


def test_a_distance_within_an_element_moves_nothing() -> None:
    first, _ = halves(jax.jit(lambda x: x + 1).lower(jnp.ones((8, 16))), "trn2")
    made = compiled(first, "trn2")
    tile = made.inputs[0].tile
    as_bytes = replace(tile, dtype=U8, elements=tile.bytes)
    in_bytes = replace(made, tiles={**made.tiles, tile.name: as_bytes})
    assert relocated(in_bytes, {tile.name: 2}, ()) is None
    assert relocated(in_bytes, {tile.name: 4}, ()) is not None


def test_a_dump_has_the_program_of_both_cores(tmp_path: Path) -> None:
    module = jax.jit(jax.nn.softmax).lower(jnp.ones((2048, 2048)))
    neff = glia.compile(module, target="trn2", logical_nc_config=2, dump=str(tmp_path))
    assert len(neff.programs) == 2
    (moved,) = tmp_path.glob("*-relocate.core1.machine.txt")
    (first,) = tmp_path.glob("*-insert_semaphores.core0.machine.txt")
    assert len(moved.read_text().splitlines()) == len(first.read_text().splitlines())


def test_a_core_whose_addresses_leave_a_tensor_is_compiled() -> None:
    arrays = [np.arange(2048 * 2048, dtype=np.float32).reshape(2048, 2048) % 7]
    module = jax.jit(jax.nn.softmax).lower(*arrays)
    wanted = glia.compile(module, target="trn2", logical_nc_config=2)
    assert len(wanted.programs) == 2
    with mock.patch("glia.core_programs.shifts_between", lambda *_: {"input0": 2048 * 2048}):
        found = glia.compile(module, target="trn2", logical_nc_config=2)
    assert list(map(print_program, found.programs)) == list(map(print_program, wanted.programs))
