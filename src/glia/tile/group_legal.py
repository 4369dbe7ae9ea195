"""When nests may run block by block in common loops, and when what they write may stay on chip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from glia.base.affine import Affine
from glia.tile.ir import (
    Branch,
    Group,
    Load,
    Nest,
    Program,
    SharedLoop,
    Statement,
    Store,
    While,
    ordered_axes,
)
from glia.tile.pieces import filled_box


@dataclass(frozen=True)
class GroupedNest:
    """A nest of a group, with the loops around it and its axis in each."""

    nest: Nest
    loops: tuple[SharedLoop, ...]
    axes: tuple[str, ...]


def why_illegal(group: Group, program: Program) -> str:
    """What keeps a group from giving what its nests give one by one; "" when nothing does.

    Different blocks of every loop around two nests touch different elements of a buffer that one of
    them writes, and what is read of a buffer on chip lies in what the same iteration writes.
    """
    block = _block_of(group, program.body)
    if block is None:
        return "its nests are no consecutive statements"
    nests = {nest.name: nest for nest in block}
    grouped = [GroupedNest(nests[m.nest], loops, m.axes) for loops, m in group.members()]
    return why_illegal_together(grouped, group.on_chip, program)


def why_illegal_together(
    grouped: Sequence[GroupedNest], on_chip: Sequence[str], program: Program
) -> str:
    """`why_illegal` of nests that are known to follow each other, in the order of their loops."""
    for each in grouped:
        if reason := _why_not_alone(each):
            return reason
    sources = dict(program.aliases)
    for position, first in enumerate(grouped):
        for second in grouped[position:]:
            if reason := _why_not_in_blocks(first, second, program, sources):
                return reason
    for name in on_chip:
        if reason := why_not_on_chip(name, grouped, program):
            return reason
    return ""


def _block_of(group: Group, body: Sequence[Statement]) -> list[Nest] | None:
    """The nests of a group, when they are consecutive statements of a block, in the same order."""
    names = [member.nest for _, member in group.members()]
    for position, statement in enumerate(body):
        if isinstance(statement, Nest) and statement.name == names[0]:
            found = body[position : position + len(names)]
            nests = [each for each in found if isinstance(each, Nest)]
            return nests if [each.name for each in nests] == names else None
        for inner in _inner_blocks(statement):
            if (nests_inside := _block_of(group, inner)) is not None:
                return nests_inside
    return None


def _inner_blocks(statement: Statement) -> tuple[tuple[Statement, ...], ...]:
    if isinstance(statement, While):
        return statement.condition, statement.body
    return statement.arms if isinstance(statement, Branch) else ()


def _why_not_alone(each: GroupedNest) -> str:
    """Why a nest cannot run for one block of its axes after the other."""
    nest = each.nest
    parallel = {axis.name: axis.extent for axis in nest.parallel_axes}
    if len(each.axes) != len(each.loops) or len(set(each.axes)) != len(each.axes):
        return f"{nest.name} does not have one axis for each loop around it"
    for axis, loop in zip(each.axes, each.loops, strict=True):
        if axis in ordered_axes(nest):
            return f"{nest.name} has a recurrence along {axis}"
        if parallel.get(axis) != loop.extent:
            return f"{axis} is no parallel axis of {nest.name} with extent {loop.extent}"
        if loop.block < 1 or loop.copies < 1:
            return "a loop has blocks, and copies, of at least one"
    if nest.target.combine or nest.target.dynamic:
        return f"{nest.name} writes where data says, or combines with what is there"
    return ""


# --- order of accesses ----------------------------------------------------------------------------


def _why_not_in_blocks(
    first: GroupedNest, second: GroupedNest, program: Program, sources: Mapping[str, str]
) -> str:
    """Why one nest may not begin before an earlier one has seen all blocks (or the same nest)."""
    buffers = program.buffers
    for one, other in _conflicts(first, second, sources):
        is_alike = buffers[one.buffer].shape == buffers[other.buffer].shape
        for depth, loop in enumerate(_common(first, second)):
            if loop.block >= loop.extent:
                continue
            if not is_alike or not _is_separated(one, other, first, second, depth):
                return (
                    f"{first.nest.name} and {second.nest.name} touch the same elements of "
                    f"{one.buffer} in different blocks"
                )
    return ""


def _common(first: GroupedNest, second: GroupedNest) -> list[SharedLoop]:
    """The loops around both nests."""
    found = []
    for one, other in zip(first.loops, second.loops, strict=False):
        if one is not other:
            break
        found.append(one)
    return found


def _conflicts(
    first: GroupedNest, second: GroupedNest, sources: Mapping[str, str]
) -> Iterator[tuple[Load | Store, Load | Store]]:
    """(access of the first, of the second) to one buffer, at least one of them a write."""
    target, other = first.nest.target, second.nest.target

    def is_same(one: Load | Store, another: Load | Store) -> bool:
        return sources.get(one.buffer, one.buffer) == sources.get(another.buffer, another.buffer)

    if first is not second and is_same(target, other):
        yield target, other
    for load in second.nest.loads:
        if is_same(load, target):
            yield target, load
    if first is not second:
        for load in first.nest.loads:
            if is_same(load, other):
                yield load, other


def _is_separated(
    one: Load | Store, other: Load | Store, first: GroupedNest, second: GroupedNest, depth: int
) -> bool:
    """Whether different blocks of a loop touch different elements, as some dimension shows.

    Or that they never touch the same. With equal steps s of the loop's axes and a distance between
    the rest of both indices of less than s, equal elements have equal values of the axes.
    """
    moved = {offset.dimension for access in (one, other) for offset in access.dynamic}
    for d, (here, there) in enumerate(zip(one.index, other.index, strict=True)):
        if d not in moved and _are_apart(here, there, first.nest, second.nest):
            return True
        step, low, high = _rest(here, first, depth)
        other_step, other_low, other_high = _rest(there, second, depth)
        if d in moved or step != other_step or not step:
            continue
        if high - other_low < abs(step) and other_high - low < abs(step):
            return True
    return False


def _are_apart(here: Affine, there: Affine, first: Nest, second: Nest) -> bool:
    """Whether an index of one nest and one of another never have the same value."""
    low, high = here.bounds(first.extents)
    other_low, other_high = there.bounds(second.extents)
    return high < other_low or other_high < low


def _rest(index: Affine, grouped: GroupedNest, depth: int) -> tuple[int, int, int]:
    """(step of a loop's axis, least and greatest value of the rest) of an index."""
    axis = grouped.axes[depth]
    low, high = index.bounds({**grouped.nest.extents, axis: 1})
    return index.coefficient(axis), low, high


# --- on chip --------------------------------------------------------------------------------------


def why_not_on_chip(name: str, grouped: Sequence[GroupedNest], program: Program) -> str:
    """Why what one iteration writes of a buffer does not hold all that it reads of it."""
    buffer = program.buffers.get(name)
    if buffer is None or buffer.role not in ("temporary", "output"):
        return f"{name} is no buffer that a group may keep on chip"
    if any(name in pair for pair in program.aliases):
        return f"{name} shares its bytes with another buffer"
    writers = [each for each in grouped if each.nest.target.buffer == name]
    if not writers:
        return f"{name} has no writer in the group"
    most = max(len(each.loops) for each in writers)
    if any(len(_common(each, writers[0])) < most for each in writers):
        return f"{name} has writers in different loops"
    box = written_box(writers)
    if box is None:
        return f"what the writers of {name} write in an iteration is no box"
    missing = len(writers)
    for each in grouped:
        for load in each.nest.loads:
            if load.buffer != name:
                continue
            if missing:
                return f"{each.nest.name} reads {name} before it is written"
            if load.dynamic or not _is_inside(load, each, writers[0], box):
                return f"{each.nest.name} reads more of {name} than an iteration writes"
        missing -= each.nest.target.buffer == name
    return ""


def written_box(writers: Sequence[GroupedNest]) -> list[tuple[int, int]] | None:
    """(least value, number of values), by dimension, that nests in the same loops write together.

    Those of the first iteration. Several nests write pieces that fill the box; None otherwise.
    """
    first = writers[0]
    depth = len(first.loops)
    boxes = [[_box(e, each, depth) for e in each.nest.target.index] for each in writers]
    if len(writers) == 1:
        return [(low, high - low + 1) for _, low, high in boxes[0]]
    steps = [[of_axes for of_axes, _, _ in box] for box in boxes]
    if any(each != steps[0] for each in steps):
        return None
    pieces = []
    for each in writers:
        within = _block_extents(each, depth)
        swept = {axis.name: within[axis.name] for axis in each.nest.parallel_axes}
        pieces.append((each.nest.target.index, swept))
    return filled_box(pieces)


def _is_inside(
    load: Load, reader: GroupedNest, writer: GroupedNest, box: Sequence[tuple[int, int]]
) -> bool:
    """Whether the box of a load lies in that of what is written, in every common iteration."""
    depth = len(_common(reader, writer))
    if depth < len(writer.loops):
        return False
    for read, written, (least, count) in zip(
        load.index, writer.nest.target.index, box, strict=True
    ):
        steps, low, high = _box(read, reader, depth)
        written_steps, _, _ = _box(written, writer, depth)
        if steps != written_steps or low < least or high >= least + count:
            return False
    return True


def _box(index: Affine, grouped: GroupedNest, depth: int) -> tuple[tuple[int, ...], int, int]:
    """An index in one iteration of the outer `depth` loops: steps of their axes, and the bounds.

    The bounds are those of the first iteration, in which every axis begins at 0.
    """
    steps = tuple(index.coefficient(axis) for axis in grouped.axes[:depth])
    return steps, *index.bounds(_block_extents(grouped, depth))


def _block_extents(grouped: GroupedNest, depth: int) -> dict[str, int]:
    """The extents of a nest's parallel and reduced axes in one iteration of the outer loops."""
    loops = dict(zip(grouped.axes[:depth], grouped.loops, strict=False))
    return {
        axis: min(loops[axis].block, extent) if axis in loops else extent
        for axis, extent in grouped.nest.extents.items()
    }
