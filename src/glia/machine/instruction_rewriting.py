"""Substitution of tiles, variables and registers in statements."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from glia.base.affine import Affine
from glia.base.fast_objects import from_fields
from glia.isa.kit import Instr, register_variable
from glia.isa.operand import Pattern, Tile
from glia.machine.ir import Block, Loop, Program, Statement, blocks, with_blocks


def substitute(
    statement: Statement, tiles: Mapping[str, Tile], variables: Mapping[str, Affine]
) -> Statement:
    """The statement with tiles and variables replaced by name, bodies included."""
    if isinstance(statement, Instr):
        return substitute_instruction(statement, tiles, variables)
    return with_blocks(statement, lambda b: tuple(substitute(s, tiles, variables) for s in b))


def map_patterns(statement: Statement, change: Callable[[Pattern], Pattern]) -> Statement:
    """The statement with every pattern changed, bodies included."""
    if not isinstance(statement, Instr):
        return with_blocks(statement, lambda b: tuple(map_patterns(each, change) for each in b))
    changes: dict[str, Any] = {}
    for name in (*statement.operand_declarations, *statement.attribute_names):
        value = getattr(statement, name)
        if isinstance(value, Pattern):
            changed: Any = change(value)
            if changed is not value:
                changes[name] = changed
        elif isinstance(value, tuple) and any(isinstance(each, Pattern) for each in value):
            changed = tuple(change(each) for each in value)
            if any(new is not old for new, old in zip(changed, value, strict=True)):
                changes[name] = changed
    return dataclasses.replace(statement, **changes) if changes else statement


def substitute_instruction(
    instruction: Instr, tiles: Mapping[str, Tile], variables: Mapping[str, Affine]
) -> Instr:
    """One instruction with tiles and variables replaced by name."""
    fields = dict(vars(instruction))
    for name in (*instruction.operand_declarations, *instruction.attribute_names):
        value = fields[name]
        if value.__class__ is Pattern:
            fields[name] = _substitute_pattern(value, tiles, variables)
        elif value.__class__ is tuple and any(each.__class__ is Pattern for each in value):
            fields[name] = tuple([_substitute_pattern(each, tiles, variables) for each in value])
        elif value.__class__ is Affine:
            fields[name] = _simplify_attribute(instruction, name, value.substitute(variables))
    return from_fields(type(instruction), fields)


def replace_tiles(instruction: Instr, tiles: Mapping[str, Tile]) -> Instr:
    """One instruction with tiles replaced by name."""
    fields = dict(vars(instruction))
    for name in instruction.operand_declarations:
        value = fields[name]
        if value.__class__ is Pattern:
            if value.tile.name in tiles:
                fields[name] = _move_pattern(value, tiles)
        elif value.__class__ is tuple and value and value[0].__class__ is Pattern:
            fields[name] = tuple([_move_pattern(each, tiles) for each in value])
    return from_fields(type(instruction), fields)


def _move_pattern(pattern: Pattern, tiles: Mapping[str, Tile]) -> Pattern:
    tile = tiles.get(pattern.tile.name, pattern.tile)
    return Pattern(tile, pattern.dtype, pattern.dims, pattern.offset, pattern.partition)


def _simplify_attribute(instruction: Instr, name: str, value: Affine) -> Affine | int | bool:
    """An affine attribute; a number or flag where it is constant."""
    if not value.is_constant:
        return value
    is_flag = "bool" in str(type(instruction).__annotations__[name])
    return bool(value.constant) if is_flag else value.constant


def _substitute_pattern(
    pattern: Pattern, tiles: Mapping[str, Tile], variables: Mapping[str, Affine]
) -> Pattern:
    offset, partition = pattern.offset, pattern.partition
    return Pattern(
        tiles.get(pattern.tile.name, pattern.tile),
        pattern.dtype,
        pattern.dims,
        offset.substitute(variables) if offset.terms else offset,
        partition.substitute(variables) if partition.terms else partition,
    )


def control_variables(body: tuple[Statement, ...]) -> list[str]:
    """Every loop variable and register of a block, each once, by its name in expressions."""
    found: dict[str, None] = {}
    for statement in body:
        if isinstance(statement, Loop):
            found[statement.variable] = None
        elif register := getattr(statement, "register", None):
            found[register_variable(register)] = None
        for block in blocks(statement):
            found |= dict.fromkeys(control_variables(block))
    return list(found)


def rename_block(
    body: tuple[Statement, ...], tiles: Mapping[str, Tile], names: Mapping[str, str]
) -> tuple[Statement, ...]:
    """A block with tiles replaced, and loop variables and registers renamed.

    `names` maps names as they are in expressions.
    """
    renaming = _Renaming(tiles, names)
    return tuple(renaming.statement(each) for each in body)


@dataclasses.dataclass(frozen=True)
class _Renaming:
    tiles: Mapping[str, Tile]
    names: Mapping[str, str]

    def register(self, register: str) -> str:
        """The new name of a register."""
        return self.names.get(register_variable(register), register)

    def statement(self, statement: Statement) -> Statement:
        """The statement with tiles replaced, variables and registers renamed."""
        if isinstance(statement, Instr):
            return self.instruction(statement)
        if isinstance(statement, Loop):
            variable = self.names.get(statement.variable, statement.variable)
            named: Statement = dataclasses.replace(statement, variable=variable)
        else:
            named = dataclasses.replace(statement, register=self.register(statement.register))
        return with_blocks(named, lambda block: tuple(map(self.statement, block)))

    def instruction(self, instruction: Instr) -> Instr:
        values = {old: Affine.of(new) for old, new in self.names.items()}
        result = substitute_instruction(instruction, self.tiles, values)
        register = getattr(result, "register", None)
        if register is None:
            return result
        changes: dict[str, Any] = {"register": self.register(register)}
        return dataclasses.replace(result, **changes)


def rewrite_at(program: Program, change: Mapping[int, Instr | None]) -> Program:
    """The program with the instructions at these positions replaced, or left out for None."""
    numbers = itertools.count()

    def block(body: Block) -> Block:
        found: list[Statement] = []
        for statement in body:
            if not isinstance(statement, Instr):
                inside = with_blocks(statement, block)
                if not isinstance(inside, Loop) or inside.body:
                    found.append(inside)
                continue
            number = next(numbers)
            if (each := change.get(number, statement)) is not None:
                found.append(each)
        return tuple(found)

    return dataclasses.replace(program, body=block(program.body))
