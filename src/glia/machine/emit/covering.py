"""Which instructions can compute an expression, by the forms they declare, and what each costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from glia.arch import Arch
from glia.base.dtype import F32, PRED
from glia.isa import INSTRUCTIONS
from glia.isa.alu import COMPARISONS
from glia.isa.form import ORDER_FREE, Choice, Form, Negative, Step, family_of
from glia.isa.kit import Instr
from glia.isa.operand import Pattern
from glia.machine.legal import violations
from glia.tile.ir import Apply, Expr

EXACT_IN_FLOAT32 = 16  # bits of the widest integers that arithmetic in float32 compares exactly
_KEEPS_RANGE = frozenset((*COMPARISONS, "maximum", "minimum"))
_MOVES = frozenset(("convert", "select"))


@dataclass(frozen=True)
class Match:
    """An instruction whose form an expression has: its operands' expressions and attributes.

    `steps` are the functions it covers, the outermost first; `negated` names the operands to be
    given with the opposite sign.
    """

    instruction: type[Instr]
    operands: Mapping[str, Expr]
    attributes: Mapping[str, object]
    steps: tuple[Apply, ...]
    negated: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Binding:
    """What the leaves and attributes of a form stand for in an expression."""

    operands: Mapping[str, Expr] = field(default_factory=dict)
    attributes: Mapping[str, object] = field(default_factory=dict)
    steps: tuple[Apply, ...] = ()
    negated: frozenset[str] = frozenset()

    def joined(self, other: _Binding) -> _Binding | None:
        """Both together; None when they name one operand or attribute differently."""
        for mine, theirs in ((self.operands, other.operands), (self.attributes, other.attributes)):
            if any(mine[name] is not theirs[name] for name in mine.keys() & theirs.keys()):
                return None
        return _Binding(
            {**self.operands, **other.operands},
            {**self.attributes, **other.attributes},
            self.steps + other.steps,
            self.negated | other.negated,
        )


def is_widening(expression: Expr) -> bool:
    """Whether the expression only converts to float32, as engines do with every operand."""
    return (
        isinstance(expression, Apply)
        and expression.function == "convert"
        and expression.dtype is F32
    )


def without_widening(expression: Expr) -> Expr:
    """The value that a conversion to float32 starts from."""
    while is_widening(expression):
        expression = expression.args[0]  # type: ignore[union-attr]
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
    expression: Apply, absorbs: Callable[[Apply], bool], around: tuple[Apply, ...]
) -> Iterator[Match]:
    for instruction, form in forms_of(expression.function, family_of(expression.args[-1].dtype)):
        for binding in _bind(form.computes, expression, absorbs):
            attributes = {**form.settings, **binding.attributes}
            steps = (*around, *binding.steps)
            yield Match(instruction, binding.operands, attributes, steps, binding.negated)


def _bind(step: Step, expression: Apply, absorbs: Callable[[Apply], bool]) -> Iterator[_Binding]:
    """Bind a step to an expression known to be of its function's kind."""
    for arguments, attributes in _orders(step, expression):
        found = [_Binding({}, attributes, (expression,))]
        for part, argument in zip(step.arguments, arguments, strict=True):
            bound = list(_bind_argument(part, argument, absorbs))
            found = [both for one in found for b in bound if (both := one.joined(b)) is not None]
        yield from found


def _orders(step: Step, expression: Apply) -> Iterator[tuple[tuple[Expr, ...], dict[str, object]]]:
    """The arguments in each order the step can take them, with the attributes that say so."""
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
        inner = argument
        if is_widening(inner) and inner.args[0].dtype is PRED and absorbs(inner):
            inner = inner.args[0]  # a comparison's 0 or 1 is a number to the next step
        if isinstance(inner, Apply) and absorbs(inner):
            yield from _bind(part, inner, absorbs)


def is_faithful(match: Match, instruction: Instr) -> bool:
    """Whether the instruction's arithmetic is that of the functions it covers.

    Exact instructions keep dtypes; all others compute in float32 and round once, on writing.
    """
    root, *inner = match.steps
    if instruction.is_exact:
        keeps_dtype = all(step.dtype is root.dtype for step in inner)
        return keeps_dtype and (root.function in _MOVES or not root.args[-1].dtype.is_float)
    if any(step.dtype not in (F32, PRED) for step in inner):
        return False
    numbers = (v for n in match.operands if isinstance(v := getattr(instruction, n), int | float))
    return all(map(_is_exact_in_float32, match.steps)) and all(map(fits_float32, numbers))


def _is_exact_in_float32(step: Apply) -> bool:
    narrow = all(a.dtype.bits <= EXACT_IN_FLOAT32 for a in step.args)
    return (
        step.function in _MOVES
        or all(a.dtype.is_float for a in step.args)
        or (narrow and step.function in _KEEPS_RANGE)
    )


def fits_float32(number: float | int) -> bool:
    """Whether a number loses nothing in float32; floats of programs never do."""
    if isinstance(number, float):
        return True
    with np.errstate(over="ignore"):
        return float(np.float32(number)) == number


class Prices:
    """What instructions cost on one generation; each kind and shape is asked about once."""

    def __init__(self, arch: Arch) -> None:
        self.arch = arch
        self._known: dict[tuple[object, ...], tuple[float, str] | None] = {}

    def cheapest(self, match: Match, operands: Mapping[str, object]) -> tuple[float, str] | None:
        """(nanoseconds, engine) of the cheapest engine that may run it; None when none may."""
        key = (
            match.instruction,
            *match.attributes.items(),
            *((name, _shape(value)) for name, value in operands.items()),
            tuple(
                (step.function, step.dtype, *(a.dtype for a in step.args)) for step in match.steps
            ),
        )
        if key not in self._known:
            self._known[key] = self._cheapest(match, operands)
        return self._known[key]

    def _cheapest(self, match: Match, operands: Mapping[str, object]) -> tuple[float, str] | None:
        best: tuple[float, str] | None = None
        for engine in match.instruction.engines:
            instruction = match.instruction(on=engine, **match.attributes, **operands)
            if violations(instruction, self.arch) or not is_faithful(match, instruction):
                continue
            cost = instruction.cycles(self.arch) / self.arch.clocks_ghz[engine]
            if best is None or cost < best[0]:
                best = cost, engine
        return best


def _shape(value: object) -> object:
    """What cost and legality depend on of an operand."""
    if not isinstance(value, Pattern):
        return value is None or fits_float32(value)
    return value.dtype, value.memory, value.dims, value.partition
