"""Matching of expressions against the forms that instructions declare, and the cost of a match."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeGuard

import numpy as np

from glia.arch import Arch
from glia.base.dtype import BF16, F32, PRED
from glia.base.loc import UNKNOWN, Loc
from glia.isa import INSTRUCTIONS
from glia.isa.alu import COMPARISONS
from glia.isa.form import ORDER_FREE, Choice, Form, Negative, Step, family_of
from glia.isa.instructions.gpsimd import AffineSelect
from glia.isa.kit import Instr
from glia.isa.operand import Pattern
from glia.machine.emit.layout import Point, bases
from glia.machine.legal_instruction import violations
from glia.tile.affine_predicates import AffineCondition, masked
from glia.tile.ir import Apply, Expr, Literal

EXACT_IN_FLOAT32 = 16  # bits of the widest integers that arithmetic in float32 compares exactly
_KEEPS_RANGE = frozenset((*COMPARISONS, "maximum", "minimum"))
_MOVES = frozenset(("convert", "select"))
# not subtract, whose result may be what rounding of its operands left, as in compensated sums
_SMOOTH = frozenset(
    (
        "abs", "add", "erf", "exp", "gelu", "gelu_tanh", "logistic", "maximum", "minimum",
        "multiply", "silu", "softplus", "square", "tanh",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Match:
    """An instruction whose form matches an expression, with its operands and attributes bound.

    `steps` are the functions it covers, the outermost first; `negated` names the operands that the
    instruction needs with the opposite sign.
    """

    instruction: type[Instr]
    operands: Mapping[str, Expr]
    attributes: Mapping[str, object]
    steps: tuple[Apply, ...]
    negated: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Binding:
    """A partial match: expressions bound to a form's leaves, values to its attributes."""

    operands: Mapping[str, Expr] = field(default_factory=dict)
    attributes: Mapping[str, object] = field(default_factory=dict)
    steps: tuple[Apply, ...] = ()
    negated: frozenset[str] = frozenset()

    def merge(self, other: _Binding) -> _Binding | None:
        """The union of two bindings; None when they bind one operand or attribute differently."""
        for mine, theirs in ((self.operands, other.operands), (self.attributes, other.attributes)):
            if any(mine[name] is not theirs[name] for name in mine.keys() & theirs.keys()):
                return None
        return _Binding(
            {**self.operands, **other.operands},
            {**self.attributes, **other.attributes},
            self.steps + other.steps,
            self.negated | other.negated,
        )


def is_widening(expression: Expr) -> TypeGuard[Apply]:
    """Whether the expression only converts to float32, as engines do with every operand."""
    return (
        isinstance(expression, Apply)
        and expression.function == "convert"
        and expression.dtype is F32
    )


def strip_widening(expression: Expr) -> Expr:
    """The operand of any conversions to float32 around an expression."""
    while is_widening(expression):
        expression = expression.args[0]
    return expression


@cache
def forms_of(function: str, family: str) -> tuple[tuple[type[Instr], Form], ...]:
    """Every declared form that can have the function at its root."""
    return tuple(
        (instruction, form)
        for instruction in INSTRUCTIONS.values()
        for form in instruction.forms
        if (function, family) in form.computes.functions()
    )


def matches(expression: Apply, absorbs: Callable[[Apply], bool]) -> Iterator[Match]:
    """Every way to compute an expression with one instruction of its operands' values.

    `absorbs` says which inner functions may become part of the instruction. A conversion of a
    float32 value is part of whatever computes the value, because results are rounded when written.
    """
    yield from _matches(expression, absorbs, ())
    inner = expression.args[0]
    is_rounding = expression.function == "convert" and inner.dtype is F32
    if is_rounding and isinstance(inner, Apply) and inner.function != "convert" and absorbs(inner):
        yield from _matches(inner, absorbs, (expression,))


