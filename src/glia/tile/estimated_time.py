"""What statements take, about: by their arithmetic, elements and bytes, whichever takes longest.

For decisions about the order of whole nests, which are made before nests are instructions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from glia.arch import Arch
from glia.isa.instructions.dma import Transfer
from glia.isa.operand import Memory, Tile
from glia.tile.boxes import elements, moved_box, pieces
from glia.tile.contraction import PARTITIONS, axes_of, contraction_operands
from glia.tile.exchanges.exchange_instructions import exchange_instructions
from glia.tile.ir import (
    Buffer,
    Call,
    Exchange,
    Load,
    Nest,
    Statement,
    Store,
    While,
    accessed_buffers,
)


def estimated_ns(statement: Statement, buffers: Mapping[str, Buffer], arch: Arch) -> float:
    """Nanoseconds of a statement by itself; a branch counts as its longest arm.

    A loop of which it is not known how often it runs counts once.
    """
    if isinstance(statement, Nest):
        return nest_ns(statement, buffers, arch)
    if isinstance(statement, Exchange):
        return exchange_ns(statement, buffers, arch)
    if isinstance(statement, Call):
        return _traffic_ns(accessed_buffers(statement), buffers, arch)
    if isinstance(statement, While):
        times = max(1, statement.iterations)
        return times * sum(estimated_ns(each, buffers, arch) for each in statement.body)
    return max(sum(estimated_ns(each, buffers, arch) for each in arm) for arm in statement.arms)


def exchange_ns(exchange: Exchange, buffers: Mapping[str, Buffer], arch: Arch) -> float:
    """Nanoseconds from the start of an exchange until another engine sees its results."""
    inputs, outputs = (
        [Tile(n, Memory.HBM, buffers[n].dtype, 1, buffers[n].elements) for n in names]
        for names in (exchange.inputs, exchange.outputs)
    )
    sent = exchange_instructions(exchange, inputs, outputs, "$rank", queue="q", on="gpsimd")
    moved = [each.transfer_nanoseconds(arch) for each in sent if isinstance(each, Transfer)]
    return sum(moved) + arch.dma_start_ns + arch.dma_completion_ns


def nest_ns(nest: Nest, buffers: Mapping[str, Buffer], arch: Arch) -> float:
    """Nanoseconds of a nest: what its engine takes, or what it moves, whichever is longer."""
    accesses: list[Load | Store] = [*nest.loads, nest.target]
    boxes = [(a.buffer, moved_box(a, nest.extents, buffers[a.buffer])) for a in accesses]
    moved = descriptors = 0
    for name, box in dict.fromkeys(boxes):
        moved += elements(box) * buffers[name].dtype.bytes
        descriptors += pieces(box, buffers[name].shape)
    described = descriptors * arch.dma_descriptor_ns / arch.dma_engines
    return max(engine_ns(nest, arch), moved / _bytes_per_ns(arch) + described)


def engine_ns(nest: Nest, arch: Arch) -> float:
    """Nanoseconds that the array, or Vector, computes for a nest."""
    operands = contraction_operands(nest)
    if operands is None:
        lanes = math.prod(axis.extent for axis in nest.parallel_axes)
        points = math.prod(nest.extents.values())
        return arch.cycles_to_ns("vector", points / min(PARTITIONS, lanes))
    passes = max(arch.tensor_passes.get(each.dtype.name, 1.0) for each in operands)
    columns = _product_columns(nest, *operands, arch.min_issue_cycles["tensor"])
    return arch.cycles_to_ns("tensor", passes * columns)


def _product_columns(nest: Nest, left: Load, right: Load, at_least: int) -> float:
    """The columns that the PE moves for a contraction, whichever operand stays in it."""
    extents, reduced = nest.extents, {axis.name for axis in nest.reduced_axes}
    sides = [axes_of(each) - reduced for each in (left, right)]
    shared = sides[0] & sides[1]
    batch = math.prod(extents[axis] for axis in shared)
    depth = -(-math.prod(extents[axis] for axis in reduced) // PARTITIONS)
    spans = [math.prod(extents[axis] for axis in side - shared) for side in sides]
    return min(
        batch * depth * -(-stays // PARTITIONS) * max(at_least, moves)
        for stays, moves in (spans, spans[::-1])
    )


def _traffic_ns(names: set[str], buffers: Mapping[str, Buffer], arch: Arch) -> float:
    return sum(buffers[name].bytes for name in names) / _bytes_per_ns(arch)


def _bytes_per_ns(arch: Arch) -> float:
    return min(arch.hbm_bytes_per_ns, arch.dma_bytes_per_ns * arch.dma_engines)
