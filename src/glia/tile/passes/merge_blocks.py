"""An axis of blocks and the axis inside of each become one, where that gives longer runs.

A group norm of [n, 320, 64, 64] images has 32 groups of 10 channels: what is read at channel
10 * group + member is scaled by what there is for each group. Neither axis fills the partitions.
As one axis of channels they do, each a run of a whole image, and what is scaled by is a number for
each partition. For that, what there is for each group is written once more for each channel, by a
copy of the nest that makes it; and a sum over groups becomes sums over channels, and sums of these.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from glia.base.affine import Affine
from glia.options import CompileOptions
from glia.tile.contraction import PARTITIONS, contraction_operands
from glia.tile.ir import (
    Axis,
    Buffer,
    Expr,
    Index,
    Load,
    Nest,
    Program,
    Statement,
    Store,
    WholeBuffers,
    control_buffers,
    ordered_axes,
)
from glia.tile.nest_rewriting import (
    are_as_one,
    distinct_parts,
    map_leaves,
    merge_axes,
    unused_name,
    with_replacements,
)
from glia.tile.row_search import picked
from glia.tile.split_dimensions import row_length

LEAST_LANES = 64  # of the merged axis
LEAST_RUN = 64  # elements that follow each other at each value of it
LEAST_WORK = 64  # points of a nest for each element of what it reads by block
MOST_REPEATED = 64  # elements that are reduced once more to make a copy


@dataclass(frozen=True)
class _Blocks:
    """The axis of blocks, the axis inside, and the loads that name the blocks only."""

    outer: str
    inner: str
    length: int
    by_block: tuple[Load, ...]


def merge_blocks(program: Program, options: CompileOptions) -> Program:
    """Merge axes of maps and reductions that read long runs by blocks."""
    merger = _Merger(program)
    body = with_replacements(program.body, merger.merged)
    if not merger.is_changed:
        return program
    program = replace(program, body=body, buffers={**program.buffers, **merger.buffers})
    read = {load.buffer for nest in program.nests() for load in nest.loads}
    copier = _Copier(merger.copies, read | control_buffers(body))
    body = with_replacements(body, copier.with_copies)
    kept = {name: b for name, b in program.buffers.items() if name not in copier.unread}
    return replace(program, body=body, buffers=kept)


class _Merger:
    """Merges axes nest by nest, and notes which buffers are to be there for each element."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._names = {*program.buffers, *(nest.name for nest in program.nests())}
        fixed = control_buffers(program.body)
        writers = Counter(nest.target.buffer for nest in program.nests())
        self._made = {  # temporaries that one nest writes
            nest.target.buffer
            for nest in program.nests()
            if writers[nest.target.buffer] == 1
            and nest.target.buffer not in fixed
            and program.buffers[nest.target.buffer].role == "temporary"
            and not (nest.target.combine or nest.target.dynamic)
        }
        self.buffers: dict[str, Buffer] = {}
        self.copies: dict[tuple[str, int, int], Buffer] = {}  # by buffer, dimension, length
        self.is_changed = False

    def merged(self, statement: Nest | WholeBuffers) -> Sequence[Statement]:
        """What a statement becomes."""
        if not isinstance(statement, Nest) or not _is_plain(statement):
            return (statement,)
        found = next(filter(None, (self._blocks(statement, *p) for p in _pairs(statement))), None)
        if found is None:
            return (statement,)
        self.is_changed = True
        if found.inner not in {axis.name for axis in statement.reduced_axes}:
            return (self._merge(statement, found),)
        partial, rest = self._split(statement, found)
        return self._merge(partial, found), rest

    def _merge(self, nest: Nest, blocks: _Blocks) -> Nest:
        """The nest with one axis for both, which reads copies of what there is for each block."""

        def leaf(each: Expr) -> Expr:
            return self._of_copy(each, blocks) if each in blocks.by_block else each

        nest = replace(nest, body=map_leaves(nest.body, leaf))
        if nest.finish is not None:
            nest = replace(nest, finish=map_leaves(nest.finish, leaf))
        return merge_axes(nest, (blocks.outer, blocks.inner))

    def _of_copy(self, load: Expr, blocks: _Blocks) -> Load:
        assert isinstance(load, Load)
        d = load.index.index(Affine.of(blocks.outer))
        name = self._copy(load.buffer, d, blocks.length).name
        each = Affine.of(blocks.outer) * blocks.length + Affine.of(blocks.inner)
        return replace(load, buffer=name, index=(*load.index[:d], each, *load.index[d + 1 :]))

    def _copy(self, name: str, dimension: int, length: int) -> Buffer:
        """The buffer that holds every element of a dimension so many times."""
        key = name, dimension, length
        if key not in self.copies:
            buffer = self._program.buffers[name]
            shape = list(buffer.shape)
            shape[dimension] *= length
            copy = Buffer(unused_name(f"{name}.each", self._names), buffer.dtype, tuple(shape))
            self.buffers[copy.name] = self.copies[key] = copy
        return self.copies[key]

    def _split(self, nest: Nest, blocks: _Blocks) -> tuple[Nest, Nest]:
        """A reduction for each element of the blocks, and that of its results."""
        reduction = nest.reduction
        assert reduction is not None
        name = unused_name(f"{nest.name}.each", self._names)
        others = [axis for axis in nest.parallel_axes if axis.name != blocks.outer]
        count = nest.extents[blocks.outer] * blocks.length
        shape = *(axis.extent for axis in others), count
        self.buffers[name] = Buffer(name, reduction.dtype, shape)
        place = Affine.of(blocks.outer) * blocks.length + Affine.of(blocks.inner)
        index = *(Affine.of(axis.name) for axis in others), place
        swept = tuple(each for each in reduction.axes if each != blocks.inner)
        partial = replace(
            nest, name=name, target=Store(name, index), finish=None,
            reduction=replace(reduction, axes=swept),
        )  # fmt: skip
        inner = next(axis for axis in nest.axes if axis.name == blocks.inner)
        rest = replace(
            nest,
            axes=(*nest.parallel_axes, inner),
            body=Load(name, reduction.dtype, index),
            reduction=replace(reduction, axes=(blocks.inner,)),
        )
        return partial, rest

    def _blocks(self, nest: Nest, outer: str, inner: str) -> _Blocks | None:
        """How two axes of a nest are blocks; None where they are not, or nothing is gained."""
        extents, buffers = nest.extents, self._program.buffers
        length, points = extents[inner], math.prod(extents.values())
        is_reduced = inner in (nest.reduction.axes if nest.reduction else ())
        by_block, run = list[Load](), 0
        for access in nest.accesses:
            if is_reduced and access is nest.target:
                if any(inner in part.variables for part in access.index):
                    return None
                continue
            parts = [d for d, part in enumerate(access.index) if {outer, inner} & {*part.variables}]
            if all(are_as_one(access.index[d], (outer, inner), extents) for d in parts):
                if parts:
                    shape = buffers[access.buffer].shape
                    run = max(run, math.prod(shape[parts[-1] + 1 :]))
                continue
            if isinstance(access, Store) or not self._is_by_block(nest, access, outer, inner):
                return None
            by_block.append(access)
        if run < LEAST_RUN or not (is_reduced or by_block):
            return None
        most = points / LEAST_WORK
        if any(_points(nest, load) > most for load in by_block):
            return None
        return _Blocks(outer, inner, length, tuple(dict.fromkeys(by_block)))

    def _is_by_block(self, nest: Nest, load: Load, outer: str, inner: str) -> bool:
        """Whether a load names the blocks plainly, and what it reads can be there for each."""
        if load.guards or load.dynamic or load.buffer not in self._made:
            return False
        named = [d for d, part in enumerate(load.index) if {outer, inner} & {*part.variables}]
        if len(named) != 1 or load.index[named[0]] != Affine.of(outer):
            return False
        return self._program.buffers[load.buffer].shape[named[0]] == nest.extents[outer]


