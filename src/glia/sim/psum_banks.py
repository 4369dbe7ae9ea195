"""Run-time checks that matrix products stay within one PSUM bank."""

from __future__ import annotations

from collections.abc import Callable

from glia.arch import Arch
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, reach
from glia.machine.text import print_instruction
from glia.sim.memory import Environment, Memories, evaluator
from glia.sim.policy import AccessOutOfBounds


def bank_checks(
    instr: Instr, memories: Memories, arch: Arch
) -> list[Callable[[Environment], None]]:
    """Checks of PSUM writes by the Tensor Engine at addresses unknown to verification."""
    if instr.runs_on != "tensor" or arch.capabilities.has_products_across_banks:
        return []
    return [
        _check(instr, pattern, address, arch.psum_bank_bytes)
        for pattern in instr.written_patterns()
        if pattern.memory is Memory.PSUM
        and not pattern.offset.is_constant
        and (address := memories.address(pattern.tile)) is not None
    ]


def _check(
    instr: Instr, pattern: Pattern, address: int, bank: int
) -> Callable[[Environment], None]:
    offset, width = evaluator(pattern.offset), pattern.dtype.bytes
    low, high = reach(pattern.dims[1:])

    def check(environment: Environment) -> None:
        start = address + (offset(environment) + low) * width
        end = address + (offset(environment) + high + 1) * width
        if start // bank != (end - 1) // bank:
            raise AccessOutOfBounds(
                f"bytes {start}..{end - 1} of PSUM lie in more than one bank of {bank}",
                instruction=print_instruction(instr),
                loc=instr.loc,
            )

    return check
