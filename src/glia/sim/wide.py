"""A program with its low-precision tensors held in float32, to tell rounding from wrong logic.

This is the high-precision mode of the public simulator (NKI_PRECISE_FP=0). Every tensor has memory
of its own then, so that tiles which share bytes on purpose must not be run this way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from glia.base.dtype import BF16, F8E3M4, F8E4M3, F8E4M3FN, F8E5M2, F32, TF32, DType
from glia.base.errors import InternalError
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Binding, Program, Statement, walk, with_blocks
from glia.sim.policy import Policy

Array = np.ndarray[Any, Any]
LOW_PRECISION = (TF32, BF16, F8E5M2, F8E4M3, F8E4M3FN, F8E3M4)


def as_held(
    programs: Sequence[Program], inputs: Sequence[Mapping[str, Array]], policy: Policy | None
) -> tuple[list[Program], list[Mapping[str, Array]]]:
    """Programs and inputs as a policy holds them.

    InternalError for several programs that are not to be precise: they share HBM by address.
    """
    if policy is None or policy.is_precise:
        return list(programs), list(inputs)
    if len(programs) != 1:
        raise InternalError("programs of several cores share HBM, which float32 does not keep")
    wide = keep_wide(programs[0])
    return [wide], [_widen_inputs(wide, inputs[0])]


def keep_wide(program: Program) -> Program:
    """The program with low-precision tiles, inputs, outputs and constants in float32.

    A tile whose bits are also read or written as another dtype stays as it is, and so does one in
    HBM that shares bytes with another.
    """
    wide = {name: _wide_tile(program.tiles[name]) for name in _widened(program)}
    addresses = {name: at for name, at in program.addresses.items() if name not in wide}
    constants = {
        name: np.asarray(array).astype(np.float32) if name in wide else array
        for name, array in program.constants.items()
    }
    return replace(
        program,
        tiles={name: wide.get(name, tile) for name, tile in program.tiles.items()},
        inputs=tuple(_wide_binding(binding, wide) for binding in program.inputs),
        outputs=tuple(_wide_binding(binding, wide) for binding in program.outputs),
        constants=constants,
        body=_block(program.body, wide),
        addresses=addresses,
    )


def _widen_inputs(program: Program, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs of the program before `keep_wide` as the one after it takes them."""
    dtypes = {binding.name: binding.dtype for binding in program.inputs}
    return {
        name: np.asarray(array).astype(np.float32) if dtypes.get(name) is F32 else array
        for name, array in inputs.items()
    }


def _widened(program: Program) -> set[str]:
    """The tiles that are only ever used as floats of low precision, in bytes of their own."""
    seen: dict[str, set[DType]] = {name: {tile.dtype} for name, tile in program.tiles.items()}
    for instr in walk(program.body):
        for _, _, pattern in instr.operands():
            seen[pattern.tile.name].add(pattern.dtype)
    for binding in (*program.inputs, *program.outputs):
        seen[binding.tile.name].add(binding.dtype)
    shared = _sharing_hbm(program)
    return {
        name
        for name, dtypes in seen.items()
        if len(dtypes) == 1 and dtypes <= set(LOW_PRECISION) and name not in shared
    }


def _sharing_hbm(program: Program) -> set[str]:
    """HBM tiles that overlap another by address."""
    placed = sorted(
        (program.addresses[tile.name], tile.bytes, tile.name)
        for tile in program.tiles.values()
        if tile.memory is Memory.HBM and tile.name in program.addresses
    )
    shared: set[str] = set()
    end, last = 0, ""
    for start, count, name in placed:
        if start < end:
            shared |= {name, last}
        if start + count > end:
            end, last = start + count, name
    return shared


def _wide_tile(tile: Tile) -> Tile:
    return replace(tile, dtype=F32)


def _wide_binding(binding: Binding, wide: Mapping[str, Tile]) -> Binding:
    tile = wide.get(binding.tile.name)
    return binding if tile is None else replace(binding, tile=tile, dtype=F32)


def _block(body: tuple[Statement, ...], wide: Mapping[str, Tile]) -> tuple[Statement, ...]:
    return tuple(_statement(statement, wide) for statement in body)


def _statement(statement: Statement, wide: Mapping[str, Tile]) -> Statement:
    if isinstance(statement, Instr):
        return _instruction(statement, wide)
    return with_blocks(statement, lambda block: _block(block, wide))


def _instruction(instr: Instr, wide: Mapping[str, Tile]) -> Instr:
    changes: dict[str, Any] = {}
    for name, declared in instr.operand_declarations.items():
        value = getattr(instr, name)
        if declared.is_several:
            changes[name] = tuple(_pattern(each, wide) for each in value)
        elif isinstance(value, Pattern):
            changes[name] = _pattern(value, wide)
    return replace(instr, **changes)


def _pattern(pattern: Pattern, wide: Mapping[str, Tile]) -> Pattern:
    tile = wide.get(pattern.tile.name)
    return pattern if tile is None else replace(pattern, tile=tile, dtype=F32)
