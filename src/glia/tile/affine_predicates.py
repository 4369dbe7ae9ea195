"""Predicates that compare affine expressions of the axes, and what they are over ranges of axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glia.base.affine import Affine
from glia.base.dtype import BF16, F16, F32, PRED, DType, Kind
from glia.graph.rules.facts import magnitude_bits
from glia.graph.scalar import OPPOSITE
from glia.tile.ir import Apply, Expr, Index, Literal, Scan

_FLOATS = (F32, F16, BF16)


@dataclass(frozen=True)
class AffineCondition:
    """A predicate that is true where an affine expression of the axes compares so with 0."""

    predicate: Expr
    difference: Affine
    comparison: str


def factor_after_first(scan: Scan) -> Expr | None:
    """The factor of running sums from the second on, where the first is 0; None of others."""
    match scan.args[0]:
        case Apply("select", (Apply("equal", (Index(at), Literal(0))), Literal(0), factor)):
            is_first = at == Affine.of(scan.axis) and scan.function == "scan_add"
            return factor if is_first else None
    return None


def masked(
    selection: Expr, extents: Mapping[str, int]
) -> tuple[tuple[AffineCondition, ...], Expr, Literal] | None:
    """(conditions, a value, a number): a selection is the value where all of them hold.

    None of what is not a choice by affine predicates between a number and something else.
    """
    if not isinstance(selection, Apply) or selection.function != "select":
        return None
    predicate, chosen, other = selection.args
    is_kept = isinstance(other, Literal)
    value, number = (chosen, other) if is_kept else (other, chosen)
    if not isinstance(number, Literal) or predicate.dtype is not PRED:
        return None
    conditions = _conditions(predicate, is_kept, extents)
    return (conditions, value, number) if conditions else None


def _conditions(
    predicate: Expr, is_kept: bool, extents: Mapping[str, int]
) -> tuple[AffineCondition, ...]:
    """What must hold for a predicate to be true, or false unless `is_kept`; () if not affine."""
    if isinstance(predicate, Apply) and predicate.function == "not":
        return _conditions(predicate.args[0], not is_kept, extents)
    if isinstance(predicate, Apply) and predicate.function == ("and" if is_kept else "or"):
        first, second = (_conditions(each, is_kept, extents) for each in predicate.args)
        return first + second if first and second else ()
    wanted = predicate if is_kept else Apply("not", (predicate,), PRED)
    found = affine_comparison(wanted, extents)
    return (AffineCondition(wanted, *found),) if found else ()


def affine_comparison(predicate: Expr, extents: Mapping[str, int]) -> tuple[Affine, str] | None:
    """(an affine expression, how it compares with 0) where a predicate is true; else None.

    The expression, with every axis in its extent, has values of 32 bits.
    """
    if not isinstance(predicate, Apply) or predicate.dtype is not PRED:
        return None
    if predicate.function == "not":
        found = affine_comparison(predicate.args[0], extents)
        return (found[0], OPPOSITE[found[1]]) if found else None
    if predicate.function not in OPPOSITE or predicate.args[0].dtype is PRED:
        return None
    left, right = (affine_value(each, extents) for each in predicate.args)
    if left is None or right is None:
        return None
    difference = left - right
    low, high = difference.bounds(extents)
    return (difference, predicate.function) if -(2**31) <= low <= high < 2**31 else None


def affine_value(value: Expr, extents: Mapping[str, int]) -> Affine | None:
    """The affine expression of the axes that a value is, exactly; None where it may be another."""
    found: Affine | None = None
    if isinstance(value, Index):
        found = value.expression
    elif isinstance(value, Literal) and float(value.value).is_integer():
        found = Affine.of(int(value.value))
    elif isinstance(value, Apply) and value.function in ("add", "subtract", "convert", "multiply"):
        parts = [affine_value(each, extents) for each in value.args]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            found = _combined(value.function, known)
    return found if found is not None and _holds(value.dtype, found, extents) else None


def _combined(function: str, parts: list[Affine]) -> Affine | None:
    if function == "convert":
        return parts[0]
    left, right = parts
    if function == "multiply":
        if left.is_constant:
            left, right = right, left
        return left * right.constant if right.is_constant else None
    return left + right if function == "add" else left - right


def _holds(dtype: DType, value: Affine, extents: Mapping[str, int]) -> bool:
    """Whether a dtype represents every value of an expression."""
    low, high = value.bounds(extents)
    if not dtype.is_integer and dtype not in _FLOATS:
        return False
    most = 1 << magnitude_bits(dtype)
    if dtype in _FLOATS:
        return -most <= low <= high <= most
    return (-most if dtype.kind is Kind.SIGNED else 0) <= low and high < most
