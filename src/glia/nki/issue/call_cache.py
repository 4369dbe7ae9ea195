"""Call cache: a repeated call of an nki.isa function instantiates a template of its instruction.

The instruction depends on the layouts (shape, dtype, memory, partition) of the tensors, on the
other arguments and, for a product with implicit `accumulate`, on whether its destination holds a
sum. It does not depend on offsets within tiles: a hit copies the template with the patterns of the
new call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import FunctionType, NoneType
from typing import Any

import numpy as np

from glia.base.fast_objects import allocate, fields_of
from glia.base.loc import Loc
from glia.isa.kit import Instr
from glia.isa.operand import Memory
from glia.nki.names.operators import OperatorToken
from glia.nki.session.session import CURRENT, Session, WriteEffects, caller, write_effects
from glia.nki.tensors.nki_object import NkiInstruction
from glia.nki.tensors.nki_tensor import NkiTensor

Arguments = dict[str, Any]
Key = tuple[Any, ...]

MAX_TEMPLATES = 1 << 12  # of one function
# Types whose equal values are interchangeable.
IMMUTABLE_TYPES = (int, bool, str, NoneType, FunctionType, np.ufunc, OperatorToken)


@dataclass(frozen=True)
class AccumulateQuery:
    """How a product resolves an `accumulate` that the call leaves open.

    `applies` says whether the arguments leave it to the contents of dst, `resolve` what it is then.
    """

    applies: Callable[[Arguments], bool]
    resolve: Callable[[NkiTensor, Session, Loc], bool | None]


@dataclass(frozen=True)
class IssueFunction:
    """A function that issues an instruction.

    `issue_uncached` binds and checks the arguments and issues it; `renamed` maps those of its
    `parameters` whose field of the instruction has another name.
    """

    issue_uncached: Callable[[tuple[Any, ...], Arguments], NkiInstruction]
    parameters: tuple[str, ...]
    renamed: Mapping[str, str]
    accumulate_query: AccumulateQuery | None = None


@dataclass(frozen=True)
class _Template:
    """An instruction without its `tensors` and `floats`: (field, position of the argument) of each.

    `fields` has the other fields by the value of `accumulate` where the contents of the argument at
    position `queried` decide it, else by None. `effects` are the write effects; `names_engine` is
    that of NkiInstruction.
    """

    kind: type[Instr]
    tensors: tuple[tuple[str, int], ...]
    floats: tuple[tuple[str, int], ...]
    queried: int | None
    effects: WriteEffects
    names_engine: bool
    fields: dict[bool | None, Arguments] = field(default_factory=dict)


def memoize_calls(issuing: IssueFunction) -> Callable[..., NkiInstruction]:
    """The function with a call cache; its attribute `issue_uncached` is the one without."""
    templates: dict[Key, _Template] = {}
    issue_uncached, running_session = issuing.issue_uncached, CURRENT.get
    resolve = (
        issuing.accumulate_query.resolve if issuing.accumulate_query is not None else _no_query
    )

    def issue_and_cache(key: Key, args: tuple[Any, ...], kwargs: Arguments) -> NkiInstruction:
        made = issue_uncached(args, kwargs)
        _add_template(templates, key, issuing, args, kwargs, made)
        return made

    def function(*args: Any, **kwargs: Any) -> NkiInstruction:
        session = running_session()
        if session is None:
            return issue_uncached(args, kwargs)
        if "name" in kwargs:
            name = kwargs.pop("name")
            made = function(*args, **kwargs)
            return made if name is None else _register_name(session, name, made)
        values = (*args, *kwargs.values()) if kwargs else args
        parts: list[Any] = [session.arch_name, len(args), *kwargs]
        for value in values:
            if value.__class__ is NkiTensor:
                if value.indirection is not None or value.fault:
                    return issue_uncached(args, kwargs)
                parts.append(value.layout)
            elif value.__class__ is tuple:
                parts += tuple, value, *map(type, value)
            else:
                parts += value.__class__, value
        key = tuple(parts)
        try:
            template = templates.get(key)
        except TypeError:  # an unhashable argument
            return issue_uncached(args, kwargs)
        if template is None:
            return issue_and_cache(key, args, kwargs)
        loc = caller(2)
        adds = None if template.queried is None else resolve(values[template.queried], session, loc)
        fields = template.fields.get(adds)
        if fields is None:
            return issue_and_cache(key, args, kwargs)
        instruction = allocate(template.kind)
        own = fields_of(instruction)
        own.update(fields)
        for name, position in template.tensors:
            value = values[position]
            own[name] = value._pattern or value.pattern
        for name, position in template.floats:
            own[name] = values[position]
        own["loc"] = loc
        if template.names_engine:
            session.engines_chosen.add(loc)
        # accumulating leaves the state of the destination as it is
        session.issue(instruction, () if adds else template.effects)
        result = allocate(NkiInstruction)
        result.handle = instruction
        result.names_engine = template.names_engine
        return result

    memoized: Any = function
    memoized.issue_uncached = lambda *args, **kwargs: issue_uncached(args, kwargs)
    return function


def _no_query(dst: NkiTensor, session: Session, loc: Loc) -> None:
    """`resolve` of functions that do not accumulate; never called."""


def accept_name(function: Callable[..., NkiInstruction]) -> Callable[..., NkiInstruction]:
    """The function with a parameter `name`, which names its instruction."""

    def named(*args: Any, name: str | None = None, **kwargs: Any) -> NkiInstruction:
        made = function(*args, **kwargs)
        return made if name is None else _register_name(CURRENT.get(), name, made)

    return named


def _register_name(session: Session | None, name: str, made: NkiInstruction) -> NkiInstruction:
    """Record the instruction under its name, for with_schedule."""
    assert session is not None
    session.instructions_by_name.setdefault(str(name), []).append(made.handle)
    return made


def _add_template(
    templates: dict[Key, _Template],
    key: Key,
    issuing: IssueFunction,
    args: tuple[Any, ...],
    kwargs: Arguments,
    issued: NkiInstruction,
) -> None:
    """Add the template of an instruction, unless it depends on more than the key."""
    made = issued.handle
    given = dict(zip(issuing.parameters, args, strict=False)) | kwargs
    tensors, floats = [], []
    for position, (name, value) in enumerate(given.items()):
        at = issuing.renamed.get(name, name), position
        if value.__class__ is NkiTensor and getattr(made, at[0], None) is value.pattern:
            tensors.append(at)
        elif value.__class__ is float and getattr(made, at[0], None) is value:
            floats.append(at)
        elif not _is_immutable(value):
            return
    applies = issuing.accumulate_query is not None and issuing.accumulate_query.applies(given)
    queried = list(given).index("dst") if applies else None
    if len(templates) >= MAX_TEMPLATES:
        templates.clear()
    written = write_effects(made)
    effects = tuple(each for each in written if _is_outside_sbuf(getattr(made, each[0])))
    template = templates.get(key)
    if template is None:
        template = _Template(
            type(made), tuple(tensors), tuple(floats), queried, effects, issued.names_engine
        )
        templates[key] = template
    template.fields[vars(made)["accumulate"] if applies else None] = vars(made).copy()


def _is_outside_sbuf(operand: Any) -> bool:
    return operand is not None and getattr(operand, "memory", None) is not Memory.SBUF


def _is_immutable(value: Any) -> bool:
    """Whether equal values of this type always give the same field of an instruction."""
    if value.__class__ is tuple:
        return all(each.__class__ is int for each in value)
    return value.__class__ in IMMUTABLE_TYPES or isinstance(value, Enum)
