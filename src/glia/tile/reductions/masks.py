"""Masks of what is reduced in blocks: what they hide is in no block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from glia.base.affine import Affine
from glia.base.dtype import F32
from glia.graph.ops.scalar_regions import identity
from glia.tile.affine_predicates import masked
from glia.tile.ir import Load
from glia.tile.masked_columns import kept_columns, masked_number, number_elsewhere, parts
from glia.tile.nest_rewriting import axis_values, with_part
from glia.tile.passes.skip_masked_blocks import WORTH_SHARE
from glia.tile.reductions.division import (
    BlockedNest,
    Division,
    Mask,
    blocks_of,
    dimensions,
    runs_of,
)

HIDDEN = "hidden"  # stands for what a mask puts in place of values
MOST_PIECES = 128  # of blocks that a mask divides, each with instructions of its own


def mask_of(division: Division) -> Mask | None:
    """What a mask hides of a maximum's term; None where there is none, or it is not worth it.

    Nothing may depend on what is hidden, as in `skip_masked_blocks`, and each row keeps something.
    """
    reduction = division.shift.reduction
    if reduction is None or reduction.function != "maximum":
        return None
    found = next((mask for name in division.parts if (mask := _mask_in(division, name))), None)
    if found is None or not (found.kept.low < found.kept.high).all():
        return None
    pieces = blocks_of(replace(division, mask=found))
    if not runs_of(pieces, found.kept):
        return None
    kept = sum(each.extent * (each.rows[1] - each.rows[0]) for each in pieces if each.rows)
    is_worth = kept <= WORTH_SHARE * division.extent * len(found.kept.low)
    return found if is_worth and len(pieces) <= MOST_PIECES else None


def _mask_in(division: Division, name: str) -> Mask | None:
    """The mask of a nest that computes what the maximum is of."""
    nest, axis = division.parts[name].nest, division.parts[name].axis
    if nest.target.buffer not in division.produced:
        return None
    for part in [*parts(nest.finish), *parts(nest.body)]:
        choice = masked(part, nest.extents)
        if choice is None:
            continue
        conditions, value, number = choice
        others = {a for each in conditions for a in each.difference.variables} - {axis}
        if len(others) != 1 or not others <= {each.name for each in nest.parallel_axes}:
            continue
        (row,) = others
        extents = nest.extents
        kept = kept_columns(conditions, row, axis, extents[row], extents[axis])
        marked = Load(HIDDEN, part.dtype, ())
        written = with_part(nest.finish or nest.body, part, marked)
        hidden = number_elsewhere(written, {}, {HIDDEN: masked_number(number)})
        rows = _rows(division, name, row)
        if kept is None or rows is None or hidden is None:
            continue
        known = {nest.target.buffer: hidden}
        term = number_elsewhere(division.shift.body, {}, known)
        exponentials = [
            each.exponential.whole for each in division.parts.values() if each.exponential
        ]
        are_nothing = all(number_elsewhere(each, {}, known) == 0.0 for each in exponentials)
        if term == identity("maximum", F32) and are_nothing:
            return Mask(name, part, value, kept, rows)
    return None


def _rows(division: Division, producer: str, row: str) -> dict[str, str] | None:
    """By nest, the axis for the rows of a mask; None where they are not one axis of all."""
    found = {producer: row}
    shift = division.shift
    written = division.parts[producer].nest.target
    read = next(load for load in shift.loads if load.buffer == written.buffer)
    for at in dimensions(written, row):
        found[shift.name] = next(iter(read.index[at].variables), "")
    waiting = [part for name, part in division.parts.items() if name not in found]
    while waiting:
        part = waiting.pop(0)
        axis = _row_axis(division, part, found)
        if axis is None:
            waiting.append(part)  # what it reads comes later
        else:
            found[part.nest.name] = axis
    return found if all(_has_rows(division, name, axis) for name, axis in found.items()) else None


def _row_axis(division: Division, part: BlockedNest, known: Mapping[str, str]) -> str | None:
    """The axis of a nest for the rows of a mask, "" without any; None while it is not known."""
    if part.exponential is not None:
        return part.exponential.axes.get(known.get(division.shift.name, ""), "")
    if part.nest.target.buffer in division.produced:
        return ""  # a second producer
    source = next(
        each.nest for each in division.parts.values() if each.nest.target.buffer == part.source
    )
    if source.name not in known:
        return None
    load = next(each for each in part.nest.loads if each.buffer == part.source)
    values = axis_values(source, load) or {}
    return next(iter(values.get(known[source.name], Affine()).variables), "")


def _has_rows(division: Division, name: str, axis: str) -> bool:
    """Whether an axis of a nest is for rows alone in every buffer in blocks that it touches."""
    nest = division.parts[name].nest
    if axis not in {each.name for each in nest.parallel_axes}:
        return False
    inside = [each for each in nest.accesses if each.buffer in division.split]
    return all(len(dimensions(each, axis)) == 1 for each in inside)
