"""What the instructions of a group, or of a nest by itself, have to do, as they are emitted.

Loops count each of their trips; a loop whose trips are known at run time only counts once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glia.arch import Arch
from glia.isa.instructions.dma import Transfer
from glia.isa.instructions.dma_transpose import DmaTranspose
from glia.isa.instructions.tensor import NcTranspose
from glia.isa.instructions.vector import TensorCopy
from glia.isa.kit import Instr
from glia.isa.operand import Memory
from glia.machine.ir import EmittedWork, Loop, Statement, Traffic, While, blocks


def work_of(block: Sequence[Statement], arch: Arch) -> EmittedWork:
    """The work of statements, with traffic by tile in HBM."""
    found = EmittedWork()
    for instruction, times in _executions(block, 1):
        found.instructions += times
        if isinstance(instruction, Transfer):
            found.dma_ns += times * instruction.transfer_nanoseconds(arch)
            _add_traffic(found, instruction, times)
            continue
        engine = instruction.runs_on
        ns = times * arch.cycles_to_ns(engine, instruction.cycles(arch))
        found.engine_ns[engine] = found.engine_ns.get(engine, 0.0) + ns
        if isinstance(instruction, NcTranspose):
            found.transposed_bytes += times * instruction.data.bytes
        elif isinstance(instruction, TensorCopy) and instruction.src.dtype != instruction.dst.dtype:
            found.cast_bytes += times * instruction.src.bytes
    return found


def _add_traffic(work: EmittedWork, transfer: Transfer, times: int) -> None:
    written = [*transfer.written_patterns()]
    for pattern in transfer.moved():
        if pattern.memory is not Memory.HBM:
            continue
        traffic = work.traffic.setdefault(pattern.tile.name, Traffic())
        traffic.transfers += times
        moved = times * min(pattern.bytes, transfer.moved_bytes())  # of a table, some rows
        if pattern in written:
            traffic.written_bytes += moved
        else:
            traffic.read_bytes += moved
    if isinstance(transfer, DmaTranspose):
        work.transposed_bytes += times * transfer.moved_bytes()


def _executions(block: Sequence[Statement], times: int) -> Iterator[tuple[Instr, int]]:
    """Every instruction of statements, with how often it runs."""
    for statement in block:
        if isinstance(statement, Instr):
            yield statement, times
            continue
        inside = times
        if isinstance(statement, Loop):
            inside *= statement.trips
        elif isinstance(statement, While):
            inside *= max(1, statement.iterations)
        for inner in blocks(statement):
            yield from _executions(inner, inside)
