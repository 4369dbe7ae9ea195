"""A program with its low-precision tensors held in float32, to tell rounding from wrong logic.

This is the high-precision mode of the public simulator (NKI_PRECISE_FP=0). Every tensor has memory
of its own then, so that tiles which share bytes on purpose must not be run this way.
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
from glia.sim.memory import DeviceMemory
from glia.sim.policy import Policy

Array = np.ndarray[Any, Any]
_Held = TypeVar("_Held", Binding, Pattern)
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
    wide = {name: replace(program.tiles[name], dtype=F32) for name in _widened(program)}
    addresses = {name: at for name, at in program.addresses.items() if name not in wide}
    constants = {
        name: np.asarray(array).astype(np.float32) if name in wide else array
        for name, array in program.constants.items()
    }

    def widened(held: _Held) -> _Held:
        tile = wide.get(held.tile.name)
        return held if tile is None else replace(held, tile=tile, dtype=F32)

    return replace(
        program,
        tiles={name: wide.get(name, tile) for name, tile in program.tiles.items()},
        inputs=tuple(widened(binding) for binding in program.inputs),
        outputs=tuple(widened(binding) for binding in program.outputs),
        constants=constants,
        body=tuple(map_patterns(statement, widened) for statement in program.body),
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
        for pattern in instr.patterns():
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
    hbm, addresses = DeviceMemory([program]), program.addresses
    in_hbm = [name for name, tile in program.tiles.items() if tile.memory is Memory.HBM]
    return {n for n in in_hbm if n in addresses and not hbm.is_alone(addresses[n])}
