"""A bench for one instruction: random memories, the reference executor, and an oracle beside it.

The oracle picks elements one index at a time from a copy of the memory; it shares no code with the
executor's views.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from glia.base.affine import Affine
from glia.base.dtype import BF16, F8E8M0FNU, F16, F32, TF32, DType, from_numpy
from glia.isa.instructions.dma import DmaCopy
from glia.isa.kit import Instr
from glia.isa.numerics import widen
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Binding, Program
from glia.machine.legal import verify
from glia.sim.host.host_program import HostProgram
from glia.sim.policy import Policy
from glia.sim.run import run

Array = np.ndarray[Any, Any]
FLOATS = (F32, BF16, F16)
ULPS = 4.0  # of functions by polynomials, whose two sides may each be off by 2
OF_SUMS = 4e-6  # of the greatest value, where sums are made in another order
CHAINED = 0.02  # the same after many instructions, some of which round to bfloat16


class Bench:
    """Builds a program of instructions around random memory contents and runs it.

    Small patterns on chip start at one of the partitions `starts`. `is_on_host`: what runs must
    give the same as machine code of the host.
    """

    def __init__(
        self, seed: int, starts: tuple[int, ...] = (0, 32), is_on_host: bool = True
    ) -> None:
        self.starts, self.is_on_host = starts, is_on_host
        self.random = np.random.default_rng(seed)
        self.contents: dict[str, Array] = {}
        self.tiles: dict[str, Tile] = {}

    def pattern(
        self,
        shape: tuple[int, ...],
        dtype: DType = F32,
        memory: str = "SBUF",
        values: Array | None = None,
        plain: bool = False,
    ) -> Pattern:
        """A pattern with random strides, start and gaps, over a tile full of random values."""
        name = f"t{len(self.tiles)}"
        is_hbm = memory == "HBM"
        free = shape if is_hbm else shape[1:]
        dims, step = [], 1
        for count in reversed(free):
            step *= 1 if plain else int(self.random.integers(1, 3))
            dims.append((step, count))
            step *= count
        offset = 0 if plain else int(self.random.integers(0, 4))
        elements = step + offset
        may_shift = not is_hbm and shape[0] <= 32
        start = self.starts[self.random.integers(0, len(self.starts))] if may_shift else 0
        rows = 1 if is_hbm else 128
        dims = [*([] if is_hbm else [(1, shape[0])]), *reversed(dims)]
        tile = Tile(name, Memory(memory), dtype, rows, elements)
        self.tiles[name] = tile
        self.contents[name] = self.fill((rows, elements), dtype)
        result = Pattern(tile, dtype, tuple(dims), Affine.of(offset), Affine.of(start))
        if values is not None:
            put(self.contents[name], result, values.astype(dtype.numpy))
        return result

    def fill(self, shape: tuple[int, ...], dtype: DType) -> Array:
        if dtype.is_integer:
            info = np.iinfo(dtype.numpy)
            high = min(info.max, 2**31 - 1)
            return self.random.integers(info.min, high, shape, endpoint=True).astype(dtype.numpy)
        if dtype.packs is not None or dtype is F8E8M0FNU:
            codes = self.random.integers(0, 256, (*shape, dtype.bytes)).astype(np.uint8)
            return codes.view(dtype.numpy).reshape(shape)
        if dtype is TF32:
            return self.random.normal(0, 2, shape).astype(np.float32).view(TF32.numpy)
        return self.random.normal(0, 2, shape).astype(np.float32).astype(dtype.numpy)

    def run(
        self, instr: Instr | tuple[Instr, ...], policy: Policy | None = None, target: str = "trn3"
    ) -> dict[str, Array]:
        """Every tile's contents after the instruction, or several of them.

        The host executor must give the same.
        """
        program = self.program(instr, target)
        after = run(program, self.contents, policy=policy)
        if policy is None and self.is_on_host:
            assert_agree(HostProgram(program).run(self.contents), after)
        return after

    def program(self, instr: Instr | tuple[Instr, ...], target: str = "trn3") -> Program:
        """A program that loads every tile, runs the instructions, and stores every tile."""
        moves_in, moves_out, inputs, outputs, tiles = [], [], [], [], dict(self.tiles)
        for name, tile in self.tiles.items():
            away = Tile(f"{name}.hbm", Memory.HBM, tile.dtype, 1, tile.partitions * tile.elements)
            shape = (tile.partitions, tile.elements)
            if tile.memory is Memory.HBM:
                away = tile
            else:
                tiles[away.name] = away
                here = Pattern(tile, tile.dtype, ((1, shape[0]), (1, shape[1])))
                there = Pattern(away, tile.dtype, ((shape[1], shape[0]), (1, shape[1])))
                moves_in.append(DmaCopy(dst=here, src=there, queue="in"))
                moves_out.append(DmaCopy(dst=there, src=here, queue="out"))
            inputs.append(Binding(name, away, shape, tile.dtype))
            outputs.append(Binding(name, away, shape, tile.dtype))
        middle = instr if isinstance(instr, tuple) else (instr,)
        body = (*moves_in, *middle, *moves_out)
        program = Program("one", target, tiles, tuple(inputs), tuple(outputs), {}, body)
        verify(program)
        return program

    def check(self, instr: Instr, **expected: Array) -> None:
        """The named destinations hold what is expected; every other byte is as it was."""
        after = self.run(instr)
        oracle = {name: contents.copy() for name, contents in self.contents.items()}
        for field, values in expected.items():
            pattern = getattr(instr, field)
            put(oracle[pattern.tile.name], pattern, rounded(values, pattern.dtype))
        for name, contents in oracle.items():
            assert_same(after[name], contents)

    def value(self, pattern: Pattern) -> Array:
        return take(self.contents[pattern.tile.name], pattern)

    def results(self, instr: Instr | tuple[Instr, ...], *patterns: Pattern) -> list[Array]:
        """What the patterns hold after the instructions."""
        after = self.run(instr)
        return [take(after[pattern.tile.name], pattern) for pattern in patterns]


def indices(pattern: Pattern) -> list[tuple[int, int]]:
    """(partition, element) of every element of a pattern, in order."""
    found = []
    for index in np.ndindex(*pattern.shape):
        steps = [i * step for i, (step, _) in zip(index, pattern.dims, strict=True)]
        row = 0
        if pattern.tile.memory is not Memory.HBM:
            row = pattern.partition.constant + steps.pop(0)
        found.append((row, pattern.offset.constant + sum(steps)))
    return found


def take(contents: Array, pattern: Pattern) -> Array:
    return np.array([contents[i] for i in indices(pattern)], contents.dtype).reshape(pattern.shape)


def put(contents: Array, pattern: Pattern, values: Array) -> None:
    for index, value in zip(indices(pattern), values.reshape(-1), strict=True):
        contents[index] = value


def rounded(values: Array, dtype: DType) -> Array:
    """`values` in a dtype: floats to nearest even, to integers saturating."""
    if values.dtype == dtype.numpy:
        return values
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        nearest = [round(float(v)) for v in values.reshape(-1)]
        limited = [min(max(v, info.min), info.max) for v in nearest]
        return np.array(limited, dtype.numpy).reshape(values.shape)
    return values.astype(np.float32).astype(dtype.numpy)


def assert_same(actual: Array, expected: Array) -> None:
    if expected.dtype.kind in "iu":
        np.testing.assert_array_equal(actual, expected)
    elif expected.dtype.names:
        word = expected.dtype[0]
        np.testing.assert_array_equal(actual.view(word), expected.view(word))
    else:
        tolerance = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}.get(
            expected.dtype.name, 0.13
        )
        actual, expected = actual.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=2e-6)


def wide(array: Array) -> Array:
    return array.astype(np.float32)


SCALAR_MEANING = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "maximum": max,
    "minimum": min,
    "abs_max": lambda a, b: a if abs(a) > abs(b) else b,
    "abs_min": lambda a, b: a if abs(a) < abs(b) else b,
    "equal": lambda a, b: float(a == b),
    "not_equal": lambda a, b: float(a != b),
    "greater": lambda a, b: float(a > b),
    "greater_equal": lambda a, b: float(a >= b),
    "less": lambda a, b: float(a < b),
    "less_equal": lambda a, b: float(a <= b),
    "logical_and": lambda a, b: float(a != 0 and b != 0),
    "logical_or": lambda a, b: float(a != 0 or b != 0),
    "logical_xor": lambda a, b: float((a != 0) != (b != 0)),
    "divide": lambda a, b: a / b,
    "mod": lambda a, b: a - math.floor(a / b) * b,
    "fmod": math.fmod,
    "power": lambda a, b: abs(a) ** b,
    "bypass": lambda a, _: a,
    "abs": lambda a, _: abs(a),
    "square": lambda a, _: a * a,
    "relu": lambda a, _: max(a, 0.0),
    "rsqrt": lambda a, _: 1 / math.sqrt(a),
    "reciprocal": lambda a, _: 1 / a,
    "logical_not": lambda a, _: float(a == 0),
}


def elementwise(op: str, a: Array, b: Array) -> Array:
    a, b = np.broadcast_arrays(wide(a), wide(b))
    meaning = SCALAR_MEANING[op]
    values = [meaning(float(x), float(y)) for x, y in zip(a.flat, b.flat, strict=True)]
    return np.array(values, np.float64).astype(np.float32).reshape(a.shape)


def assert_agree(
    found: Mapping[str, Array], wanted: Mapping[str, Array], of_sums: float = OF_SUMS
) -> None:
    """Integers, predicates and NaN are the same; floats are within a few steps of their dtype.

    `of_sums` is what they may differ by besides, in parts of the greatest value.
    """
    assert found.keys() == wanted.keys()
    for name, goal in wanted.items():
        wrong = disagreements(found[name], goal, of_sums)
        assert not wrong.any(), _first_difference(name, found[name], goal, wrong)


def disagreements(found: Array, wanted: Array, of_sums: float) -> Array:
    """Where two arrays differ by more than the rounding of functions and sums."""
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    if wanted.dtype.kind == "c":
        return disagreements(_parts(found), _parts(wanted), of_sums)
    dtype = from_numpy(wanted.dtype)
    if dtype.packs is not None or not dtype.is_float:
        return np.asarray(found != wanted)
    with np.errstate(all="ignore"):
        value, goal = (widen(each).astype(np.float64) for each in (found, wanted))
        step = 2.0 ** -(_mantissa_bits(dtype.name))
        size = np.abs(goal[np.isfinite(goal)]).max(initial=0.0)
        allowed = np.abs(goal) * max(ULPS * 2.0**-23, step) + of_sums * size
        is_same = (value == goal) | (np.isnan(value) & np.isnan(goal))
        return np.asarray(~(is_same | (np.abs(value - goal) <= allowed)))


def _parts(array: Array) -> Array:
    return np.stack([array.real, array.imag], axis=-1)


def _mantissa_bits(name: str) -> int:
    return {"f32": 23, "tf32": 10, "f16": 10, "bf16": 7, "f64": 52}.get(name, 2)


def _first_difference(name: str, found: Array, wanted: Array, wrong: Array) -> str:
    at = tuple(map(int, np.argwhere(wrong)[0]))[: found.ndim]
    return f"{name}{at}: {found[at]} by the host, {wanted[at]} by the reference"
