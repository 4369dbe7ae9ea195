"""How a random program grows: draws, operands, and the loop that adds operations.

Each step draws a family of operations, which takes operands from what exists and adds its result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from glia.base.dtype import (
    BF16,
    C64,
    DTYPES,
    F16,
    F32,
    PRED,
    S4,
    S8,
    S32,
    S64,
    U4,
    U8,
    U32,
    U64,
    DType,
)
from glia.graph import ops
from glia.graph.ir import Graph, Node, Parameter, TensorType

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

MOST_ELEMENTS = 24_000

_EXTENTS = (1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 130, 160,
            255, 256, 257, 384, 511, 512, 513, 640, 1024, 1025, 2049)  # fmt: skip
_DTYPES = (F32,) * 9 + (BF16,) * 4 + (F16,) * 2 + (S32,) * 4 + (
    S64, S64, U64, U32, S8, U8, U8, PRED, PRED, DTYPES["s16"], DTYPES["u16"], C64, S4, U4,
    DTYPES["f8e4m3fn"], DTYPES["f8e5m2"],
)  # fmt: skip
_SPECIAL = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e30, -1e-30, 65504.0)


def draw_array(random: np.random.Generator, kind: Any, has_specials: bool) -> Array:
    """Normal floats, with or without special values; integers small, or of all magnitudes."""
    assert isinstance(kind, TensorType)
    dtype, shape = kind.dtype, kind.shape
    if dtype is PRED:
        return np.asarray(random.random(shape) < 0.5)
    if dtype.is_integer:
        return _integers(random, dtype, shape)
    values = np.asarray(random.standard_normal(shape))
    if has_specials:
        chosen = random.choice(_SPECIAL, shape)
        values = np.where(random.random(shape) < 0.05, chosen, values)
    if dtype.is_complex:
        values = values + 1j * random.standard_normal(shape)
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(dtype.numpy)


def _integers(random: np.random.Generator, dtype: DType, shape: Shape) -> Array:
    is_signed = dtype.kind.value == "signed"
    bits = min(dtype.bits, 63) - is_signed
    reach = int(random.choice((3, 3, 5, 7, bits)))
    high = 1 << min(reach, bits)
    drawn = random.integers(-high if is_signed else 0, high, shape)
    return np.asarray(drawn).astype(dtype.numpy)


Family = Callable[["Grower"], Node]


class Misfit(Exception):
    """What exists does not suit the family that was drawn; another one is."""


class Grower:
    """A program under construction: its parameters, and every tensor that can be an operand."""

    def __init__(self, random: np.random.Generator, families: Sequence[Family]) -> None:
        self.random = random
        self.families = families
        self.parameters: list[Parameter] = []
        self.pool: list[Node] = []
        self.arrays: dict[int, Array] = {}  # of the parameters that must hold certain values
        self.parameter(self.dtype(), self.shape())

    # --- draws ---

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def below(self, high: int) -> int:
        """An integer from 0 below `high`."""
        return int(self.random.integers(0, high))

    def one_of(self, values: Sequence[Any]) -> Any:
        if not values:
            raise Misfit
        return values[self.below(len(values))]

    def dtype(self) -> DType:
        found = self.one_of(_DTYPES)
        assert isinstance(found, DType)
        return found

    def extent(self, most: int = MOST_ELEMENTS) -> int:
        return int(self.one_of([extent for extent in _EXTENTS if extent <= max(1, most)]))

    def shape(self, rank: int | None = None, most: int = MOST_ELEMENTS) -> Shape:
        rank = self.one_of((0, 1, 1, 2, 2, 2, 2, 3, 3, 4, 5)) if rank is None else rank
        extents: list[int] = []
        for _ in range(rank):
            extents.append(self.extent(most // math.prod(extents)))
        self.random.shuffle(extents)
        return tuple(extents)

    def permutation(self, rank: int) -> Shape:
        return tuple(int(d) for d in self.random.permutation(rank))

    def dimensions(self, rank: int, least: int = 0) -> Shape:
        """Some dimensions of a rank, ascending."""
        if rank < least:
            raise Misfit
        count = int(self.random.integers(least, rank + 1))
        return tuple(sorted(self.permutation(rank)[:count]))

    # --- operands ---

    def parameter(self, dtype: DType, shape: Shape) -> Parameter:
        index = len(self.parameters)
        made = Parameter(index, TensorType(dtype, shape), f"x{index}")
        self.parameters.append(made)
        self.pool.append(made)
        return made

    def any(self, suits: Callable[[Node], bool] = lambda node: True) -> Node:
        """A tensor that suits, the younger the likelier."""
        suitable = [node for node in self.pool if suits(node)]
        if suitable and self.chance(0.6):
            suitable = suitable[-2:]
        found = self.one_of(suitable)
        assert isinstance(found, Node)
        return found

    def like(self, dtype: DType, shape: Shape) -> Node:
        """A tensor of this type: an existing one, a broadcast, a constant or a parameter."""
        same = [node for node in self.pool if node.dtype is dtype and node.shape == shape]
        draw = self.random.random()
        if same and draw < 0.5:
            found = self.one_of(same)
            assert isinstance(found, Node)
            return found
        if draw < 0.6:
            return self.splat(dtype, shape)
        if draw < 0.8 and shape:
            kept = self.dimensions(len(shape))
            source = self.parameter(dtype, tuple(shape[d] for d in kept))
            return ops.Broadcast(source, shape, kept)
        return self.parameter(dtype, shape)

    def scalar_value(self, dtype: DType) -> Array:
        return draw_array(self.random, TensorType(dtype), False)

    def splat(self, dtype: DType, shape: Shape) -> Node:
        value = ops.Constant(self.scalar_value(dtype))
        return ops.Broadcast(value, shape, ()) if shape else value

    def index(self, extent: int, shape: Shape = ()) -> Node:
        """Integer positions about [0, extent), a few of them outside."""
        dtype = self.one_of((S32, S32, S64, U32))
        reach = extent + (2 if self.chance(0.3) else 0)
        low = -2 if reach > extent and dtype is not U32 else 0
        drawn = np.asarray(self.random.integers(low, max(reach, 1), shape)).astype(dtype.numpy)
        if self.chance(0.2):
            return ops.Constant(drawn)
        found = self.parameter(dtype, shape)
        self.arrays[found.index] = drawn
        return found

    # --- growth ---

    def step(self) -> None:
        """Add one operation."""
        for _ in range(40):
            parameters, pool, arrays = len(self.parameters), len(self.pool), dict(self.arrays)
            try:
                node = self.one_of(self.families)(self)
                results = ops.results_of(node)
                if all(result.type.elements <= MOST_ELEMENTS for result in results):
                    self.pool.extend(results)
                    return
            except Misfit:
                pass
            del self.parameters[parameters:], self.pool[pool:]
            self.arrays = arrays

    def finish(self, name: str) -> tuple[Graph, list[Parameter]]:
        """The program of every tensor that no other reads, and which parameters it keeps."""
        used = {operand for node in self.pool for operand in node.operands}
        leaves = [n for n in self.pool if n not in used and not isinstance(n, Parameter)]
        results = tuple(leaves or self.pool[-1:])
        return with_live_parameters(name, results)


def with_live_parameters(name: str, results: tuple[Node, ...]) -> tuple[Graph, list[Parameter]]:
    """The graph of these results, its parameters numbered from zero, and which ones they were."""
    drawn = Graph(name, (), results)
    live = (node for node in drawn.nodes if isinstance(node, Parameter))
    kept = sorted(live, key=lambda node: node.index)
    image = {p: Parameter(index, p.declared, f"x{index}") for index, p in enumerate(kept)}
    rebuilt = drawn.rewrite(lambda node: image.get(node) if isinstance(node, Parameter) else None)
    return Graph(name, tuple(image.values()), rebuilt.results), kept
