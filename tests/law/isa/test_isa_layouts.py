"""Where the elements of operands lie in their tiles makes no difference to what comes out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from glia.base.affine import Affine
from glia.base.dtype import F8E8M0FNU, DType
from glia.isa import INSTRUCTIONS
from glia.isa.examples import examples
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Program
from glia.machine.legal import verify
from glia.sim.run import Executor

Array = np.ndarray[Any, Any]
MODULES = ("dma", "dma_transpose", "gpsimd", "gpsimd_gather", "microscaling", "tensor")
EXAMPLES = {
    name: instr
    for name, instr in examples().items()
    if INSTRUCTIONS[name].__module__.removeprefix("glia.isa.instructions.") in MODULES
}


def values(random: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    """Values that every operand can take, and whose sums are exact; integers may be indices."""
    if dtype is F8E8M0FNU:
        return random.integers(120, 130, shape).astype(np.uint8).view(dtype.numpy)
    if dtype.is_integer:
        return random.integers(0, 9, shape).astype(dtype.numpy)
    if dtype.packs is not None:
        codes = random.integers(0, 64, (*shape, dtype.bytes)).astype(np.uint8)
        return codes.view(dtype.numpy).reshape(shape)
    return (random.integers(-40, 41, shape) / 8).astype(np.float32).astype(dtype.numpy)


def spread(pattern: Pattern, random: np.random.Generator) -> Pattern:
    """The pattern with gaps between its elements, in a tile large enough."""
    is_hbm = pattern.memory is Memory.HBM
    counts = pattern.shape if is_hbm else pattern.shape[1:]
    dims: list[tuple[int, int]] = []
    step = int(random.integers(1, 4))
    for count in reversed(counts):
        dims.insert(0, (step, count))
        step = step * count + int(random.integers(0, 3))
    offset = int(random.integers(0, 5))
    tile = pattern.tile
    rows = 1 if is_hbm else tile.partitions
    tile = Tile(tile.name, tile.memory, tile.dtype, rows, step + offset)
    first = () if is_hbm else pattern.dims[:1]
    return replace(pattern, tile=tile, dims=(*first, *dims), offset=Affine.of(offset))


def laid_out(instr: Instr, change: Any) -> tuple[Instr, dict[Pattern, Pattern]]:
    """The instruction with every pattern changed, equal ones alike."""
    changed: dict[Pattern, Pattern] = {}
    fields: dict[str, Any] = {}
    for name, declared in instr.operand_declarations.items():
        value = getattr(instr, name)
        each = value if declared.is_several else (value,)
        for pattern in each:
            if pattern not in changed:
                numbered = replace(pattern.tile, name=f"t{len(changed)}")
                changed[pattern] = change(replace(pattern, tile=numbered))
        fields[name] = tuple(changed[p] for p in each) if declared.is_several else changed[value]
    return replace(instr, **fields), changed


def run_on(instr: Instr, contents: dict[Pattern, Array]) -> dict[str, Array]:
    """What each pattern holds after the instruction ran on these contents."""
    tiles = {pattern.tile.name: pattern.tile for pattern in contents}
    target = "trn2" if 3 in instr.generations else "trn3"
    program = Program("one", target, tiles, (), (), {}, (instr,))
    verify(program)
    executor = Executor(program)
    for pattern, given in contents.items():
        executor.memories.view(pattern, {})[...] = given
    executor.execute()
    return {p.tile.name: np.array(executor.memories.view(p, {})) for p in contents}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("seed", range(3))
def test_strides_and_gaps_change_nothing(name: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    close, patterns = laid_out(EXAMPLES[name], lambda pattern: pattern)
    apart, spread_out = laid_out(EXAMPLES[name], lambda pattern: spread(pattern, random))
    given = {p: values(random, p.shape, p.dtype) for p in patterns}
    first = run_on(close, {patterns[p]: each for p, each in given.items()})
    second = run_on(apart, {spread_out[p]: each for p, each in given.items()})
    assert first.keys() == second.keys()
    for tile, found in first.items():
        assert found.tobytes() == second[tile].tobytes()
