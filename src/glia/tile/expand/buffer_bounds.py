"""Bounds of the floats in the buffers of a program, from the nests that write them.

A divisor is often the root of a variance plus something small, or the sum of a softmax, which is
at least 1: the greatest of the numbers is among those that are subtracted from it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from glia.base.affine import Affine
from glia.base.dtype import F32, DType
from glia.tile.expand.value_bounds import (
    ANY_NUMBER,
    Bounds,
    bounds_of_leaf,
    exp_bounds,
    rounded,
    value_bounds,
)
from glia.tile.ir import Accumulator, Apply, Expr, Load, Nest, Program, control_buffers, loads
from glia.tile.nest_rewriting import are_equal, substitute

MOST_STEPS = 24  # from a sum back to the numbers whose greatest is taken off


@dataclass(frozen=True)
class _Writer:
    """The nest that writes all of a buffer, and its axes in the order of the dimensions.

    `number` counts the nests in the order of the program.
    """

    nest: Nest
    axes: tuple[str, ...]
    number: int

    def values_at(self, load: Expr) -> dict[str, Affine]:
        """By axis of the nest, its value where a load reads."""
        assert isinstance(load, Load)
        return dict(zip(self.axes, load.index, strict=True))


class BufferBounds:
    """What is known of buffers while the nests of a program are visited in its order.

    Bounds are of values for which nothing that they are computed from is infinite or NaN.
    """

    def __init__(self, program: Program) -> None:
        writers = Counter(nest.target.buffer for nest in program.nests())
        fixed = {name for pair in program.aliases for name in pair}
        fixed |= control_buffers(program.body)
        self._candidates = {name for name, n in writers.items() if n == 1 and name not in fixed}
        self._changing = fixed | writers.keys()
        self._numbers: dict[str, int] = {}  # of the nests that write candidates
        self._bounds: dict[str, Bounds] = {}
        self._writers: dict[str, _Writer] = {}

    def of(self, expression: Expr) -> Bounds:
        """Bounds of a float expression of a nest, whose loads read what earlier nests wrote."""
        return value_bounds(expression, self._of_leaf)

    def add(self, nest: Nest) -> None:
        """Take note of what a nest writes; buffers that others write too stay unknown."""
        target = nest.target
        is_whole = not (target.dynamic or target.combine)
        if target.buffer not in self._candidates or not is_whole or not nest.dtype.is_float:
            return
        number = self._numbers[target.buffer] = len(self._numbers)
        total = self._of_total(nest)

        def of_leaf(leaf: Expr) -> Bounds:
            return total if isinstance(leaf, Accumulator) else self._of_leaf(leaf)

        bounds = total if nest.finish is None else value_bounds(nest.finish, of_leaf)
        if bounds != ANY_NUMBER:
            self._bounds[target.buffer] = bounds
        names = {Affine.of(axis.name): axis.name for axis in nest.parallel_axes}
        axes = [names[part] for part in target.index if part in names]
        if len(axes) == len(target.index) == len(nest.parallel_axes):
            self._writers[target.buffer] = _Writer(nest, tuple(axes), number)

    def _of_leaf(self, leaf: Expr) -> Bounds:
        if not isinstance(leaf, Load) or not leaf.dtype.is_float:
            return bounds_of_leaf(leaf)
        low, high = self._bounds.get(leaf.buffer, bounds_of_leaf(leaf))
        if leaf.guards:
            low, high = min(low, leaf.fill), max(high, leaf.fill)
        return low, high

    def _of_total(self, nest: Nest) -> Bounds:
        """Bounds of what a nest computes before it finishes it."""
        reduction, terms = nest.reduction, self.of(nest.body)
        if reduction is None:
            return terms
        count = math.prod(axis.extent for axis in nest.reduced_axes)
        if not count or reduction.function not in ("add", "maximum", "minimum"):
            return ANY_NUMBER
        if reduction.function != "add":
            return rounded(*terms)
        low, high = terms
        is_precise = reduction.dtype is F32
        least = count * low if is_precise else -math.inf
        if low >= 0:  # the sum is no less than any of its terms, however it is rounded
            least = max(low, self._reached(nest, nest.body, MOST_STEPS))
        return rounded(least, max(0.0, count * high) if is_precise else math.inf)

    # --- the greatest of what is summed -----------------------------------------------------------

    def _reached(self, nest: Nest, part: Expr, steps: int) -> float:
        """A number that part of a nest's body reaches for some value of the reduced axes."""
        writer = self._writer_of(part)
        if writer is not None and steps and not (writer.nest.reduction or writer.nest.finish):
            body = substitute(writer.nest.body, writer.values_at(part))
            return self._reached(nest, body, steps - 1)
        if isinstance(part, Apply) and steps and part.dtype.is_float:
            first = part.args[0]
            if part.function == "subtract" and self._is_greatest(nest, *part.args):
                return 0.0
            if part.function in ("convert", "exp") and first.dtype.is_float:
                found = self._reached(nest, first, steps - 1), math.inf
                return rounded(*(exp_bounds(found) if part.function == "exp" else found))[0]
        return self.of(part)[0]

    def _is_greatest(self, nest: Nest, part: Expr, greatest: Expr) -> bool:
        """Whether `greatest` is the greatest value of a part over the reduced axes of a nest."""
        writer = self._writer_of(greatest)
        if writer is None or not _takes_maximum(writer.nest, part.dtype):
            return False
        other, values = writer.nest, writer.values_at(greatest)
        swept = {axis.name for axis in nest.reduced_axes}
        is_same = all(swept.isdisjoint(at.variables) for at in values.values())
        extents = [[axis.extent for axis in each.reduced_axes] for each in (other, nest)]
        if not is_same or extents[0] != extents[1]:
            return False
        for own, axis in zip(other.reduced_axes, nest.reduced_axes, strict=True):
            values[own.name] = Affine.of(axis.name)
        is_fixed = all(self._is_written_before(writer, load.buffer) for load in loads(part))
        return is_fixed and are_equal(substitute(other.body, values), part)

    def _is_written_before(self, writer: _Writer, name: str) -> bool:
        """Whether a buffer has the same values when a nest runs and later."""
        number = self._numbers.get(name, writer.number)
        return name not in self._changing or number < writer.number

    def _writer_of(self, load: Expr) -> _Writer | None:
        if not isinstance(load, Load) or load.guards or load.dynamic:
            return None
        return self._writers.get(load.buffer)


def _takes_maximum(nest: Nest, dtype: DType) -> bool:
    """Whether a nest writes the greatest of numbers of a dtype as it is."""
    if nest.reduction is None or nest.reduction.function != "maximum":
        return False
    finish = nest.finish or Accumulator(nest.reduction.dtype)
    while isinstance(finish, Apply) and finish.function == "convert":
        if finish.dtype not in (dtype, F32):
            return False
        finish = finish.args[0]
    return isinstance(finish, Accumulator) and nest.body.dtype is dtype
