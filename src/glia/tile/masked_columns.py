"""Columns that affine conditions keep of each row, and numbers that hold everywhere else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from glia.graph.scalar import MIRRORED
from glia.tile.affine_predicates import AffineCondition
from glia.tile.ir import Apply, Expr, Literal, Load
from glia.tile.nest_rewriting import distinct_parts

MASKED = -9e8  # numbers no greater stand for minus infinity: less than any score by far


@dataclass(frozen=True)
class KeptColumns:
    """By row, the interval of columns in which conditions hold: low <= column < high."""

    low: np.ndarray
    high: np.ndarray
    columns: int

    def some(self, first: int, last: int) -> tuple[int, int]:
        """The interval outside of which no row of a range keeps a column; all if one keeps none."""
        low, high = self.low[first:last], self.high[first:last]
        return (int(low.min()), int(high.max())) if (low < high).all() else (0, self.columns)

    def every(self, first: int, last: int) -> tuple[int, int]:
        """The interval that all rows of a range keep."""
        return int(self.low[first:last].max()), int(self.high[first:last].min())


def kept_columns(
    conditions: Sequence[AffineCondition], row: str, column: str, rows: int, columns: int
) -> KeptColumns | None:
    """Where all conditions hold; None where that is no interval of columns in each row."""
    low, high = np.zeros(rows, np.int64), np.full(rows, columns, np.int64)
    for each in conditions:
        difference, comparison = each.difference, each.comparison
        if comparison == "not_equal" or set(difference.variables) - {row, column}:
            return None
        step = difference.coefficient(column)
        rest = difference.coefficient(row) * np.arange(rows, dtype=np.int64) + difference.constant
        if not step:
            return None
        if step < 0:
            step, rest, comparison = -step, -rest, MIRRORED[comparison]
        least = -(rest // step)  # the first column with step * column + rest >= 0
        beyond = -rest // step + 1  # the first with step * column + rest > 0
        if comparison in ("greater_equal", "equal"):
            low = np.maximum(low, least)
        if comparison == "greater":
            low = np.maximum(low, beyond)
        if comparison in ("less_equal", "equal"):
            high = np.minimum(high, beyond)
        if comparison == "less":
            high = np.minimum(high, least)
    return KeptColumns(low, high, columns)


def number_elsewhere(
    expression: Expr, numbers: Mapping[int, float], known: Mapping[str, float]
) -> float | None:
    """The number that an expression is where its parts are `numbers` by id, whatever others are.

    Loads of buffers that are `known` have these numbers. What is not known is taken to be finite.
    """
    done: dict[int, float | None] = {}

    def visit(part: Expr) -> float | None:
        if id(part) not in done:
            done[id(part)] = _visit(part)
        return done[id(part)]

    def _visit(part: Expr) -> float | None:
        if id(part) in numbers:
            return numbers[id(part)]
        if isinstance(part, Literal):
            return float(part.value)
        if isinstance(part, Load):
            return known.get(part.buffer)
        if isinstance(part, Apply):
            return _applied(part, [visit(each) for each in part.args])
        return None

    return visit(expression)


def masked_number(number: Literal) -> float:
    """What a mask puts in place of a value: minus infinity for what stands for it."""
    value = float(number.value)
    return -math.inf if value <= MASKED else value


def _applied(part: Apply, args: Sequence[float | None]) -> float | None:
    """The number that a function gives; an argument that is None may be any finite number."""
    known = [each for each in args if each is not None]
    lowest = -math.inf in known
    match part.function:
        case "convert":
            return args[0] if part.dtype.is_float else None
        case "exp" | "logistic" if lowest:
            return 0.0
        case "add":
            return -math.inf if lowest and math.inf not in known else _sum(args)
        case "subtract":
            first, second = args
            return -math.inf if first == -math.inf and second != first else None
        case "multiply":
            return _product(args)
        case "minimum" if lowest:
            return -math.inf
        case "maximum" if lowest and len(known) == len(args):
            return max(known)
        case "select":
            return args[1] if args[1] == args[2] else None
    return None


def _sum(args: Sequence[float | None]) -> float | None:
    known = [each for each in args if each is not None]
    return sum(known) if len(known) == len(args) and not any(map(math.isinf, known)) else None


def _product(args: Sequence[float | None]) -> float | None:
    known = [each for each in args if each is not None]
    if any(map(math.isinf, known)):
        others = [each for each in known if not math.isinf(each)]
        is_lowest = known != others and len(known) == len(args) and min(others, default=0) > 0
        return -math.inf if is_lowest and -math.inf in known else None
    return 0.0 if 0.0 in known else None


def parts(expression: Expr | None) -> Iterator[Apply]:
    """The functions in an expression, each once."""
    found = () if expression is None else distinct_parts(expression)
    return (part for part in found if isinstance(part, Apply))
