"""From the arguments of a call to a legal instruction, simulated or recorded alike.

Legality is that of the instruction's declaration. It depends on the shapes, dtypes, memories and
partitions of operands and on attributes, never on offsets within tiles, and is cached by those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from glia.arch import Arch
from glia.base.affine import Affine
from glia.base.fast_objects import with_defaults
from glia.base.loc import Loc
from glia.isa.instructions.dma import DmaCopy, Transfer
from glia.isa.instructions.sync import RegisterAlu, RegisterLoad
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, merged
from glia.isa.rules import MOST_DIMS
from glia.machine.legal_instruction import violations
from glia.machine.queues import QUEUE_OWNERS
from glia.nki.names.enums import engine
from glia.nki.names.errors import BrokenRule, IndexNotInTable, NotInNki
from glia.nki.names.operators import OperatorToken, operator_name
from glia.nki.session.program_checks import out_of_bounds_text
from glia.nki.session.session import Session, caller
from glia.nki.tensors.dynamic_offsets import Indirection
from glia.nki.tensors.indirect import StagedOperand, indirect_violation, stage_operand, staging_copy
from glia.nki.tensors.nki_object import NkiInstruction
from glia.nki.tensors.nki_tensor import NkiTensor
from glia.nki.tensors.registers import VirtualRegister
from glia.nki.tensors.views import NO_ELEMENT, pattern_signature

Arguments = dict[str, Any]
MAX_SIGNATURES = 1 << 16  # legal signatures cached

OWN_NAMES: Mapping[str, str] = MappingProxyType({})
_LEGAL_ENGINES: dict[tuple[Any, ...], str] = {}  # signature -> the engine that runs it


def issue(
    session: Session,
    function: str,
    kind: type[Instr],
    arguments: Arguments,
    chosen: engine = engine.unknown,
    *,
    queue: str = "",
    skips: bool = False,
    names: Mapping[str, str] = OWN_NAMES,
) -> NkiInstruction:
    """Issue the instruction on the chosen engine, or on the first legal one.

    `skips` predicates it on the scalar indices of its operands being in bounds; `names` are the
    documented ones of fields with another name, for errors. BrokenRule when no
    engine may run it, NotInNki for arguments of the wrong type. One that would write no element is
    not issued.
    """
    loc = caller()
    operands = _operands_of(kind, arguments, loc)
    fields, indirect = operands.fields, operands.indirect
    if operands.empty:
        _require_empty_results(kind, arguments, operands.empty)
        return NkiInstruction(with_defaults(kind, {**fields, "loc": loc}))
    loads = [
        _bind_index_register(session, function, fields, name, tensor) for name, tensor in indirect
    ]
    signature = (kind, session.arch.name, chosen._value_, queue, *operands.signature)
    on = _LEGAL_ENGINES.get(signature)
    if on is None:
        on = _select_engine(session.arch, function, kind, fields, chosen, loc, signature, names)
    names_engine = chosen is not engine.unknown
    if names_engine:
        session.engines_chosen.add(loc)
    fields["on"], fields["loc"] = on, loc
    if kind.arrives_by_dma or issubclass(kind, Transfer):
        fields["queue"] = queue or f"dma.{on}"
        if kind is DmaCopy and chosen in (engine.unknown, engine.dma):
            fields["queue"] = _queue_for(fields["dst"], fields["src"])
            fields["on"] = QUEUE_OWNERS[fields["queue"]]
    instruction = with_defaults(kind, fields)
    _gather_staged(session, function, instruction, operands.staged, names)
    if indirect:
        _issue_indirect(session, instruction, indirect, loads, skips)
    else:
        session.issue(instruction)
    _scatter_staged(session, function, instruction, operands.staged)
    return NkiInstruction(instruction, names_engine=names_engine)


def _queue_for(dst: Pattern, src: Pattern) -> str:
    """The default queue: what moves on chip waits for others there, not before loads."""
    if dst.tile.memory is Memory.HBM:
        return "store"
    return "load" if src.tile.memory is Memory.HBM else "move"


@dataclass(slots=True)
class _Operands:
    """The arguments of a call as fields of the instruction, with their signature for rules."""

    fields: Arguments
    signature: list[Any]
    indirect: list[tuple[str, NkiTensor]]  # operands that start at a run-time index
    staged: list[StagedOperand]  # operands with elements selected by an index
    empty: list[NkiTensor]  # operands that name no element


def _operands_of(kind: type[Instr], arguments: Arguments, loc: Loc) -> _Operands:
    """The arguments converted; NotInNki for one of the wrong type."""
    fields: Arguments = {}
    signature: list[Any] = []
    indirect: list[tuple[str, NkiTensor]] = []
    staged: list[StagedOperand] = []
    empty: list[NkiTensor] = []
    for name, value in arguments.items():
        if value.__class__ is not NkiTensor:
            converted = value if value.__class__ is str else attribute(value, loc)
            fields[name] = converted
            signature.append(
                converted if converted.__class__ is str else _signature_part(converted)
            )
            continue
        if value.indirection is not None and value.is_element_gather:
            staged.append(stage_operand(name, value))
            value = staged[-1].tile
        fields[name] = value.pattern
        signature.append(value.signature)
        if value.fault == NO_ELEMENT:
            empty.append(value)
        elif value.fault:
            value.require_inside()
        if value.indirection is not None:
            indirect.append((name, value))
        elif len(value.dims) > MOST_DIMS and kind.arrives != "natural":
            fields[name] = fold_dims(value.pattern)
    return _Operands(fields, signature, indirect, staged, empty)


def _require_empty_results(kind: type[Instr], arguments: Arguments, empty: list[NkiTensor]) -> None:
    """ImpossibleTensor, which names an empty tensor, unless all that is written is empty."""
    for name, declared in kind.operand_declarations.items():
        value = arguments.get(name)
        if declared.access == "reads" or not isinstance(value, NkiTensor):
            continue
        if value.fault != NO_ELEMENT:
            empty[0].require_inside()


def _signature_part(value: Any) -> Any:
    """The part of the signature for a value other than a tensor, such as a tuple of patterns."""
    if isinstance(value, tuple) and value and isinstance(value[0], Pattern):
        return tuple([pattern_signature(each) for each in value])
    return (value.__class__, value)


def attribute(value: Any, loc: Loc) -> Any:
    """An argument as an attribute of the instruction; NotInNki for unsupported types."""
    if value is None or isinstance(value, int | float | str | Affine):
        return value
    if callable(value) or isinstance(value, OperatorToken):
        known = operator_name(value)
        if known is not None:
            return known
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return tuple(attribute(each, loc) for each in value)
    if isinstance(value, NkiTensor):
        if value.indirection is not None:
            feature = "a view at a run-time index in a list of tensors, whose addresses are fixed"
            raise NotInNki(feature=f"{feature} (copy it with nki.isa.dma_copy first)", loc=loc)
        value.require_inside()
        return value.pattern
    if isinstance(value, VirtualRegister):
        return value.expression
    if isinstance(value, Enum):
        return value.name
    raise NotInNki(feature=f"an argument of type {type(value).__name__}", loc=loc)


def _select_engine(
    arch: Arch,
    function: str,
    kind: type[Instr],
    fields: Arguments,
    chosen: engine,
    loc: Loc,
    key: tuple[Any, ...],
    names: Mapping[str, str],
) -> str:
    """A legal engine of the instruction, exact ones first; BrokenRule when there is none."""
    _check_partitions(arch, function, fields, loc, names)
    engines: tuple[str, ...] = (chosen.name,)
    if chosen in (engine.unknown, engine.dma):
        engines = (kind.engine, *(each for each in kind.engines if each != kind.engine))
    candidates = [with_defaults(kind, {**fields, "on": name, "loc": loc}) for name in engines]
    broken = [_rule_violations(each, arch, names) for each in candidates]
    legal = [each for each, found in zip(candidates, broken, strict=True) if not found]
    if not legal:
        refuse(function, broken[0][0], loc)
    on = next((each for each in legal if each.is_exact), legal[0]).on
    if len(_LEGAL_ENGINES) >= MAX_SIGNATURES:
        _LEGAL_ENGINES.clear()
    _LEGAL_ENGINES[key] = on
    return on


def _check_partitions(
    arch: Arch, function: str, fields: Arguments, loc: Loc, names: Mapping[str, str]
) -> None:
    """Refuse too many partitions with the documented text, which programs match."""
    for name, value in fields.items():
        for pattern in value if isinstance(value, tuple) else (value,):
            if isinstance(pattern, Pattern) and pattern.memory is not Memory.HBM:
                count = max(pattern.partitions, pattern.tile.partitions)
                if count > arch.partitions:
                    operand = names.get(name, name)
                    refuse(
                        function,
                        f"{function} {operand} partition dimension {count} exceeds maximum "
                        f"{arch.partitions}\n  cure: loop over slices of {arch.partitions} "
                        "partitions, nl.tile_size.pmax",
                        loc,
                    )


def _rule_violations(instruction: Instr, arch: Arch, names: Mapping[str, str]) -> list[str]:
    try:
        return violations(instruction, arch, names)
    except (TypeError, ValueError, AttributeError) as problem:
        return [f"an argument has the wrong type: {problem}"]


def refuse(function: str, rule: str, loc: Loc | None = None) -> NoReturn:
    """Raise BrokenRule at the user's line."""
    name = f"nki.isa.{function}"
    raise BrokenRule(rule=rule, function=function, instruction=name, loc=loc or caller())


