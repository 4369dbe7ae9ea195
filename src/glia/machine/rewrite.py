"""Rewriting instructions: other tiles, other variables, added waits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from glia.base.affine import Affine
from glia.isa.kit import Instr
from glia.isa.operand import Pattern, Tile
from glia.machine.ir import Branch, Loop, Statement, While


def substitute(
    statement: Statement, tiles: Mapping[str, Tile], variables: Mapping[str, Affine]
) -> Statement:
    """The statement with tiles and variables replaced by name, bodies included."""
    if isinstance(statement, Loop):
        body = tuple(substitute(s, tiles, variables) for s in statement.body)
        return dataclasses.replace(statement, body=body)
    if isinstance(statement, While):
        condition = tuple(substitute(s, tiles, variables) for s in statement.condition)
        body = tuple(substitute(s, tiles, variables) for s in statement.body)
        return While(condition, statement.register, body)
    if isinstance(statement, Branch):
        arms = tuple(tuple(substitute(s, tiles, variables) for s in arm) for arm in statement.arms)
        return Branch(statement.register, arms)
    return substitute_instruction(statement, tiles, variables)


def map_patterns(statement: Statement, change: Callable[[Pattern], Pattern]) -> Statement:
    """The statement with every pattern changed, bodies included."""
    if isinstance(statement, Loop):
        body = tuple(map_patterns(each, change) for each in statement.body)
        return dataclasses.replace(statement, body=body)
    if isinstance(statement, While):
        condition, body = (
            tuple(map_patterns(each, change) for each in block)
            for block in (statement.condition, statement.body)
        )
        return While(condition, statement.register, body)
    if isinstance(statement, Branch):
        arms = tuple(tuple(map_patterns(each, change) for each in arm) for arm in statement.arms)
        return Branch(statement.register, arms)
    changes: dict[str, object] = {}
    for name in (*statement.operand_declarations, *statement.attribute_names):
        value = getattr(statement, name)
        if isinstance(value, Pattern):
            changes[name] = change(value)
        elif isinstance(value, tuple) and any(isinstance(each, Pattern) for each in value):
            changes[name] = tuple(change(each) for each in value)
    return dataclasses.replace(statement, **changes) if changes else statement


def substitute_instruction(
    instruction: Instr, tiles: Mapping[str, Tile], variables: Mapping[str, Affine]
) -> Instr:
    """One instruction with tiles and variables replaced by name."""
    changes: dict[str, object] = {}
    for name in (*instruction.operand_declarations, *instruction.attribute_names):
        value = getattr(instruction, name)
        if isinstance(value, Pattern):
            changes[name] = _pattern(value, tiles, variables)
        elif isinstance(value, tuple) and any(isinstance(each, Pattern) for each in value):
            changes[name] = tuple(_pattern(each, tiles, variables) for each in value)
        elif isinstance(value, Affine):
            changes[name] = _attribute(instruction, name, value.substitute(variables))
    return dataclasses.replace(instruction, **changes) if changes else instruction


def _attribute(instruction: Instr, name: str, value: Affine) -> Affine | int | bool:
    """An affine attribute, as a plain number or flag once it names no variable."""
    if not value.is_constant:
        return value
    is_flag = "bool" in str(type(instruction).__annotations__[name])
    return bool(value.constant) if is_flag else value.constant


def _pattern(
    pattern: Pattern, tiles: Mapping[str, Tile], variables: Mapping[str, Affine]
) -> Pattern:
    return Pattern(
        tiles.get(pattern.tile.name, pattern.tile),
        pattern.dtype,
        pattern.dims,
        pattern.offset.substitute(variables),
        pattern.partition.substitute(variables),
    )
