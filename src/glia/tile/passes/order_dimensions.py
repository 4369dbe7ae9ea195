"""The order of dimensions of what goes through HBM, as all nests that access it move it best.

A nest has one axis on the partitions and sweeps the others. Where the innermost dimension of a
buffer is the one on the partitions, neighbours in HBM are on different partitions, and a transfer
moves single elements or has to transpose. What a program keeps in HBM for itself may have any order
of its dimensions: the innermost is the one with which all transfers together take the least time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from glia.arch import Arch
from glia.arch.instances import get_target
from glia.options import CompileOptions
from glia.tile.contraction import PARTITIONS, TRANSPOSABLE_BYTES, contraction_operands, row_dim
from glia.tile.ir import (
    Buffer,
    Load,
    Nest,
    Program,
    Schedule,
    Store,
    control_buffers,
    schedules_in_groups,
)
from glia.tile.nest_rewriting import Move, moved, with_moved_dimensions

LEAST_GAIN = 2  # times as fast: less than that is within what the estimate leaves out


@dataclass(frozen=True)
class _Transfer:
    """An access of a nest to HBM, the axes on its partitions and the values that it sweeps."""

    access: Load | Store
    partitions: tuple[str, ...]
    spans: Mapping[str, int]
    elements: int


def order_dimensions(program: Program, options: CompileOptions) -> Program:
    """Move one dimension of temporaries in HBM innermost where that makes transfers faster."""
    arch = get_target(options.target).arch
    transfers: dict[str, list[_Transfer]] = {}
    schedules = schedules_in_groups(program)
    for nest in program.nests():
        for each in _transfers(nest, schedules[nest.name]):
            transfers.setdefault(each.access.buffer, []).append(each)
    fixed = {name for pair in program.aliases for name in pair} | control_buffers(program.body)
    fixed |= {name for group in program.groups for name in group.on_chip}
    fixed |= {name for name, layout in program.layouts.items() if layout.memory != "HBM"}
    moves: dict[str, Move] = {}
    for name, found in transfers.items():
        buffer = program.buffers[name]
        if buffer.role == "temporary" and name not in fixed:
            move = _best_move(buffer, found, arch)
            if move is not None:
                moves[name] = move
    return with_moved_dimensions(program, moves)


def _transfers(nest: Nest, schedule: Schedule) -> Iterator[_Transfer]:
    extents = nest.extents
    spans = {axis: schedule.tiles.get(axis, extent) for axis, extent in extents.items()}
    operands = contraction_operands(nest) if schedule.engine == "tensor" else None
    for access in nest.accesses:
        is_operand = operands is not None and access in operands
        swept = {v for e in access.index for v in e.variables}
        elements = 1
        for axis in swept & extents.keys():
            elements *= extents[axis]
        rows = (schedule.contract, *schedule.packed) if is_operand else (schedule.partition,)
        yield _Transfer(access, tuple(filter(None, rows)), spans, elements)


def _best_move(buffer: Buffer, transfers: list[_Transfer], arch: Arch) -> Move | None:
    """The move of a dimension with which the transfers take the least time; None to stay."""
    dims = [d for d, extent in enumerate(buffer.shape) if extent > 1]
    if len(dims) < 2 or any(each.access.dynamic for each in transfers):
        return None
    last = dims[-1]
    moves: list[Move] = [(d, last) for d in dims[:-1]] + [(last, d) for d in dims[:-1]]
    stay_ns = _total_ns(buffer, transfers, (last, last), arch)
    best = min(moves, key=lambda move: _total_ns(buffer, transfers, move, arch))
    return best if LEAST_GAIN * _total_ns(buffer, transfers, best, arch) < stay_ns else None


def _total_ns(buffer: Buffer, transfers: list[_Transfer], move: Move, arch: Arch) -> float:
    shape = moved(buffer.shape, move)
    return sum(_transfer_ns(each, buffer, shape, move, arch) for each in transfers)


def _transfer_ns(
    transfer: _Transfer, buffer: Buffer, shape: tuple[int, ...], move: Move, arch: Arch
) -> float:
    """The time that all DMA engines take for a transfer, descriptor by descriptor."""
    width, index = buffer.dtype.bytes, moved(transfer.access.index, move)
    run, partitions = 1, transfer.partitions
    for expression, extent in zip(reversed(index), reversed(shape), strict=True):
        if any(map(expression.coefficient, partitions)):
            break
        terms = [(v, c) for v, c in expression.terms if v in transfer.spans]
        swept = 1 + sum(abs(c) * (transfer.spans[v] - 1) for v, c in terms)
        run *= min(extent, swept)
        if swept < extent:
            break
    count, engines = transfer.elements * width, arch.dma_engines
    descriptors = transfer.elements / run * arch.dma_descriptor_ns
    plain_ns = (count / arch.dma_bytes_per_ns + descriptors) / engines
    is_load = isinstance(transfer.access, Load) and not transfer.access.guards
    if not is_load or width not in TRANSPOSABLE_BYTES or len(partitions) != 1:
        return plain_ns
    (partition,) = partitions
    if row_dim(index, partition) < 0:
        return plain_ns
    # blocks of 128 rows are turned on chip or on their way, an element of each row in a cycle
    rows = min(PARTITIONS, transfer.spans[partition])
    turned_ns = arch.cycles_to_ns("vector", 2 * transfer.elements / rows)
    return min(plain_ns, count / arch.dma_bytes_per_ns / engines + turned_ns)