def _matches(
    expression: Apply, absorbs: Callable[[Apply], bool], enclosing: tuple[Apply, ...]
) -> Iterator[Match]:
    for instruction, form in forms_of(expression.function, family_of(expression.args[-1].dtype)):
        for binding in _bind(form.computes, expression, absorbs):
            attributes = {**form.settings, **binding.attributes}
            steps = (*enclosing, *binding.steps)
            yield Match(instruction, binding.operands, attributes, steps, binding.negated)


def _bind(step: Step, expression: Apply, absorbs: Callable[[Apply], bool]) -> Iterator[_Binding]:
    """Every binding of a step to an expression whose function it may compute."""
    for arguments, attributes in _argument_orders(step, expression):
        found = [_Binding({}, attributes, (expression,))]
        for part, argument in zip(step.arguments, arguments, strict=True):
            bound = list(_bind_argument(part, argument, absorbs))
            found = [union for one in found for b in bound if (union := one.merge(b)) is not None]
        yield from found


def _argument_orders(
    step: Step, expression: Apply
) -> Iterator[tuple[tuple[Expr, ...], dict[str, object]]]:
    """Each order of arguments that the step accepts, with the attributes that select it."""
    args, function = expression.args, step.function
    family = family_of(args[-1].dtype)
    if len(args) != len(step.arguments):
        return
    attributes: dict[str, object] = {}
    exchanged = ""
    if isinstance(function, Choice):
        value = function.value(expression.function, family)
        if value is None:
            return
        attributes[function.attribute], exchanged = value, function.exchanged
    elif function.function != expression.function or family not in function.families:
        return
    yield args, attributes
    if len(args) != 2:
        return
    if expression.function in ORDER_FREE:
        yield args[::-1], attributes
    elif exchanged:
        yield args[::-1], attributes | {exchanged: True}


def _bind_argument(
    part: Step | str | Negative, argument: Expr, absorbs: Callable[[Apply], bool]
) -> Iterator[_Binding]:
    if isinstance(part, str):
        yield _Binding({part: argument})
    elif isinstance(part, Negative):
        yield _Binding({part.operand: argument}, negated=frozenset((part.operand,)))
    elif isinstance(argument, Apply):
        inner: Expr = argument
        if is_widening(inner) and inner.args[0].dtype is PRED and absorbs(inner):
            inner = inner.args[0]  # a comparison's 0 or 1 is a number to the next step
        if isinstance(inner, Apply) and absorbs(inner):
            yield from _bind(part, inner, absorbs)


def mask_matches(
    expression: Apply,
    axes: Sequence[str],
    point: Point,
    extents: Mapping[str, int],
    derive: Callable[[Expr, str, Callable[[Expr], Expr]], Expr],
) -> Iterator[Match]:
    """A float where affine conditions hold, and a number elsewhere: an instruction for each.

    The value varies along these free `axes`; nest axes have these `extents`. `derive` memoises
    what is derived from an expression.
    """
    root = expression
    steps: tuple[Apply, ...] = (expression,)
    inner = expression.args[0]
    if expression.function == "convert" and isinstance(inner, Apply) and inner.dtype.is_float:
        root, steps = inner, (expression, inner)
    found = masked(root, extents) if root.dtype.is_float else None
    if found is None:
        return
    (first, *rest), value, number = found
    if rest:
        value = derive(root, "masked", lambda _: _selections(rest, value, number))
    difference = first.difference.substitute(bases(point.env))
    along = first.difference.coefficient
    attributes = {
        "offset": difference,
        "channel_multiplier": along(point.partition),
        "steps": tuple(along(axis) for axis in axes) or (0,),
        "counts": point.extents(axes) or (1,),
        "compare_op": first.comparison,
        "false_value": number.value,
    }
    yield Match(AffineSelect, {"data": value}, attributes, steps)


def _selections(conditions: Sequence[AffineCondition], value: Expr, number: Literal) -> Expr:
    """A value where conditions hold, a number elsewhere: one choice after the other."""
    for each in conditions:
        value = Apply("select", (each.predicate, value, number), value.dtype)
    return value


