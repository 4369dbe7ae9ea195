"""Put a program written by hand into the program of a model.

Its tiles, loop variables and registers get names of their own, its inputs and outputs become the
model's tensors. Addresses are given up: `place` gives new ones, since the model needs SBUF and PSUM
before and after. Its order and its engines stay: it is marked as fixed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from glia.base.affine import Affine
from glia.isa.kit import Instr
from glia.isa.operand import Pattern, Tile
from glia.machine.emit.builder import Builder
from glia.machine.ir import Branch, Loop, Program, Statement, While, walk
from glia.machine.rewrite import substitute_instruction


def splice(
    builder: Builder, kernel: Program, inputs: Sequence[Tile], outputs: Sequence[Tile]
) -> None:
    """Append the kernel, reading the tiles `inputs` and writing `outputs`, all in HBM.

    Where an output is an input that the kernel changes, the change is made on a copy.
    """
    tiles = {b.tile.name: tile for b, tile in zip(kernel.inputs, inputs, strict=True)}
    given = dict(tiles)
    repeated: list[tuple[Tile, Tile]] = []
    homes: dict[str, Tile] = {}
    for binding, tile in zip(kernel.outputs, outputs, strict=True):
        name = binding.tile.name
        if name in homes:
            repeated.append((tile, homes[name]))
            continue
        if name in given:
            _copy(builder, tile, given[name])
        homes[name] = tiles[name] = tile
    for name, tile in kernel.tiles.items():
        if name not in tiles:
            made = builder.tile(name, tile.memory, tile.dtype, tile.partitions, tile.elements)
            tiles[name] = made
            if name in kernel.constants:
                builder.constants[made.name] = kernel.constants[name]  # type: ignore[assignment]
    renaming = _Renaming(tiles, {name: builder.fresh(name) for name in _variables(kernel.body)})
    body = tuple(renaming.statement(each) for each in kernel.body)
    builder.block.append(Loop(builder.fresh("kernel"), 1, body, is_fixed=True))
    for tile, home in repeated:
        _copy(builder, tile, home)


def _copy(builder: Builder, dst: Tile, src: Tile) -> None:
    whole = [Pattern(tile, tile.dtype, ((1, 1), (1, tile.elements))) for tile in (dst, src)]
    builder.dma(whole[0], whole[1], "load")


def _variables(body: tuple[Statement, ...]) -> list[str]:
    """Every loop variable and register, each once."""
    found: dict[str, None] = {}
    for statement in body:
        if isinstance(statement, Loop):
            found |= dict.fromkeys([statement.variable, *_variables(statement.body)])
        elif isinstance(statement, While):
            inner = (*statement.condition, *statement.body)
            found |= dict.fromkeys([statement.register, *_variables(inner)])
        elif isinstance(statement, Branch):
            found |= dict.fromkeys([statement.register])
            for arm in statement.arms:
                found |= dict.fromkeys(_variables(arm))
    registers = (getattr(each, "register", None) for each in walk(body))
    return [*found, *(r for r in dict.fromkeys(registers) if r is not None and r not in found)]


@dataclasses.dataclass(frozen=True)
class _Renaming:
    tiles: Mapping[str, Tile]
    names: Mapping[str, str]

    def statement(self, statement: Statement) -> Statement:
        """The statement with other tiles, variables and registers."""
        if isinstance(statement, Loop):
            body = tuple(self.statement(each) for each in statement.body)
            return Loop(self.names[statement.variable], statement.trips, body)
        if isinstance(statement, While):
            condition, body = (
                tuple(self.statement(each) for each in block)
                for block in (statement.condition, statement.body)
            )
            return While(condition, self.names[statement.register], body)
        if isinstance(statement, Branch):
            arms = tuple(tuple(self.statement(each) for each in arm) for arm in statement.arms)
            return Branch(self.names[statement.register], arms)
        return self.instruction(statement)

    def instruction(self, instruction: Instr) -> Instr:
        values = {old: Affine.of(new) for old, new in self.names.items()}
        renamed = substitute_instruction(instruction, self.tiles, values)
        register = getattr(renamed, "register", None)
        if register is None:
            return renamed
        return dataclasses.replace(renamed, register=self.names[register])  # type: ignore[call-arg]
