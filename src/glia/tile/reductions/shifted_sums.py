"""How a sum about one shift follows from the sum about another.

    sum of exp(f * (x - h)) * w  =  exp(f * (a - h)) * sum of exp(f * (x - a)) * w
    sum of (x - h)^2  =  sum of (x - a)^2 + n * (a - h)^2            a = sum of x / n

where the factor f, the shift h and the other shift a do not depend on the n values summed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from glia.base.affine import Affine
from glia.base.dtype import F32
from glia.tile.ir import Apply, Expr, Index, Literal, Load, Nest, loads
from glia.tile.nest_rewriting import (
    are_equal,
    axes_in,
    distinct_parts,
    reads,
    substitute,
    with_part,
)
from glia.tile.passes.defer_factors import WIDE_RANGE

_ONE = Literal(1.0, F32)


@dataclass(frozen=True)
class ShiftedExponential:
    """A part of a nest's body: an exponential of `factors` times a term less a shift.

    What else the argument adds does not matter. `axes` are those of the nest, by those of the nest
    whose maximum the shift is; `axis` is the one that both sweep.
    """

    whole: Apply
    difference: Apply
    factors: tuple[Expr, ...]
    axes: Mapping[str, str]
    axis: str

    def about(self, shift: Expr) -> Expr:
        """The exponential about another shift."""
        changed = replace(self.difference, args=(self.difference.args[0], shift))
        return with_part(self.whole, self.difference, changed)

    def repair(self, shift: Expr) -> Expr:
        """What makes the exponential of that about another shift, as a factor."""
        value: Expr = Apply("subtract", (shift, self.difference.args[1]), F32)
        for each in self.factors:
            value = Apply("multiply", (value, each), F32)
        return Apply("exp", (value,), F32)


@dataclass(frozen=True)
class ShiftedSquare:
    """The body of a nest: the square of a term less a shift; `axis` as in ShiftedExponential."""

    difference: Apply
    axis: str
    axes: Mapping[str, str]

    def about(self, shift: Expr) -> Expr:
        """The square about another shift."""
        return Apply("square", (self._difference(self.difference.args[0], shift),), F32)

    def repair(self, shift: Expr, count: int) -> Expr:
        """What is added to the sum of `count` squares about their mean."""
        between = self._difference(shift, self.difference.args[1])
        return Apply(
            "multiply", (Apply("square", (between,), F32), Literal(float(count), F32)), F32
        )

    @staticmethod
    def _difference(one: Expr, other: Expr) -> Apply:
        return Apply("subtract", (one, other), F32)


def shifted_square(nest: Nest, mean: Nest) -> ShiftedSquare | None:
    """The square about the sum that a nest computes along its only reduced axis, if a body is it.

    The other nest has the term of the square in its body.
    """
    body = nest.body
    if not isinstance(body, Apply) or body.dtype is not F32:
        return None
    is_product = body.function == "multiply" and are_equal(*body.args)
    difference = body.args[0] if is_product or body.function == "square" else None
    if not isinstance(difference, Apply) or difference.function != "subtract":
        return None
    term, shift = difference.args
    name = mean.target.buffer
    axes = _matched_axes(mean, nest, term) if reads(shift, name) and not reads(term, name) else None
    if axes is None or not _is_free(mean, axes, (shift,)):
        return None
    return ShiftedSquare(difference, axes[mean.reduced_axes[0].name], axes)


def shifted_exponential(nest: Nest, maximum: Nest) -> ShiftedExponential | None:
    """The exponential about the maximum that a nest computes along its only reduced axis.

    None unless it is all in the body of `nest` that reads the maximum, for the same term.
    """
    name = maximum.target.buffer
    exponentials = {
        part
        for part in distinct_parts(nest.body)
        if isinstance(part, Apply) and part.function == "exp" and reads(part, name)
    }
    if len(exponentials) != 1:
        return None
    (whole,) = exponentials
    found = _difference(whole.args[0], name)
    if found is None or reads(with_part(nest.body, whole, _ONE), name):
        return None
    difference, factors = found
    term, shift = difference.args
    axes = _matched_axes(maximum, nest, term)
    if axes is None or not _is_free(maximum, axes, (shift, *factors)):
        return None
    (swept,) = maximum.reduced_axes
    return ShiftedExponential(whole, difference, factors, axes, axes[swept.name])


def _is_free(reduction: Nest, axes: Mapping[str, str], parts: Sequence[Expr]) -> bool:
    """Whether expressions do not depend on the reduced axis, and read what was made of the row."""
    (swept,) = reduction.reduced_axes
    if any(axes[swept.name] in axes_in(each) for each in parts):
        return False
    names = {old: Affine.of(new) for old, new in axes.items()}
    place = tuple(each.substitute(names) for each in reduction.target.index)
    read = [each for part in parts for each in loads(part)]
    return not any(
        each.index != place or each.guards or each.dynamic
        for each in read
        if each.buffer == reduction.target.buffer
    )


def _difference(part: Expr, name: str) -> tuple[Apply, tuple[Expr, ...]] | None:
    """The difference of which the right side reads a buffer, and what it is multiplied by."""
    factors: list[Expr] = []
    while isinstance(part, Apply) and part.dtype is F32:
        reading = [at for at, each in enumerate(part.args) if reads(each, name)]
        if len(reading) != 1:
            return None
        (at,) = reading
        others = part.args[:at] + part.args[at + 1 :]
        match part.function, at:
            case "subtract", 1:
                return part, tuple(factors)
            case "add" | "subtract", _:
                pass
            case "multiply", _:
                factors += others
            case "divide", 0:
                factors.append(Apply("divide", (_ONE, *others), F32))
            case _:
                return None
        part = part.args[at]
    return None


def is_linear(expression: Expr, is_marked: Callable[[Expr], bool]) -> bool:
    """Whether an expression is a marked part times what no marked part is in, but for rounding."""
    if is_marked(expression):
        return True
    if not isinstance(expression, Apply) or expression.dtype not in WIDE_RANGE:
        return False
    args = expression.args
    marked = [at for at, each in enumerate(args) if any(map(is_marked, distinct_parts(each)))]
    if len(marked) != 1 or args[marked[0]].dtype not in WIDE_RANGE:
        return False
    match expression.function, marked[0]:
        case ("multiply", _) | ("divide", 0) | ("convert" | "negate", 0):
            return is_linear(args[marked[0]], is_marked)
    return False


def _matched_axes(maximum: Nest, nest: Nest, term: Expr) -> dict[str, str] | None:
    """By axis of a maximum, the axis of a nest with which a term is what the maximum is of."""
    found: dict[str, str] = {}
    pairs: list[tuple[Expr, Expr]] = [(maximum.body, term)]
    seen: set[tuple[Expr, Expr]] = set()
    while pairs:
        one, other = pairs.pop()
        if (one, other) in seen:
            continue
        seen.add((one, other))
        if isinstance(one, Load) and isinstance(other, Load):
            affine = [*zip(one.index, other.index, strict=False)]
        elif isinstance(one, Index) and isinstance(other, Index):
            affine = [(one.expression, other.expression)]
        else:
            affine = []
        if not all(_match(*each, found) for each in affine):
            return None
        if isinstance(one, Apply) and isinstance(other, Apply):
            pairs += zip(one.args, other.args, strict=False)
    names = {old: Affine.of(new) for old, new in found.items()}
    extents = nest.extents
    is_same = are_equal(substitute(maximum.body, names), term) and len({*found.values()}) == len(
        found
    )
    is_whole = all(extents[found[a]] == n for a, n in maximum.extents.items() if a in found)
    names_all = {axis for axis, extent in maximum.extents.items() if extent > 1} <= found.keys()
    return found if is_same and is_whole and names_all else None


def _match(one: Affine, other: Affine, found: dict[str, str]) -> bool:
    """Enter the variables of two affine expressions that stand for each other, by coefficient."""
    if len(one.terms) != len(other.terms):
        return False
    terms = zip(
        *(sorted(each.terms, key=lambda t: (t[1], t[0])) for each in (one, other)), strict=True
    )
    return all(found.setdefault(a, b) == b and n == m for (a, n), (b, m) in terms)
