"""Images of convolutions whose channels are innermost get their channels before their positions.

The PE and the lanes of the other engines take channels on the partitions. Where neighbours in HBM
are channels, every element is then a descriptor of its own. Of a temporary the dimensions are in
another order, which costs nothing, where all nests that access it can follow. What has its shape
given, or is summed up over the channels elsewhere, is copied: one transposition, with all engines
of the DMA, instead of single elements for each tap of the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from glia.arch import Arch
from glia.arch.instances import get_target
from glia.base.affine import Affine
from glia.options import CompileOptions
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
        elif not wish.access.combine:
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
            found.append(_Wish(nest.name, image, (last, min(windows))))
        shape = buffers[nest.target.buffer].shape
        last = _last_dim(nest.target.index, shape)
        along = [d for d, e in enumerate(nest.target.index) if positions & {*e.variables}]
        if along and last > along[0] and last not in along:
            found.append(_Wish(nest.name, nest.target, (last, along[0])))
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

    def moved_buffer(name: str, nest: str, move: Move) -> Buffer:
        old = buffers[name]
        shape = moved(old.shape, move)
        made = Buffer(f"{name}.{nest}.channels_first", old.dtype, shape)
        buffers[made.name] = made
        return made

    def statements_with_copies(nest: Nest | WholeBuffers) -> list[Statement]:
        if isinstance(nest, WholeBuffers):
            return [nest]
        before: list[Statement] = []
        for name, move in copies.read.get(nest.name, {}).items():
            made = moved_buffer(name, nest.name, move)
            before.append(_copy(buffers[name], made, move, nest))
            nest = map_loads(nest, partial(_moved_load, name=name, move=move, made=made))
        if nest.name not in copies.written:
            return [*before, nest]
        target, move = nest.target, copies.written[nest.name]
        made = moved_buffer(target.buffer, nest.name, move)
        back = _copy(made, buffers[target.buffer], move[::-1], nest)
        index = moved(target.index, move)
        changed = replace(nest, target=replace(target, buffer=made.name, index=index))
        return [*before, changed, back]

    body = with_replacements(program.body, statements_with_copies)
    return replace(program, body=body, buffers=buffers)


def _moved_load(load: Load, name: str, move: Move, made: Buffer) -> Load:
    if load.buffer != name:
        return load
    return replace(load, buffer=made.name, index=moved(load.index, move))


def _copy(source: Buffer, target: Buffer, move: Move, nest: Nest) -> Nest:
    """The nest that copies a buffer to one in which a dimension has moved."""
    axes = tuple(Axis(f"i{d}", extent) for d, extent in enumerate(target.shape))
    index = tuple(Affine.of(axis.name) for axis in axes)
    load = Load(source.name, source.dtype, moved(index, move[::-1]))
    name = f"{nest.name}.{min(source.name, target.name, key=len)}.copy"
    return Nest(name, axes, load, Store(target.name, index), loc=nest.loc)
