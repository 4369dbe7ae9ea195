"""Expansion of scalar functions that no engine has into functions that some engine has."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from glia.options import CompileOptions
from glia.tile.expand import equations_float
from glia.tile.expand import equations_integer as equations_integer  # registers its equations
from glia.tile.expand import equations_remainder as equations_remainder
from glia.tile.expand.buffer_bounds import BufferBounds
from glia.tile.expand.scalar_terms import Term, TermBuilder
from glia.tile.ir import Apply, Expr, Index, Load, Nest, Program, Scan
from glia.tile.nest_rewriting import map_nests
from glia.tile.row_search import picked, with_place

_ROUNDS = ("floor", "ceil", "round_nearest_even", "round_nearest_away")


def expand_scalars(program: Program, options: CompileOptions | None = None) -> Program:
    """The program with scalar functions that engines compute only.

    Equal subexpressions become one object, so that they are computed once. No option changes the
    result.
    """
    bounds = BufferBounds(program)

    def expand(nest: Nest) -> Nest:
        expanded = _expand_nest(nest, bounds)
        bounds.add(nest)
        return expanded

    return map_nests(program, expand)


def _expand_nest(nest: Nest, bounds: BufferBounds) -> Nest:
    expander = _Expander(TermBuilder(partial(_is_whole, nest), bounds.of))
    finish = nest.finish and expander.expand(nest.finish).expression
    if (pick := picked(nest)) is not None:
        place = expander.expand(pick.place).expression
        return replace(with_place(nest, pick, place), finish=finish)
    return replace(nest, body=expander.expand(nest.body).expression, finish=finish)


def _is_whole(nest: Nest, expression: Expr) -> bool:
    """Whether an expression varies along all axes of a nest, of which there are several."""
    names = {axis.name for axis in nest.axes if axis.extent > 1}
    if len(names) < 2:
        return False
    seen: set[int] = set()
    waiting: list[Expr] = [expression]
    while waiting and names:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, Apply):
            waiting.extend(part.args)
            names.discard(part.axis if isinstance(part, Scan) else "")
        elif isinstance(part, Load):
            for index in part.index:
                names.difference_update(index.variables)
        elif isinstance(part, Index):
            names.difference_update(part.expression.variables)
    return not names


class _Expander:
    """Expands bottom-up, each object once."""

    def __init__(self, builder: TermBuilder) -> None:
        self.builder = builder
        self._done: dict[int, tuple[Expr, Term]] = {}

    def expand(self, expression: Expr) -> Term:
        """The same value in terms of the engines' functions."""
        found = self._done.get(id(expression))
        if found is None:
            found = (expression, self._expand(expression))
            self._done[id(expression)] = found
        return found[1]

    def _expand(self, expression: Expr) -> Term:
        if not isinstance(expression, Apply):
            return self.builder.term(expression)
        if isinstance(expression, Scan):
            expanded = tuple(self.expand(arg).expression for arg in expression.args)
            return self.builder.term(replace(expression, args=expanded))
        if self._takes_whole_part(expression):
            quotient = expression.args[0]
            assert isinstance(quotient, Apply)
            a, b = (self.expand(arg).widened() for arg in quotient.args)
            exact = equations_float.divide_exactly(a, b).to(quotient.dtype)
            return self.builder.apply(expression.function, (exact,), expression.dtype)
        args = tuple(self.expand(arg) for arg in expression.args)
        return self.builder.apply(expression.function, args, expression.dtype)

    @staticmethod
    def _takes_whole_part(expression: Apply) -> bool:
        """Whether a quotient of floats is rounded to a whole number."""
        argument = expression.args[0]
        if not (isinstance(argument, Apply) and argument.function == "divide"):
            return False
        to_integer = expression.function == "convert" and expression.dtype.is_integer
        return argument.dtype.is_float and (expression.function in _ROUNDS or to_integer)