def fold_dims(pattern: Pattern) -> Pattern:
    """The pattern with contiguous free dimensions merged."""
    fixed = 0 if pattern.memory is Memory.HBM else 1
    dims = merged(pattern.dims[fixed:]) or ((1, 1),)
    return replace(pattern, dims=(*pattern.dims[:fixed], *dims))


# --- run-time indices ---------------------------------------------------------------------------


def _gather_staged(
    session: Session,
    function: str,
    instruction: Instr,
    staged: list[StagedOperand],
    names: Mapping[str, str],
) -> None:
    """Gather indirect operands into their staging tiles before the instruction, if legal."""
    if staged and (broken := indirect_violation(session.arch, instruction, staged, names)):
        refuse(function, f"{function} {broken}", instruction.loc)
    for each in staged:
        if instruction.access(each.name) != "writes":
            _issue_staging_copy(session, function, instruction, each, is_write=False)


def _scatter_staged(
    session: Session, function: str, instruction: Instr, staged: list[StagedOperand]
) -> None:
    """Scatter indirect operands from their staging tiles after the instruction."""
    for each in staged:
        if instruction.access(each.name) != "reads":
            _issue_staging_copy(session, function, instruction, each, is_write=True)
            if instruction.sums:
                session.scattered_tiles.add(each.table.tile.name)


