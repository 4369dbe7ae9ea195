"""What machine code relies on without looking: how tiles, bindings and patterns fit together.

A NEFF's program has been checked against all laws when it is read; one that was made in this
process need not have been.
"""

from __future__ import annotations

import math

from glia.arch import Arch
from glia.base.errors import InternalError
from glia.isa.kit import Instr
from glia.isa.operand import Memory
from glia.machine.ir import Block, Loop, Program, blocks
from glia.sim.memory import elements_message, oversized


def require_sound(program: Program, arch: Arch) -> None:
    """InternalError for a program whose machine code could leave the memory of its tensors.

    Where a pattern begins is checked by the table and its loop; here is what they take as given.
    """
    for tile in program.tiles.values():
        if program.addresses.get(tile.name, 0) < 0:
            raise InternalError(f"tile {tile.name} lies below address 0")
        if tile.memory is not Memory.HBM and tile.partitions > arch.partitions:
            raise InternalError(f"tile {tile.name} has {tile.partitions} partitions")
    for binding in (*program.inputs, *program.outputs):
        held = math.prod(binding.shape) * binding.dtype.bytes
        if min(binding.shape, default=1) < 0 or held != binding.tile.bytes:
            raise InternalError(
                f"{binding.name} has {held} bytes, its tile has {binding.tile.bytes}"
            )
    _require_own_variables(program.body, ())
    for instr in program.instructions():
        for _, _, pattern in instr.operands():
            if any(count < 1 for _, count in pattern.dims):
                raise InternalError(f"a pattern of {pattern.tile.name} has no elements")
        if (endless := oversized(instr)) is not None:
            # Machine code would hardly end, and cannot be interrupted
            raise InternalError(elements_message(endless))


def _require_own_variables(body: Block, around: tuple[str, ...]) -> None:
    """InternalError for a loop that changes the variable of one around it, which might not end."""
    for statement in body:
        if isinstance(statement, Instr):
            continue
        own: tuple[str, ...] = ()
        if isinstance(statement, Loop):
            own = (statement.variable,)
            if statement.variable in around:
                raise InternalError(f"loop {statement.variable} hides a loop of the same name")
        for block in blocks(statement):
            _require_own_variables(block, (*around, *own))
