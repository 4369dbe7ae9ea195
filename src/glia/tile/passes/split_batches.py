"""Batches that a product sees as rows of two axes have two axes in all nests.

Frameworks reshape [images, heads, tokens, width] to have one batch for products, and back. Where a
product reads a temporary by `heads * image + head`, nests that sweep that dimension by one axis get
two, so that all of them have both in common and may be a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from glia.base.affine import Affine
from glia.options import CompileOptions
from glia.tile.contraction import axes_of, contraction_operands
from glia.tile.ir import Axis, Load, Nest, Program, control_buffers, ordered_axes
from glia.tile.nest_rewriting import map_nests, substitute_axes
from glia.tile.split_dimensions import row_length, split_dimensions

Dimension = tuple[str, int]  # a buffer and one of its dimensions


def split_batches(program: Program, options: CompileOptions) -> Program:
    """Split axes over dimensions that a product sweeps in rows, with all that follows from it."""
    tried: set[tuple[Dimension, int]] = set()
    while (batch := next((b for b in _batches(program) if b not in tried), None)) is not None:
        tried.add(batch)
        dimension, length = batch
        found = _Search(program, length).axes(dimension)
        if found:
            program = split_dimensions(_with_rows(program, found, length))
    return program


def _with_rows(program: Program, axes: Mapping[str, str], length: int) -> Program:
    def change(nest: Nest) -> Nest:
        return _in_rows(nest, axes[nest.name], length) if nest.name in axes else nest

    return map_nests(program, change)


def _batches(program: Program) -> Iterator[tuple[Dimension, int]]:
    """The dimensions of operands over two batch axes of a product, with their rows' length."""
    for nest in program.nests():
        operands = contraction_operands(nest) or ()
        both = frozenset[str].intersection(*map(axes_of, operands)) if operands else frozenset()
        batch = both & {axis.name for axis in nest.parallel_axes}
        for load in operands:
            for dimension, part in enumerate(load.index):
                length = row_length(part, nest)
                if length and batch.issuperset(part.variables):
                    yield (load.buffer, dimension), length


class _Search:
    """The search for all axes that have to be split into rows of a length together."""

    def __init__(self, program: Program, length: int) -> None:
        self.length = length
        self.buffers = program.buffers
        self.users: dict[str, list[Nest]] = {}
        for nest in program.nests():
            for name in {access.buffer for access in nest.accesses}:
                self.users.setdefault(name, []).append(nest)
        temporaries = {n for n, each in program.buffers.items() if each.role == "temporary"}
        self.free = temporaries - control_buffers(program.body)

    def axes(self, first: Dimension) -> dict[str, str]:
        """By nest, the axis to split; nothing where some nest cannot follow."""
        found: dict[str, str] = {}
        waiting, seen = [first], {first}
        while waiting:
            buffer, dimension = waiting.pop()
            if buffer not in self.free:
                return {}
            for nest in self.users[buffer]:
                swept = self._swept(nest, buffer, dimension)
                if swept is None or (swept and found.setdefault(nest.name, swept) != swept):
                    return {}
                for each in self._dimensions(nest, swept):
                    if each not in seen:
                        seen.add(each)
                        waiting.append(each)
        return found

    def _swept(self, nest: Nest, buffer: str, dimension: int) -> str | None:
        """The axis with which a nest sweeps a dimension; "" for rows, None for anything else."""
        parts = {a.index[dimension] for a in nest.accesses if a.buffer == buffer}
        if len(parts) > 1 or any(a.dynamic for a in nest.accesses if a.buffer == buffer):
            return None
        part = parts.pop()
        if row_length(part, nest) == self.length:
            return ""
        axis = part.variables[0] if part.variables else ""
        is_whole = (
            part == Affine.of(axis)
            and nest.extents[axis] == (self.buffers[buffer].shape[dimension])
        )
        parallel = {each.name for each in nest.parallel_axes} - ordered_axes(nest)
        return axis if is_whole and axis in parallel else None

    def _dimensions(self, nest: Nest, axis: str) -> Iterator[Dimension]:
        """The dimensions of temporaries that a nest sweeps by an axis."""
        for access in nest.accesses:
            is_guarded = isinstance(access, Load) and bool(access.guards)
            if access.buffer in self.free and not is_guarded:
                for dimension, part in enumerate(access.index):
                    if axis and part == Affine.of(axis):
                        yield access.buffer, dimension


def _in_rows(nest: Nest, axis: str, length: int) -> Nest:
    """The nest with two axes in place of one."""
    row = Axis(f"{axis}.row", nest.extents[axis] // length)
    nest = substitute_axes(nest, {axis: Affine.of(row.name) * length + axis}, {})
    parts = {axis: (row, Axis(axis, length))}
    axes = tuple(part for each in nest.axes for part in parts.get(each.name, (each,)))
    return replace(nest, axes=axes)
