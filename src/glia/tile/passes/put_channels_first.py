"""Images of convolutions whose channels are innermost get their channels before their positions.

The PE and the lanes of the other engines take channels on the partitions. Where neighbours in HBM
are channels, every element is then a descriptor of its own. Of a temporary the dimensions are in
another order, which costs nothing, where all nests that access it can follow. What has its shape
given, or is summed up over the channels elsewhere, is copied: one transposition, with all engines
of the DMA, instead of single elements for each tap of the window. Of a buffer the box is copied
that the convolution reads or writes: what is beside it may be another nest's, or another core's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from glia.arch import Arch
from glia.arch.instances import get_target
from glia.base.affine import Affine
from glia.options import CompileOptions
from glia.tile.boxes import Box, elements, hull, read_boxes, written_box
from glia.tile.contraction import axes_of, contraction_operands
from glia.tile.ir import (
    Axis,
    Buffer,
    Load,
    Nest,
    Program,
    Statement,
    Store,
    WholeBuffers,
    control_buffers,
)
from glia.tile.nest_rewriting import (
    Move,
    in_boxes,
    load_in_boxes,
    map_loads,
    moved,
    with_moved_dimensions,
    with_replacements,
)


@dataclass(frozen=True)
class _Wish:
    """What a convolution asks of an access: the dimension of channels goes before the positions."""

    nest: str
    access: Load | Store
    move: Move
    is_dense: bool  # it reaches each element of a box once


@dataclass
class _Copies:
    """Copies to add: by nest, those of buffers that it reads, and of the one that it writes."""

    read: dict[str, dict[str, Move]] = field(default_factory=dict)
    written: dict[str, Move] = field(default_factory=dict)


def put_channels_first(program: Program, options: CompileOptions) -> Program:
    """Reorder dimensions, or copy buffers, where convolutions have their channels innermost."""
    wishes = [wish for nest in program.nests() for wish in _wishes(nest, program.buffers)]
    least = _least_elements(get_target(options.target).arch)
    wishes = [each for each in wishes if program.buffers[each.access.buffer].elements >= least]
    if not wishes:
        return program
    moves = _free_moves(program, wishes)
    copies = _Copies()
    for wish in wishes:
        if wish.access.buffer in moves or wish.access.dynamic:
            continue
        if isinstance(wish.access, Load):
            copies.read.setdefault(wish.nest, {})[wish.access.buffer] = wish.move
        elif not wish.access.combine and wish.is_dense:
            copies.written[wish.nest] = wish.move
    return _with_copies(with_moved_dimensions(program, moves), copies)


def _least_elements(arch: Arch) -> int:
    """Elements from which on a copy takes less time than a descriptor for each of them.

    A small copy takes as long as its transfers wait: one in, one out and one back in, of at least
    two parts after each other.
    """
    copy_ns = 6 * (arch.dma_issue_ns + arch.dma_start_ns + arch.dma_completion_ns)
    return int(copy_ns / arch.dma_descriptor_ns * arch.dma_engines)


# --- what convolutions ask for --------------------------------------------------------------------


def _wishes(nest: Nest, buffers: Mapping[str, Buffer]) -> list[_Wish]:
    """The accesses of a convolution to images and results whose channels are innermost."""
    operands = contraction_operands(nest)
    if operands is None or nest.reduction is None:
        return []
    swept = frozenset(nest.reduction.axes)
    found: list[_Wish] = []
    for image, other in (operands, operands[::-1]):
        batch = axes_of(image) & axes_of(other) - swept
        windows = {d for d, e in enumerate(image.index) if _is_windowed(e, swept, batch)}
        if not windows or any(_is_windowed(e, swept, batch) for e in other.index):
            continue
        positions = {v for d in windows for v in image.index[d].variables} - swept - batch
        known = swept | (axes_of(other) & {v for e in nest.target.index for v in e.variables})
        shape = buffers[image.buffer].shape
        last = _last_dim(image.index, shape)
        if last > min(windows) and last not in windows and known >= {*image.index[last].variables}:
            found.append(_Wish(nest.name, image, (last, min(windows)), is_dense=False))
        shape = buffers[nest.target.buffer].shape
        last = _last_dim(nest.target.index, shape)
        along = [d for d, e in enumerate(nest.target.index) if positions & {*e.variables}]
        if along and last > along[0] and last not in along:
            is_dense = elements(written_box(nest, buffers)) == math.prod(
                axis.extent for axis in nest.parallel_axes
            )
            found.append(_Wish(nest.name, nest.target, (last, along[0]), is_dense))
    return found


def _is_windowed(expression: Affine, swept: frozenset[str], batch: frozenset[str]) -> bool:
    """Whether an index is that of a window: of a parallel axis and of a reduced one.

    An axis of the `batch`, which both operands have, chooses where rows begin.
    """
    names = {*expression.variables}
    return bool(names & swept) and bool(names - swept - batch)


def _last_dim(index: tuple[Affine, ...], shape: tuple[int, ...]) -> int:
    """The innermost dimension of more than one element, which some axis runs over; -1 if none."""
    dims = [d for d, extent in enumerate(shape) if extent > 1]
    return dims[-1] if dims and index[dims[-1]].variables else -1


# --- dimensions in another order ------------------------------------------------------------------


def _free_moves(program: Program, wishes: list[_Wish]) -> dict[str, Move]:
    """By temporary, the move that all nests which access it can follow."""
    fixed = {name for pair in program.aliases for name in pair} | control_buffers(program.body)
    moves: dict[str, Move] = {}
    for wish in wishes:
        name = wish.access.buffer
        if program.buffers[name].role == "temporary" and name not in fixed:
            moves.setdefault(name, wish.move)
    for nest in program.nests():
        swept = {*nest.reduction.axes} if nest.reduction else set()
        is_product = contraction_operands(nest) is not None
        for access in nest.accesses:
            if access.buffer in moves:
                channels = access.index[moves[access.buffer][0]]
                is_summed = bool(swept & {*channels.variables}) and not is_product
                if access.dynamic or is_summed:
                    del moves[access.buffer]
    return moves


# --- copies ---------------------------------------------------------------------------------------


def _with_copies(program: Program, copies: _Copies) -> Program:
    """The program with nests that copy before and after those that ask for it."""
    buffers = dict(program.buffers)

    def moved_buffer(name: str, nest: str, box: Box, move: Move) -> Buffer:
        shape = moved(tuple(high - low for low, high in box), move)
        made = Buffer(f"{name}.{nest}.channels_first", buffers[name].dtype, shape)
        buffers[made.name] = made
        return made

    def statements_with_copies(nest: Nest | WholeBuffers) -> list[Statement]:
        if isinstance(nest, WholeBuffers):
            return [nest]
        before: list[Statement] = []
        for name, move in copies.read.get(nest.name, {}).items():
            box = functools.reduce(hull, (b for n, b in read_boxes(nest, buffers) if n == name))
            made = moved_buffer(name, nest.name, box, move)
            before.append(_copy(nest, made, name, box, move))
            nest = map_loads(nest, partial(load_in_boxes, kept={name: box}, buffers=buffers))
            nest = map_loads(nest, partial(_moved_load, name=name, move=move, made=made))
        if nest.name not in copies.written:
            return [*before, nest]
        move, name = copies.written[nest.name], nest.target.buffer
        box = written_box(nest, buffers)
        made = moved_buffer(name, nest.name, box, move)
        target = in_boxes(nest.target, {name: box})
        target = replace(target, buffer=made.name, index=moved(target.index, move))
        back = _copy_back(nest, made, name, box, move)
        return [*before, replace(nest, target=target), back]

    body = with_replacements(program.body, statements_with_copies)
    return replace(program, body=body, buffers=buffers)


def _moved_load(load: Load, name: str, move: Move, made: Buffer) -> Load:
    if load.buffer != name:
        return load
    return replace(load, buffer=made.name, index=moved(load.index, move))


def _copy(nest: Nest, made: Buffer, name: str, box: Box, move: Move) -> Nest:
    """The nest that copies a box of a buffer to one in which a dimension has moved."""
    index, axes = _indices(made.shape)
    load = Load(name, made.dtype, _from_box(moved(index, move[::-1]), box))
    return Nest(_copy_name(nest, name), axes, load, Store(made.name, index), loc=nest.loc)


def _copy_back(nest: Nest, made: Buffer, name: str, box: Box, move: Move) -> Nest:
    """The nest that copies a buffer in which a dimension has moved to a box of another."""
    index, axes = _indices(tuple(high - low for low, high in box))
    load = Load(made.name, made.dtype, moved(index, move))
    store = Store(name, _from_box(index, box))
    return Nest(_copy_name(nest, name), axes, load, store, loc=nest.loc)


def _copy_name(nest: Nest, name: str) -> str:
    return f"{nest.name}.{name}.copy"


def _indices(shape: tuple[int, ...]) -> tuple[tuple[Affine, ...], tuple[Axis, ...]]:
    axes = tuple(Axis(f"i{d}", extent) for d, extent in enumerate(shape))
    return tuple(Affine.of(axis.name) for axis in axes), axes


def _from_box(index: tuple[Affine, ...], box: Box) -> tuple[Affine, ...]:
    return tuple(part + low for part, (low, _) in zip(index, box, strict=True))
