"""What the search over blocks has to know of a contraction nest."""

from __future__ import annotations

import math
from collections.abc import Mapping

from glia.tile.blocking.model import BlockedOperand, Contraction
from glia.tile.contraction import PARTITIONS, are_uniform, contraction_operands, row_dim
from glia.tile.ir import Buffer, Layout, Load, Nest, Schedule, loads

SBUF_SHARE = 0.92  # of what residents leave, for the tiles of a nest: packing wastes the rest
TEMPORARY_BYTES = 4  # of an element of the result, that an epilogue holds beside what it reads


def find_contraction(
    nest: Nest,
    schedule: Schedule,
    buffers: Mapping[str, Buffer],
    layouts: Mapping[str, Layout],
    sbuf_bytes: int,
) -> Contraction | None:
    """The facts of a nest that may run in blocks; None for one whose accesses are not plain."""
    operands = contraction_operands(nest) if schedule.engine == "tensor" else None
    if operands is None or schedule.packed:
        return None
    if nest.target.combine or nest.target.dynamic:
        return None
    left, right = operands
    extents = nest.extents
    reduced = [axis.name for axis in nest.reduced_axes if axis.extent > 1]
    epilogue = list(loads(nest.finish))
    is_plain = all(_is_plain(load, extents, load.buffer in layouts) for load in (left, right))
    if reduced != [schedule.contract] or not is_plain or _has_few_rows(nest, left, right):
        return None
    if any(load.guards or not are_uniform(load) for load in (left, right, *epilogue)):
        return None
    stationary, moving = (left, right) if schedule.stationary == "left" else (right, left)
    own = [_operand(load, schedule, extents, layouts) for load in (stationary, moving)]
    target = nest.target.buffer
    dtype = buffers[target].dtype
    written = Load(target, dtype, nest.target.index)
    stored = _operand(written, schedule, extents, layouts)
    place = "resident" if target in layouts else "hbm"
    held = dtype.bytes + TEMPORARY_BYTES * bool(epilogue) + sum(e.dtype.bytes for e in epilogue)
    return Contraction(
        tuple(extents.items()),
        tuple((axis, schedule.tiles.get(axis, n)) for axis, n in extents.items()),
        schedule.partition,
        schedule.contract,
        own[0],
        own[1],
        moving.dtype.name,
        BlockedOperand(stored.axes, dtype.bytes, place),
        held,
        int(sbuf_bytes * SBUF_SHARE),
    )


def _is_plain(load: Load, extents: Mapping[str, int], is_on_chip: bool) -> bool:
    """Whether every axis indexes a dimension of its own, with step 1, and on chip from 0 on."""
    terms = [position.terms for position in load.index]
    names = [name for each in terms for name, _ in each]
    return (
        all(len(each) <= 1 and all(step == 1 for _, step in each) for each in terms)
        and len(set(names)) == len(names)
        and not (is_on_chip and any(p.constant and p.terms for p in load.index))
        and set(names) <= extents.keys()
    )


def _has_few_rows(nest: Nest, left: Load, right: Load) -> bool:
    """Whether one of the operands has so few rows that it is one tile."""
    used = [{v for position in load.index for v in position.variables} for load in (left, right)]
    sides = (used[0] - used[1], used[1] - used[0])
    return min(math.prod(nest.extents[a] for a in side) for side in sides) <= PARTITIONS


def _operand(
    load: Load, schedule: Schedule, extents: Mapping[str, int], layouts: Mapping[str, Layout]
) -> BlockedOperand:
    axes = tuple(v for position in load.index for v in position.variables if extents[v] > 1)
    layout = layouts.get(load.buffer)
    if layout is not None and layout.memory == "SBUF":
        is_aligned = row_dim(load.index, schedule.contract) == layout.partition_dim
        place = "resident" if is_aligned else "unaligned"
    else:
        place = "turned" if axes[-1:] == (schedule.contract,) else "hbm"
    return BlockedOperand(axes, load.dtype.bytes, place)
