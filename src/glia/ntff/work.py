"""What one execution of an instruction moves and computes, as the profiler's tables count it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from glia.isa.instructions.dma import Transfer
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern
from glia.timing.costs import cost_transfer, matmul_flops, transpose_flops

if TYPE_CHECKING:
    from glia.arch import Arch

# Throughput of bfloat16 over that of a dtype; source: profile schema, adjusted_flops. Others: 1
ADJUSTED_FLOPS = {"f32": 4.0, "u8": 0.5}
ADJUSTED_FLOPS_SINCE_TRN2 = {"f8e3m4": 0.5, "f8e4m3": 0.5, "f8e5m2": 0.5}
ADJUSTED_FLOPS_OF_MICROSCALING = 0.25

# What the profiler calls instructions whose names its pages give, by engine; others in capitals
OPCODES = {
    ("tensor", "nc_matmul"): "MATMUL",
    ("tensor", "nc_matmul_mx"): "MATMUL",
    ("tensor", "nc_transpose"): "MATMUL",
    ("scalar", "activation"): "ACTIVATE",
}


def profiler_opcode(engine: str, opcode: str) -> str:
    """The opcode of an engine's instruction as the profiler spells it."""
    return OPCODES.get((engine, opcode), opcode.upper())


@dataclass(frozen=True)
class Work:
    """Bytes, operations and descriptors of one execution, or the sums over several.

    `read` and `written` are bytes by memory; `generator` is "" for descriptors made ahead of the
    run, else "software" or "hardware".
    """

    read: Counter[Memory] = field(default_factory=Counter)
    written: Counter[Memory] = field(default_factory=Counter)
    from_psum_to_sbuf: int = 0
    flops: int = 0  # transpositions through the array included
    transpose_flops: int = 0
    adjusted: float = 1.0  # the multiplier of its operations
    moved: int = 0  # by DMA
    packets: int = 0
    generator: str = ""


def work_of(instr: Instr, arch: Arch) -> Work:
    """The work of one execution."""
    if isinstance(instr, Transfer):
        return _work_of_transfer(instr, arch)
    read = _bytes_by_memory(instr.read_patterns())
    written = _bytes_by_memory(instr.written_patterns())
    drains = read[Memory.PSUM] and written[Memory.SBUF]
    transposed = transpose_flops(instr)
    return Work(
        read=read,
        written=written,
        from_psum_to_sbuf=written[Memory.SBUF] if drains else 0,
        flops=matmul_flops(instr) + transposed,
        transpose_flops=transposed,
        adjusted=_flops_multiplier(instr, arch),
    )


def _work_of_transfer(instr: Transfer, arch: Arch) -> Work:
    cost = cost_transfer(instr, arch)
    on_chip = {
        kind: _bytes_by_memory(p for p in patterns if p.memory is not Memory.HBM)
        for kind, patterns in (("read", instr.read_patterns()), ("write", instr.written_patterns()))
    }
    on_chip["read"][Memory.HBM] = cost.read_bytes
    on_chip["write"][Memory.HBM] = cost.written_bytes
    return Work(
        read=on_chip["read"],
        written=on_chip["write"],
        moved=cost.moved_bytes,
        packets=instr.descriptors(),
        generator=cost.generator,
    )


def _bytes_by_memory(patterns: Iterator[Pattern]) -> Counter[Memory]:
    found: Counter[Memory] = Counter()
    for pattern in patterns:
        found[pattern.memory] += pattern.elements * pattern.dtype.bytes
    return found


def _flops_multiplier(instr: Instr, arch: Arch) -> float:
    operand = getattr(instr, "moving", None) or next(iter(instr.read_patterns()), None)
    if not isinstance(operand, Pattern):
        return 1.0
    if "_mx" in instr.mnemonic():
        return ADJUSTED_FLOPS_OF_MICROSCALING
    known = ADJUSTED_FLOPS
    if arch.capabilities.has_double_row:
        known = known | ADJUSTED_FLOPS_SINCE_TRN2
    return known.get(operand.dtype.name, 1.0)
