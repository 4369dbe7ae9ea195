"""Cycles of element-wise engines: published formulas, and the fast modes of later cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glia.base.dtype import BF16, F16, DType
from glia.isa.activation import ACTIVATIONS
from glia.isa.operand import Memory, Pattern

if TYPE_CHECKING:
    from glia.arch import Arch
    from glia.isa.kit import Instr

HALF = (BF16, F16)
MODES = "Trainium2 architecture guide, Vector Engine performance modes"


def engine_cycles(instr: Instr, arch: Arch) -> float:
    """Cycles from an instruction's start to the next one's: its cost, gaps and wide strides.

    The Tensor Engine multiplies float32 in two instructions, each with a gap of its own.
    """
    cycles: float = instr.cycles(arch)
    if instr.arrives_by_dma:
        return cycles
    if instr.runs_on == "tensor":
        parts = {p.dtype.bytes for p in instr.read_patterns()}
        return cycles + arch.issue_gap_cycles["tensor"] * (2 if 4 in parts else 1)
    if any(_inner_stride(p) >= arch.strided_access_bytes for p in instr.patterns()):
        cycles /= arch.strided_access_rate
    return cycles + _operand_cycles(instr, arch)


def _operand_cycles(instr: Instr, arch: Arch) -> float:
    """Cycles to read operands of one element a partition, before those that are streamed."""
    read = [p.free for p in instr.read_patterns()]
    if 1 not in read or max(read) == 1:
        return 0
    return arch.operand_read_cycles.get(instr.runs_on, 0)


def activation_table(instr: Instr) -> str:
    """The table set an instruction of the Scalar Engine needs loaded, "" for none."""
    function = getattr(instr, "function", "")
    if instr.runs_on != "scalar" or function not in ACTIVATIONS:
        return ""
    table_set = ACTIVATIONS[function].table_set
    return "" if table_set == "any" else table_set


def _inner_stride(pattern: Pattern) -> int:
    """Bytes between neighbours of an on-chip access; 0 where there is one element."""
    if pattern.memory is Memory.HBM:
        return 0
    steps = [step for step, count in pattern.dims[1:] if count > 1]
    return abs(steps[-1]) * pattern.dtype.bytes if steps else 0


def stream_cycles(arch: Arch, engine: str, elements: float) -> int:
    """Cycles of an engine to stream elements of a partition, and to get ready for more."""
    gap = round(arch.issue_gap_cycles[engine])
    return max(arch.min_issue_cycles[engine], round(elements) + gap)


def is_contiguous(pattern: Pattern) -> bool:
    """Whether the innermost dimension that moves steps by one element."""
    steps = [step for step, count in pattern.dims[1:] if count > 1]
    return not steps or steps[-1] == 1


def dispatched_cycles(arch: Arch, elements: int) -> int:
    """Cycles of GpSimd: a dispatch, then one for each element of a partition."""
    return round(arch.gpsimd_dispatch_cycles) + elements


def copy_cycles(arch: Arch, engine: str, dst: Pattern, src: Pattern) -> int:
    """Cycles of a copy or a tensor-scalar operation."""
    if engine == "gpsimd":
        return dispatched_cycles(arch, src.free)
    return stream_cycles(arch, engine, src.free / _copy_speedup(arch, engine, dst, src))


def _copy_speedup(arch: Arch, engine: str, dst: Pattern, src: Pattern) -> float:
    """How many elements per cycle a copy moves in each partition."""
    halves = dst.dtype in HALF and src.dtype in HALF
    if engine == "scalar":
        return arch.scalar_half_speedup if halves else 1.0
    if engine != "vector" or arch.vector_modes < 2:
        return 1.0
    in_sbuf = dst.memory is Memory.SBUF and src.memory is Memory.SBUF
    contiguous = is_contiguous(dst) and is_contiguous(src)
    small = _is_narrow(arch, dst.dtype) and _is_narrow(arch, src.dtype)
    if in_sbuf and contiguous and small:
        return min(4.0, arch.vector_modes)
    if small and (in_sbuf or contiguous):
        return 2.0
    return 2.0 if in_sbuf and contiguous else 1.0


def _is_narrow(arch: Arch, dtype: DType) -> bool:
    """Whether the fast copies take the dtype: 16-bit floats, 8-bit ones where the core has that."""
    is_f8 = dtype.is_float and dtype.bytes == 1
    return dtype in HALF or (arch.capabilities.has_fast_f8_copies and is_f8)


def two_input_factor(arch: Arch, op: str, first: Pattern, second: Pattern, dst: Pattern) -> float:
    """Cycles per element of an operation on two tensors."""
    all_half = all(p.dtype in HALF for p in (first, second, dst))
    in_sbuf = first.memory is Memory.SBUF and second.memory is Memory.SBUF
    if in_sbuf and all_half and arch.vector_modes >= 2:
        return 0.5
    if first.memory is not second.memory:
        return 1.0
    simple = op in ("add", "multiply", "subtract")
    all_bf16 = all(p.dtype is BF16 for p in (first, second, dst))
    contiguous = all(is_contiguous(p) for p in (first, second, dst))
    return 1.0 if simple and all_bf16 and contiguous else arch.two_input_cycles