class _Copier:
    """Writes copies after the nests that make what they are of.

    `unread` are what neither a statement nor a copy reads.
    """

    def __init__(self, copies: Mapping[tuple[str, int, int], Buffer], read: set[str]) -> None:
        """`read` are the buffers that some statement reads."""
        self._copies: dict[str, list[tuple[int, int, Buffer]]] = {}
        for (name, dimension, length), copy in copies.items():
            self._copies.setdefault(name, []).append((dimension, length, copy))
        self.unread = self._copies.keys() - read

    def with_copies(self, statement: Nest | WholeBuffers) -> Sequence[Statement]:
        """A statement, and the copies of what it makes."""
        if not isinstance(statement, Nest):
            return (statement,)
        name = statement.target.buffer
        copies = tuple(_copy(statement, *each) for each in self._copies.get(name, ()))
        if any(load.buffer == name for each in copies for load in each.loads):
            self.unread.discard(name)
        return copies if name in self.unread else (statement, *copies)


def _copy(nest: Nest, dimension: int, length: int, copy: Buffer) -> Nest:
    """The nest that writes each element of a dimension so many times, to the buffer `copy`.

    It computes again what takes little, and reads the rest.
    """
    again = Axis(f"{copy.name}.place", length)
    index = list(nest.target.index)
    index[dimension] = index[dimension] * length + Affine.of(again.name)
    target = Store(copy.name, tuple(index))
    axes = (*nest.parallel_axes, again)
    if math.prod(axis.extent for axis in nest.reduced_axes) <= MOST_REPEATED:
        return replace(nest, name=copy.name, axes=(*axes, *nest.reduced_axes), target=target)
    body = Load(nest.target.buffer, copy.dtype, nest.target.index)
    return Nest(copy.name, axes, body, target, loc=nest.loc)


def _pairs(nest: Nest) -> Iterator[tuple[str, str]]:
    """Axes of blocks and inside of these, as some access names them."""
    extents, seen = nest.extents, set[tuple[str, str]]()
    reduced = {axis.name for axis in nest.reduced_axes}
    for access in nest.accesses:
        for part in access.index:
            if not (length := row_length(part, nest)):
                continue
            (inner, _), (outer, _) = sorted(part.terms, key=lambda term: term[1])
            if (outer, inner) in seen:
                continue
            seen.add((outer, inner))
            is_few = extents[outer] < PARTITIONS and extents[outer] * length >= LEAST_LANES
            others = reduced - {inner}
            if is_few and outer not in reduced and (others or not reduced):
                yield outer, inner


def _is_plain(nest: Nest) -> bool:
    """Whether a nest without the PE takes its axes in any order, and no value is one of an axis."""
    if contraction_operands(nest) is not None or ordered_axes(nest) or picked(nest):
        return False
    if nest.target.combine or nest.target.dynamic or any(load.dynamic for load in nest.loads):
        return False
    parts = itertools.chain(*(distinct_parts(e) for e in (nest.body, nest.finish) if e is not None))
    return not any(isinstance(part, Index) for part in parts)


def _points(nest: Nest, load: Load) -> int:
    """How many elements a load reads, as far as its axes tell them apart."""
    names = {name for part in load.index for name in part.variables}
    return math.prod(nest.extents[name] for name in names)
