"""Drawn sequences of instructions over drawn views give what NumPy gives, in both ways to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from glia import nki
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.run.trace import trace
from glia.nki.tensors.nki_tensor import NkiTensor
from support.examples import with_examples
from support.nki_ways import stored

Array = np.ndarray[Any, Any]
DTYPES = ("float32", "bfloat16", "int32", "int16", "uint8")
TARGETS = ("trn1", "trn2", "trn3")
OPERATORS: dict[str, Callable[..., Array]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum,
    "minimum": np.minimum, "less": np.less, "equal": np.equal,
}  # fmt: skip
FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "copy": np.positive, "square": np.square, "abs": np.abs, "sign": np.sign,
    "relu": lambda x: np.maximum(x, 0),
}  # fmt: skip


# --- views: the same of a tensor and of an array -------------------------------------------------


@dataclass(frozen=True)
class View:
    """A view by the name of its method, as NkiTensor has it and as NumPy does."""

    method: str
    arguments: tuple[Any, ...]

    def of_tensor(self, tensor: NkiTensor) -> NkiTensor:
        view: NkiTensor = getattr(tensor, self.method)(*self.arguments)
        return view

    def of_array(self, array: Array) -> Array:
        return OF_NUMPY[self.method](array, *self.arguments)


def _slice(array: Array, dim: int, start: int, end: int, step: int) -> Array:
    return array[(*[slice(None)] * dim, slice(start, end, step))]


def _reshape_dim(array: Array, dim: int, shape: tuple[int, ...]) -> Array:
    return array.reshape(array.shape[:dim] + shape + array.shape[dim + 1 :])


def _flatten_dims(array: Array, first: int, last: int) -> Array:
    return array.reshape((*array.shape[:first], -1, *array.shape[last + 1 :]))


OF_NUMPY: dict[str, Callable[..., Array]] = {
    "slice": _slice,
    "select": lambda array, dim, index: array[(*[slice(None)] * dim, index)],
    "permute": lambda array, dims: array.transpose(dims),
    "expand_dim": np.expand_dims,
    "reshape_dim": _reshape_dim,
    "flatten_dims": _flatten_dims,
}


def views(rng: Random, array: Array) -> tuple[View, ...]:
    """Views, each of the one before, whose elements lie in the array."""
    chain: list[View] = []
    for method in rng.choices(sorted(OF_NUMPY), k=rng.randint(0, 4)):
        view = _view(rng, method, array)
        if view is None:
            continue
        seen = view.of_array(array)
        if np.shares_memory(seen, array) and seen.ndim <= 4:
            chain.append(view)
            array = seen
    return tuple(chain)


def _view(rng: Random, method: str, array: Array) -> View | None:
    rank = array.ndim
    dim = rng.randint(1, rank - 1)
    extent = array.shape[dim]
    start = rng.randint(0, extent - 1)
    if method == "slice":
        end = rng.randint(start + 1, extent)
        return View(method, (dim, start, end, rng.randint(1, 2)))
    if method == "select":
        return View(method, (dim, start)) if rank > 2 else None
    if method == "permute":
        return View(method, ((0, *rng.sample(range(1, rank), rank - 1)),))
    if method == "expand_dim":
        return View(method, (rng.randint(1, rank),))
    if method == "reshape_dim":
        parts = [n for n in range(1, extent + 1) if extent % n == 0]
        outer = rng.choice(parts)
        return View(method, (dim, (outer, extent // outer)))
    return View(method, (dim, rank - 1)) if dim < rank - 1 and _is_dense(array, dim) else None


def _is_dense(array: Array, dim: int) -> bool:
    """Whether the dimensions from `dim` on follow each other in memory."""
    return array[0].size == 1 or array[(0,) * dim].flags.c_contiguous


# --- instructions ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operand:
    """A view of one of the tiles."""

    tile: int
    chain: tuple[View, ...]

    def of_tensors(self, tiles: list[NkiTensor]) -> NkiTensor:
        tensor = tiles[self.tile]
        for view in self.chain:
            tensor = view.of_tensor(tensor)
        return tensor

    def of_arrays(self, arrays: list[Array]) -> Array:
        array = arrays[self.tile]
        for view in self.chain:
            array = view.of_array(array)
        return array


@dataclass(frozen=True)
class Step:
    """An instruction of some kind with its operands, operators and numbers."""

    kind: str
    operands: tuple[Operand, ...]  # the first is written
    names: tuple[str, str]
    numbers: tuple[float, float]
    is_reversed: bool

    def issue(self, tiles: list[NkiTensor]) -> None:
        dst, x, y = (each.of_tensors(tiles) for each in self.operands)
        first, second = (getattr(nl, name) for name in self.names)
        one, other = self.numbers
        if self.kind == "move":
            nisa.tensor_copy(dst, x, engine=nisa.engine.vector)
        elif self.kind == "tensors":
            nisa.tensor_tensor(dst, x, y, first, engine=nisa.engine.vector)
        elif self.kind == "scalars":
            nisa.tensor_scalar(dst, x, first, one, self.is_reversed, second, other)
        elif self.kind == "both":
            nisa.scalar_tensor_tensor(dst, x, first, one, second, y, self.is_reversed)
        else:
            nisa.activation(dst, getattr(nl, self.kind), x, scale=one)

    def compute(self, arrays: list[Array]) -> None:
        dst, *sources = (each.of_arrays(arrays) for each in self.operands)
        if self.kind == "move" and sources[0].dtype == dst.dtype:
            result = sources[0].copy()
        else:
            wide = [source.astype(np.float32).reshape(len(source), -1) for source in sources]
            result = cast(self._result(*wide).astype(np.float32), dst.dtype)
        dst[...] = result.reshape(dst.shape)

    def _result(self, x: Array, y: Array) -> Array:
        first, second = (OPERATORS[name] for name in self.names)
        one, other = (np.float32(number) for number in self.numbers)
        if self.kind == "move":
            return x
        if self.kind == "tensors":
            return first(x, y)
        if self.kind in ("scalars", "both"):
            inner = first(one, x) if self.is_reversed else first(x, one)
            return second(inner.astype(np.float32), other if self.kind == "scalars" else y)
        return FUNCTIONS[self.kind](x * one)


def cast(x: Array, dtype: np.dtype[Any]) -> Array:
    """Float32 numbers in another dtype: the nearest, the last before none is there."""
    if dtype.kind not in "iu":
        return x.astype(dtype)
    info = np.iinfo(dtype)
    return np.clip(np.rint(x.astype(np.float64)), info.min, info.max).astype(dtype)


def steps(rng: Random, arrays: list[Array]) -> Step | None:
    """A step between views of as many elements; None where no two are drawn."""
    drawn = [_operand(rng, arrays) for _ in range(6)]
    sizes = [each.of_arrays(arrays).size for each in drawn]
    alike = [each for each, size in zip(drawn, sizes, strict=True) if sizes.count(size) > 1]
    if not alike:
        return None
    size = rng.choice(alike).of_arrays(arrays).size
    same = [each for each, n in zip(drawn, sizes, strict=True) if n == size]
    kinds = ["move", "tensors", "scalars", "both", *FUNCTIONS]
    return Step(
        rng.choice(kinds),
        tuple(rng.choice(same) for _ in range(3)),
        (rng.choice(sorted(OPERATORS)), rng.choice(sorted(OPERATORS))),
        (rng.choice([0.5, 1.0, -2.0, 3.25]), rng.choice([-1.0, 0.0, 4.0])),
        rng.random() < 0.5,
    )


def _operand(rng: Random, arrays: list[Array]) -> Operand:
    tile = rng.randrange(len(arrays))
    return Operand(tile, views(rng, arrays[tile]))


def contents(rng: Random) -> list[Array]:
    """Three arrays of one number of rows."""
    rows = rng.choice([1, 5, 32, 64, 128])
    found = []
    for number in range(3):
        shape = [rng.randint(1, 6) for _ in range(rng.randint(1, 3))]
        dtype = rng.choice(DTYPES)
        random = np.random.default_rng(number)
        array = random.integers(0, 9, (rows, *shape))
        found.append(array.astype(getattr(ml_dtypes, dtype, dtype)))
    return found


@given(st.integers(0, 2**32))
@with_examples(120)
def test_instructions_over_views_give_what_numpy_gives(seed: int) -> None:
    rng = Random(seed)
    arrays = contents(rng)
    given_arrays = [array.copy() for array in arrays]
    is_in_psum = [rng.random() < 0.3 and array.dtype == np.float32 for array in arrays]
    drawn = [steps(rng, arrays) for _ in range(rng.randint(1, 4))]
    plan = [step for step in drawn if step is not None and not _reads_psum_twice(step, is_in_psum)]

    def kernel(x: NkiTensor, y: NkiTensor, z: NkiTensor) -> tuple[NkiTensor, ...]:
        tiles = [_placed(nl.load(each), p) for each, p in zip((x, y, z), is_in_psum, strict=True)]
        for step in plan:
            step.issue(tiles)
        return tuple(stored(tile) for tile in tiles)

    for step in plan:
        step.compute(arrays)
    target = rng.choice(TARGETS)
    simulated = nki.simulate(kernel, target=target)(*given_arrays)
    program = trace(kernel, *given_arrays, target=target)
    compiled = nki.simulate(program)(*given_arrays)
    for wanted, stepped, run in zip(arrays, simulated, compiled, strict=True):
        np.testing.assert_array_equal(stepped.astype(np.float64), wanted.astype(np.float64))
        np.testing.assert_array_equal(run.astype(np.float64), wanted.astype(np.float64))


def _placed(tile: NkiTensor, is_in_psum: bool) -> NkiTensor:
    if not is_in_psum:
        return tile
    moved = nl.ndarray(tile.shape, tile.dtype, nl.psum)
    nisa.tensor_copy(moved, tile)
    return moved


def _reads_psum_twice(step: Step, is_in_psum: list[bool]) -> bool:
    """What instructions with two tensors to read cannot do."""
    return step.kind in ("tensors", "both") and all(is_in_psum[o.tile] for o in step.operands[1:])
