"""A program with its low-precision tensors stored as float32, to separate rounding from logic.

This is the high-precision mode of the public simulator (NKI_PRECISE_FP=0). Promoted tensors have
separate allocations, so programs whose tiles alias on purpose must not be run this way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from glia.base.dtype import BF16, F8E3M4, F8E4M3, F8E4M3FN, F8E5M2, F32, TF32, DType
from glia.base.errors import InternalError
from glia.isa.operand import Memory, Pattern
from glia.machine.instruction_rewriting import map_patterns
from glia.machine.ir import Binding, Program, walk
from glia.machine.passes.lifetimes import find_lifetimes
from glia.machine.scratchpad import temporaries_in_hbm
from glia.sim.policy import Policy

Array = np.ndarray[Any, Any]
_TypedOperand = TypeVar("_TypedOperand", Binding, Pattern)
LOW_PRECISION = (TF32, BF16, F8E5M2, F8E4M3, F8E4M3FN, F8E3M4)


def apply_precision(
    programs: Sequence[Program], inputs: Sequence[Mapping[str, Array]], policy: Policy | None
) -> tuple[list[Program], list[Mapping[str, Array]]]:
    """Programs and inputs promoted to float32 where the policy is not precise.

    InternalError for several programs with such a policy: they share HBM by address.
    """
    if policy is None or policy.is_precise:
        return list(programs), list(inputs)
    if len(programs) != 1:
        raise InternalError("programs that share HBM by address cannot be promoted to float32")
    wide = promote_to_float32(programs[0])
    return [wide], [_widen_inputs(wide, inputs[0])]


def promote_to_float32(program: Program) -> Program:
    """The program with low-precision tiles, inputs, outputs and constants in float32.

    Tiles that are also accessed as another dtype keep theirs, and HBM tiles that share bytes with
    another while both are live.
    """
    wide = {name: replace(program.tiles[name], dtype=F32) for name in _promotable_tiles(program)}
    addresses = {name: at for name, at in program.addresses.items() if name not in wide}
    constants = {
        name: np.asarray(array).astype(np.float32) if name in wide else array
        for name, array in program.constants.items()
    }

    def promoted(operand: _TypedOperand) -> _TypedOperand:
        tile = wide.get(operand.tile.name)
        return operand if tile is None else replace(operand, tile=tile, dtype=F32)

    return replace(
        program,
        tiles={name: wide.get(name, tile) for name, tile in program.tiles.items()},
        inputs=tuple(promoted(binding) for binding in program.inputs),
        outputs=tuple(promoted(binding) for binding in program.outputs),
        constants=constants,
        body=tuple(map_patterns(statement, promoted) for statement in program.body),
        addresses=addresses,
    )


def _widen_inputs(program: Program, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs of the original program, converted to the dtypes of the promoted one."""
    dtypes = {binding.name: binding.dtype for binding in program.inputs}
    return {
        name: np.asarray(array).astype(np.float32) if dtypes.get(name) is F32 else array
        for name, array in inputs.items()
    }


def _promotable_tiles(program: Program) -> set[str]:
    """Names of tiles that are accessed in one low-precision dtype only and share no bytes."""
    seen: dict[str, set[DType]] = {name: {tile.dtype} for name, tile in program.tiles.items()}
    for instr in walk(program.body):
        for pattern in instr.patterns():
            seen[pattern.tile.name].add(pattern.dtype)
    for binding in (*program.inputs, *program.outputs):
        seen[binding.tile.name].add(binding.dtype)
    shared = _overlapping_hbm_tiles(program)
    return {
        name
        for name, dtypes in seen.items()
        if len(dtypes) == 1 and dtypes <= set(LOW_PRECISION) and name not in shared
    }


def _overlapping_hbm_tiles(program: Program) -> set[str]:
    """Names of HBM tiles that have bytes in common with another that is live at the same time."""
    addresses, lifetimes = program.addresses, find_lifetimes(program, (Memory.HBM,))
    temporaries = {tile.name for tile in temporaries_in_hbm(program)}
    placed = sorted(
        (addresses[name], addresses[name] + tile.bytes, name)
        for name, tile in program.tiles.items()
        if tile.memory is Memory.HBM and name in addresses
    )

    def live_together(one: str, other: str) -> bool:
        if not {one, other} <= temporaries & lifetimes.keys():
            return True
        a, b = lifetimes[one], lifetimes[other]
        return a.first <= b.last and b.first <= a.last

    found: set[str] = set()
    reaching: list[tuple[int, str]] = []  # the end and name of earlier tiles
    for start, end, name in placed:
        reaching = [each for each in reaching if each[0] > start]
        found |= {
            each for _, other in reaching if live_together(name, other) for each in (name, other)
        }
        reaching.append((end, name))
    return found
