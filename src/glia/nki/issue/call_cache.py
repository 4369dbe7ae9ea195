"""Functions that issue again what they issued before for arguments alike.

What a function of nki.isa makes of its arguments depends on the shapes, dtypes, memories and
partitions of its tensors, on its other arguments, and where a product may add to what is there on
whether there is a sum. It does not depend on where in their tiles the tensors lie: the second of
two such calls gives the first one's instruction with other patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import FunctionType, NoneType
from typing import Any

import numpy as np

from glia.base.loc import Loc
from glia.isa.kit import Instr
from glia.isa.operand import Memory
from glia.nki.names.operators import Token
from glia.nki.session.session import CURRENT, Session, WriteEffects, caller, write_effects
from glia.nki.tensors.nki_object import NkiInstruction
from glia.nki.tensors.nki_tensor import NkiTensor

Arguments = dict[str, Any]
Key = tuple[Any, ...]

MOST_PLANS = 1 << 12  # remembered of one function
PLAIN = (int, bool, str, NoneType, FunctionType, np.ufunc, Token)  # equal ones are the same
_new = object.__new__


@dataclass(frozen=True)
class Sums:
    """How a product asks whether there is a sum to add to.

    `is_asked` tells of arguments whether `accumulate` depends on what is in dst, `answer` what it
    is then.
    """

    is_asked: Callable[[Arguments], bool]
    answer: Callable[[NkiTensor, Session, Loc], bool | None]


@dataclass(frozen=True)
class Issuing:
    """A function by its parameters, of which `renamed` are called otherwise in the instruction.

    `anew` binds and checks the arguments and issues the instruction.
    """

    anew: Callable[[tuple[Any, ...], Arguments], NkiInstruction]
    parameters: tuple[str, ...]
    renamed: Mapping[str, str]
    sums: Sums | None = None


@dataclass(frozen=True)
class _Plan:
    """An instruction but for the tensors and floats of its arguments, fields by their positions.

    `fields` are the others, by what `accumulate` is where sums in the argument at `asked` decide,
    else by None. `effects` is what sessions note of it.
    """

    kind: type[Instr]
    tensors: tuple[tuple[str, int], ...]
    floats: tuple[tuple[str, int], ...]
    asked: int | None
    effects: WriteEffects
    fields: dict[bool | None, Arguments] = field(default_factory=dict)


def remembering(issuing: Issuing) -> Callable[..., NkiInstruction]:
    """The function, which issues anew only what it does not remember; its `anew` always does."""
    plans: dict[Key, _Plan] = {}
    anew, running_session = issuing.anew, CURRENT.get
    answer = issuing.sums.answer if issuing.sums is not None else _never_asked

    def issue_first(key: Key, args: tuple[Any, ...], kwargs: Arguments) -> NkiInstruction:
        made = anew(args, kwargs)
        _learn(plans, key, issuing, args, kwargs, made.handle)
        return made

    def function(*args: Any, **kwargs: Any) -> NkiInstruction:
        session = running_session()
        if session is None:
            return anew(args, kwargs)
        if "name" in kwargs:
            name = kwargs.pop("name")
            made = function(*args, **kwargs)
            return made if name is None else _named(session, name, made)
        values = (*args, *kwargs.values()) if kwargs else args
        key: list[Any] = [session.arch_name, len(args), *kwargs]
        for value in values:
            if value.__class__ is NkiTensor:
                if value.indirection is not None or value.fault:
                    return anew(args, kwargs)
                key.append(value.layout)
            elif value.__class__ is tuple:
                key += tuple, value, *map(type, value)
            else:
                key += value.__class__, value
        at = tuple(key)
        try:
            plan = plans.get(at)
        except TypeError:  # an argument that cannot be compared
            return anew(args, kwargs)
        if plan is None:
            return issue_first(at, args, kwargs)
        loc = caller(2)
        adds = None if plan.asked is None else answer(values[plan.asked], session, loc)
        fields = plan.fields.get(adds)
        if fields is None:
            return issue_first(at, args, kwargs)
        instruction = _new(plan.kind)
        given = instruction.__dict__
        given.update(fields)
        for name, position in plan.tensors:
            value = values[position]
            given[name] = value._pattern or value.pattern
        for name, position in plan.floats:
            given[name] = values[position]
        given["loc"] = loc
        session.issue(instruction, () if adds else plan.effects)  # sums that go on stay sums
        result = _new(NkiInstruction)
        result.handle = instruction
        return result

    function.anew = lambda *args, **kwargs: anew(args, kwargs)  # type: ignore[attr-defined]
    return function


def _never_asked(dst: NkiTensor, session: Session, loc: Loc) -> None:
    """The answer of functions that have no sums."""


def naming(function: Callable[..., NkiInstruction]) -> Callable[..., NkiInstruction]:
    """A function that takes a name for its instruction besides."""

    def named(*args: Any, name: str | None = None, **kwargs: Any) -> NkiInstruction:
        made = function(*args, **kwargs)
        return made if name is None else _named(CURRENT.get(), name, made)

    return named


def _named(session: Session | None, name: str, made: NkiInstruction) -> NkiInstruction:
    """Let with_schedule find the instruction."""
    assert session is not None
    session.instructions_by_name.setdefault(str(name), []).append(made.handle)
    return made


def _learn(
    plans: dict[Key, _Plan],
    key: Key,
    issuing: Issuing,
    args: tuple[Any, ...],
    kwargs: Arguments,
    made: Instr,
) -> None:
    """Remember an instruction, unless it depends on more than the key."""
    given = dict(zip(issuing.parameters, args, strict=False)) | kwargs
    tensors, floats = [], []
    for position, (name, value) in enumerate(given.items()):
        at = issuing.renamed.get(name, name), position
        if value.__class__ is NkiTensor and getattr(made, at[0], None) is value.pattern:
            tensors.append(at)
        elif value.__class__ is float and getattr(made, at[0], None) is value:
            floats.append(at)
        elif not _is_plain(value):
            return
    is_asked = issuing.sums is not None and issuing.sums.is_asked(given)
    asked = list(given).index("dst") if is_asked else None
    if len(plans) >= MOST_PLANS:
        plans.clear()
    effects = tuple(
        each for each in write_effects(made) if _is_outside_sbuf(getattr(made, each[0]))
    )
    plan = plans.get(key)
    if plan is None:
        plan = _Plan(type(made), tuple(tensors), tuple(floats), asked, effects)
        plans[key] = plan
    plan.fields[made.__dict__["accumulate"] if is_asked else None] = dict(made.__dict__)


def _is_outside_sbuf(operand: Any) -> bool:
    return operand is not None and getattr(operand, "memory", None) is not Memory.SBUF


def _is_plain(value: Any) -> bool:
    """Whether an instruction takes the same from all values that are equal and of one type."""
    if value.__class__ is tuple:
        return all(each.__class__ is int for each in value)
    return value.__class__ in PLAIN or isinstance(value, Enum)