def is_faithful(match: Match, instruction: Instr) -> bool:
    """Whether the instruction's arithmetic equals that of the functions it covers.

    Exact instructions keep dtypes; all others compute in float32 and round once, on writing, also
    where bfloat16 arithmetic rounds between its steps.
    """
    root, *inner = match.steps
    if instruction.is_exact:
        keeps_dtype = all(step.dtype is root.dtype for step in inner)
        return keeps_dtype and (root.function in _MOVES or not root.args[-1].dtype.is_float)
    is_rounded = any(step.dtype not in (F32, PRED) for step in inner)
    if is_rounded and not _may_leave_roundings_out(match.steps):
        return False
    numbers = (v for n in match.operands if isinstance(v := getattr(instruction, n), int | float))
    return all(map(_is_exact_in_float32, match.steps)) and all(map(fits_float32, numbers))


def _may_leave_roundings_out(steps: Sequence[Apply]) -> bool:
    """Whether the outermost of bfloat16 steps may take the others' results in float32.

    Those may be differences too, of operands that are rounded.
    """

    def is_plain_difference(step: Apply) -> bool:
        operands = [strip_widening(argument) for argument in step.args]
        is_whole = not any(operand is other for operand in operands for other in steps)
        return step.dtype is BF16 and step.function == "subtract" and is_whole

    root, *inner = steps
    return is_smooth(root) and all(is_smooth(each) or is_plain_difference(each) for each in inner)


def is_smooth(step: Apply) -> bool:
    """Whether bfloat16 operands with float32's precision change a result no more than rounding."""
    return step.dtype is BF16 and step.function in _SMOOTH


def has_smooth_function(step: Apply) -> bool:
    """Whether operands of more precision change a result of float32 no more than they differ."""
    return step.dtype is F32 and step.function in _SMOOTH


def _is_exact_in_float32(step: Apply) -> bool:
    narrow = all(a.dtype.bits <= EXACT_IN_FLOAT32 for a in step.args)
    return (
        step.function in _MOVES
        or all(a.dtype.is_float for a in step.args)
        or (narrow and step.function in _KEEPS_RANGE)
    )


def fits_float32(number: float | int) -> bool:
    """Whether float32 represents a number exactly; floats in programs are float32 values."""
    if isinstance(number, float):
        return True
    with np.errstate(over="ignore"):
        return float(np.float32(number)) == number


def build_instruction(
    kind: type[Instr], engine: str, fields: Mapping[str, Any], loc: Loc = UNKNOWN
) -> Instr:
    """An instruction of a class that is known at run time only, from its fields by name."""
    return kind(on=engine, loc=loc, **fields)


class InstructionCosts:
    """The cost model of one generation, memoised by instruction, attributes and operands."""

    def __init__(self, arch: Arch) -> None:
        self.arch = arch
        self._cheapest_by_signature: dict[tuple[object, ...], tuple[float, str] | None] = {}

    def cheapest(self, match: Match, operands: Mapping[str, object]) -> tuple[float, str] | None:
        """(nanoseconds, engine) of the cheapest engine that may run it; None when none may."""
        key = (
            match.instruction,
            *match.attributes.items(),
            *((name, _signature(value)) for name, value in operands.items()),
            tuple(
                (step.function, step.dtype, *(a.dtype for a in step.args)) for step in match.steps
            ),
        )
        if key not in self._cheapest_by_signature:
            self._cheapest_by_signature[key] = self._cheapest(match, operands)
        return self._cheapest_by_signature[key]

    def _cheapest(self, match: Match, operands: Mapping[str, object]) -> tuple[float, str] | None:
        best: tuple[float, str] | None = None
        for engine in match.instruction.engines:
            fields = {**match.attributes, **operands}
            instruction = build_instruction(match.instruction, engine, fields)
            if violations(instruction, self.arch) or not is_faithful(match, instruction):
                continue
            cost = instruction.cycles(self.arch) / self.arch.clocks_ghz[engine]
            if best is None or cost < best[0]:
                best = cost, engine
        return best


def _signature(value: object) -> object:
    """The properties of an operand that cost and legality depend on; of a number its value."""
    if not isinstance(value, Pattern):
        return type(value), value
    return value.dtype, value.memory, value.dims, value.partition