def _issue_staging_copy(
    session: Session, function: str, instruction: Instr, each: StagedOperand, is_write: bool
) -> None:
    kind, fields = staging_copy(instruction, each, is_write)
    on = instruction.runs_on if instruction.runs_on in kind.engines else kind.engine
    issue(session, function, kind, fields, engine[on])


def _bind_index_register(
    session: Session, function: str, fields: Arguments, name: str, tensor: NkiTensor
) -> str:
    """Offset an operand by a new register times its step; the register's name."""
    indirection = tensor.indirection
    assert indirection is not None
    if indirection.is_vector:
        refuse(function, f"{function} takes no operand with an index for each row ({name})")
    register = session.new_register("index")
    distance = Affine.of(register) * indirection.step
    pattern = tensor.pattern
    if indirection.is_partition:
        fields[name] = replace(pattern, partition=pattern.partition + distance)
    else:
        fields[name] = replace(pattern, offset=pattern.offset + distance)
    return register


def _issue_indirect(
    session: Session,
    instruction: Instr,
    indirect: list[tuple[str, NkiTensor]],
    registers: list[str],
    skips: bool,
) -> None:
    """Load the registers on the instruction's engine, then issue it."""
    condition: Affine | None = None
    for (_, tensor), register in zip(indirect, registers, strict=True):
        indirection = tensor.indirection
        assert indirection is not None
        load_index(session, indirection, register, instruction)
        if skips:
            condition = _emit_bounds_test(
                session, register, indirection.rows, instruction, condition
            )
        elif session.is_eager:
            check_index(session, tensor, Affine.of(register), instruction.loc)
    if condition is None:
        session.issue(instruction)
    else:
        session.issue_if(condition, instruction)


def load_index(session: Session, indirection: Indirection, register: str, user: Instr) -> None:
    """Load the element of a scalar index into a register of the engine that uses it."""
    index = indirection.index.pattern
    load = RegisterLoad(register=register, src=index, on=user.on, loc=user.loc)
    broken = violations(load, session.arch)
    if broken:
        refuse(user.mnemonic(), f"a dynamic index: {broken[0]}", user.loc)
    session.issue(load)


def _emit_bounds_test(
    session: Session, register: str, rows: int, user: Instr, before: Affine | None
) -> Affine:
    """A register that is 1 when the index is in bounds and the condition before held."""
    result = session.new_register("inside")
    value = Affine.of(register)
    lower = session.new_register("inside")
    tests: list[tuple[str, str, int]] = [(result, "less", rows), (lower, "greater_equal", 0)]
    steps = [
        RegisterAlu(register=name, op=op, a=value, b=bound, on=user.on, loc=user.loc)
        for name, op, bound in tests
    ]
    for other in (Affine.of(lower), before):
        if other is not None:
            steps.append(
                RegisterAlu(
                    register=result, op="bitwise_and", a=Affine.of(result), b=other,
                    on=user.on, loc=user.loc,
                )
            )  # fmt: skip
    for step in steps:
        session.issue(step)
    return Affine.of(result)


def check_index(session: Session, tensor: NkiTensor, index: Affine, loc: Loc) -> None:
    """IndexNotInTable when the current value of an index is out of the tensor's rows."""
    indirection = tensor.indirection
    assert indirection is not None
    value = session.value_of(index)
    if value is not None and not 0 <= value < indirection.rows:
        refuse_index(tensor, value, loc)


def refuse_index(tensor: NkiTensor, row: int, loc: Loc) -> NoReturn:
    """Raise IndexNotInTable; the text counts elements, as the documented simulator does."""
    indirection = tensor.indirection
    assert indirection is not None
    step, rows = indirection.step, indirection.rows
    problem, place = (
        out_of_bounds_text(row * step, rows * step),
        f", which names row {row} of {rows}",
    )
    raise IndexNotInTable(problem=problem, row=place, loc=loc)
