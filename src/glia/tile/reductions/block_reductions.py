"""Maxima and means, and sums about them, run block by block of the axis that both sweep.

    max over k of x  =  max over b of m[b]          m[b] = max over the k in block b of x
    sum over k of exp(x - h) * w
        =  sum over b of exp(m[b] - h) * (sum over the k in block b of exp(x - m[b]) * w)
    sum over k of (x - h)^2
        =  sum over b of n * (a[b] - h)^2 + (sum over the k in block b of (x - a[b])^2)

where a[b] is the mean of the n values of block b. A sum can begin only when the maximum, or the
mean, is known, so that a row is read, or computed, once for each of them, and goes through HBM
where SBUF does not hold it. For a block both are computed while it is on chip, whatever the other
blocks have; what is left of it are numbers, or what attention mixes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

from glia.arch.instances import get_target
from glia.base.affine import Affine
from glia.base.dtype import F32
from glia.options import CompileOptions
from glia.tile.contraction import PARTITIONS, contraction_operands
from glia.tile.ir import (
    Buffer,
    Load,
    Nest,
    Program,
    Statement,
    Store,
    accessed_buffers,
    control_buffers,
    loads,
    ordered_axes,
)
from glia.tile.nest_rewriting import axes_in, axis_values, reads, with_blocks
from glia.tile.passes.group_plan import GROUP_SHARE, WORKING_BYTES
from glia.tile.passes.skip_masked_blocks import NOTE
from glia.tile.reductions.blocks import BlockedNests
from glia.tile.reductions.division import BlockedNest, Division, blocks_of, dimensions
from glia.tile.reductions.masks import mask_of
from glia.tile.reductions.shifted_sums import (
    ShiftedExponential,
    is_linear,
    shifted_exponential,
    shifted_square,
)

ROW_SHARE = 0.2  # of SBUF, for what nests read and write of a row: others are beside it


def block_reductions(program: Program, options: CompileOptions) -> Program:
    """Divide reductions that depend on each other where rows are too long to stay on chip."""
    divider = _Divider(program, get_target(options.target).arch.sbuf_usable_bytes_per_partition)
    body = divider.block(program.body)
    if not divider.made:
        return program
    used = {name for statement in body for name in accessed_buffers(statement)}
    kept = {n: b for n, b in program.buffers.items() if n in used or b.role != "temporary"}
    notes = (*program.notes, NOTE) if divider.is_masked else program.notes
    return replace(program, body=body, buffers=kept | divider.made, notes=notes)


class _Divider:
    """Divides reductions in blocks of statements; `made` are the buffers that are new."""

    def __init__(self, program: Program, sbuf_bytes: int) -> None:
        self.program = program
        self.sbuf_bytes = sbuf_bytes
        self.made: dict[str, Buffer] = {}
        self.is_masked = False
        self.sources = dict(program.aliases)
        self.readers: dict[str, list[Nest]] = {}
        self.writers: dict[str, list[Nest]] = {}
        for nest in program.nests():
            self.writers.setdefault(nest.target.buffer, []).append(nest)
            for name in dict.fromkeys(load.buffer for load in nest.loads):
                self.readers.setdefault(name, []).append(nest)
        self.fixed = {*program.outputs, *control_buffers(program.body)}
        self.fixed.update(name for pair in program.aliases for name in pair)

    def block(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        """The statements of a block with reductions divided, in inner blocks as well."""
        found = [with_blocks(each, self.block) for each in body]
        nests = [each for each in found if isinstance(each, Nest)]
        inside = {nest.name for nest in nests}
        for nest in nests:
            division = self._division(nest, inside) if nest.name in inside else None
            if division is not None and self._divide(division, found):
                inside -= division.parts.keys()  # what `readers` and `writers` have is no more so
        return tuple(found)

    # --- what is divided --------------------------------------------------------------------------

    def _division(self, nest: Nest, inside: Set[str]) -> Division | None:
        """What runs in blocks with a reduction; None where that is nothing, or rows are short.

        All of it is `inside` of one block of statements, and not divided.
        """
        reduction = nest.reduction
        is_alone = len(self.writers[nest.target.buffer]) == 1
        if reduction is None or reduction.dtype is not F32 or len(reduction.axes) != 1:
            return None
        if reduction.function not in ("maximum", "add") or not _is_plain(nest) or not is_alone:
            return None
        (axis,) = nest.reduced_axes
        division = Division(nest, axis.extent, {nest.name: BlockedNest(nest, axis.name)})
        for reader in self.readers.get(nest.target.buffer, ()):
            if reader.name in inside and reduction.function == "maximum":
                self._add_exponential(division, reader, inside)
            elif reader.name in inside:
                self._add_square(division, reader)
        has_sums = any(part.is_summed for part in division.parts.values())
        is_one = sum(each.count for each in blocks_of(division)) == 1
        if is_one or not has_sums or not self._is_long(division):
            return None
        self._add_producers(division, inside)
        lanes = math.prod(each.extent for each in nest.parallel_axes)
        products = (contraction_operands(part.nest) for part in division.parts.values())
        if lanes < PARTITIONS and not any(products):
            # Parts of a row lie on the partitions, which a block would be too short for
            return None
        division.mask = mask_of(division)
        return division

    def _is_long(self, division: Division) -> bool:
        """Whether rows are too long.

        If other nests need all of a row again, it has to be so long that a group could not have
        one row on chip, with what they write.
        """
        axis = division.parts[division.shift.name].axis
        names = [load.buffer for load in division.shift.loads if dimensions(load, axis)]
        names += (division.parts[name].nest.target.buffer for name in division.kept)
        others = {
            reader.target.buffer: reader.dtype.bytes
            for name in names
            for reader in self.readers.get(name, ())
            if reader.name not in division.parts and reader.reduction is None
            if division.extent in reader.extents.values()
        }
        value_bytes = division.term_bytes + division.map_bytes + sum(others.values())
        most = self.sbuf_bytes * ROW_SHARE
        if others:
            most = self.sbuf_bytes * GROUP_SHARE - WORKING_BYTES
        return division.extent * value_bytes > most

    def _may_change(self, name: str) -> bool:
        """Whether a buffer is a temporary of nests, one of which writes it."""
        is_temporary = self.program.buffers[name].role == "temporary" and name not in self.fixed
        return is_temporary and len(self.writers.get(name, ())) == 1

    def _add_exponential(self, division: Division, nest: Nest, inside: Set[str]) -> None:
        """Add a nest with an exponential, and those that sum up what it writes, if any do."""
        exponential = shifted_exponential(nest, division.shift)
        if exponential is None or nest.name in division.parts:
            return
        repair = _repair(nest, exponential)
        place = Load(repair.target.buffer, F32, repair.target.index)
        part = BlockedNest(nest, exponential.axis, place, exponential)
        if self._add_sums(division, part, inside):
            division.repairs[nest.name] = repair

    def _add_square(self, division: Division, nest: Nest) -> None:
        """Add a nest that sums up squares about a mean, if blocks are all of one extent."""
        square = shifted_square(nest, division.shift)
        reduction = nest.reduction
        is_sum = reduction and reduction.function == "add" and reduction.dtype is F32
        if square is None or not is_sum or not _is_plain(nest):
            return
        part = BlockedNest(nest, square.axis, square=square)
        is_even = len(blocks_of(division)) == 1 and len(nest.reduced_axes) == 1
        if part.is_summed and is_even and nest.extents[part.axis] == division.extent:
            division.parts[nest.name] = part

    def _add_sums(self, division: Division, part: BlockedNest, inside: Set[str]) -> bool:
        """Add a nest if it is a sum, or a map that sums read; whether it is.

        A map that others read too is kept, and computed for them when totals are known.
        """
        if not _is_divisible(part, division.extent):
            return False
        if not part.is_summed:
            name = part.nest.target.buffer
            along = dimensions(part.nest.target, part.axis)
            reading = [
                _reading(part, each)
                for each in self.readers.get(name, ())
                if each.name in inside and not reads(each.body, division.shift.target.buffer)
            ]
            added = {
                found.nest.name
                for found in reading
                if found and found.nest.name not in division.parts
                if len(along) == 1 and self._add_sums(division, found, inside)
            }
            if not added:
                return False
            (division.split[name],) = along
            is_all = len(added) == len(self.readers[name]) and self._may_change(name)
            if not is_all or added & division.kept:
                division.kept.add(part.nest.name)
        division.parts[part.nest.name] = part
        return True

    def _add_producers(self, division: Division, inside: Set[str]) -> None:
        """Add the nests that compute, for those of the division alone, what is reduced."""
        part = division.parts[division.shift.name]
        for load in division.shift.loads:
            along = dimensions(load, part.axis)
            if len(along) != 1 or not self._may_change(load.buffer):
                continue
            (nest,) = self.writers[load.buffer]
            written = nest.target.index[along[0]]
            axis = next(iter(written.variables), "")
            is_parallel = any(axis == each.name for each in nest.parallel_axes)
            is_along = is_parallel and dimensions(nest.target, axis) == along
            is_read = self._is_read_along(division, load.buffer, along)
            if is_along and is_read and nest.name in inside and _is_plain(nest):
                division.parts[nest.name] = BlockedNest(nest, axis)
                (division.split[load.buffer],) = along
                division.produced.add(load.buffer)

    def _is_read_along(self, division: Division, name: str, along: Sequence[int]) -> bool:
        """Whether a buffer is read in blocks alone, which go along these dimensions."""
        return all(
            reader.name in division.parts
            and reader.name not in division.kept
            and dimensions(each, division.parts[reader.name].axis) == along
            for reader in self.readers[name]
            for each in reader.loads
            if each.buffer == name
        )

    # --- the statements ---------------------------------------------------------------------------

    def _divide(self, division: Division, body: list[Statement]) -> bool:
        """Carry a division out in a block of statements; whether their order allows it.

        Blocks come together, after what does not need them. What needs them, totals included, comes
        later, in the order there was.
        """
        builder = BlockedNests(division, self.program.buffers)
        places = [at for at, each in enumerate(body) if each.name in division.parts]
        span = slice(places[0], places[-1] + 1)
        before: list[Statement] = []
        inside: list[BlockedNest] = []
        after = _Ordered(self.sources)
        waited_for = _Ordered(self.sources)
        for statement in body[span]:
            part = division.parts.get(statement.name)
            if part is not None:
                if after.writes_any(_read_in_blocks(part, division.shift)):
                    return False
                inside.append(part)
                waited_for.append(part.nest)
                for total in builder.totals(part):
                    after.append(total)
                if part.nest.name not in division.kept:
                    continue
            if after.precedes(statement) or waited_for.precedes(statement):
                after.append(statement)
            else:
                before.append(statement)
        for name in [each for each in division.parts if each in division.kept]:
            after.put_late(name)
        nests = [builder.nest(part, blocks) for blocks in builder.blocks for part in inside]
        body[span] = [*before, *nests, *after.statements]
        self.made |= builder.buffers
        self.is_masked |= division.mask is not None
        return True


class _Ordered:
    """Statements in order, with the buffers that they touch and write; outputs by their sources."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.sources = sources
        self.statements: list[Statement] = []
        self.touched: set[str] = set()
        self.written: set[str] = set()

    def append(self, statement: Statement) -> None:
        """Add a statement at the end."""
        self.statements.append(statement)
        self.touched |= self._touched(statement)
        self.written |= self._written(statement)

    def precedes(self, statement: Statement) -> bool:
        """Whether a statement has to stay behind one of these."""
        touched, written = self._touched(statement), self._written(statement)
        return not (self.written.isdisjoint(touched) and self.touched.isdisjoint(written))

    def writes_any(self, names: Iterable[str]) -> bool:
        """Whether one of these writes one of some buffers."""
        return any(self.sources.get(name, name) in self.written for name in names)

    def put_late(self, name: str) -> None:
        """Move a nest to before the first statement that has to follow it."""
        at = next(n for n, each in enumerate(self.statements) if each.name == name)
        alone = _Ordered(self.sources)
        alone.append(self.statements.pop(at))
        rest = range(at, len(self.statements))
        later = (n for n in rest if alone.precedes(self.statements[n]))
        self.statements.insert(next(later, len(self.statements)), alone.statements[0])

    def _touched(self, statement: Statement) -> set[str]:
        return {self.sources.get(name, name) for name in accessed_buffers(statement)}

    def _written(self, statement: Statement) -> set[str]:
        """The buffers that a nest writes, or anything else accesses."""
        if not isinstance(statement, Nest):
            return self._touched(statement)
        return {self.sources.get(statement.target.buffer, statement.target.buffer)}


def _read_in_blocks(part: BlockedNest, shift: Nest) -> set[str]:
    """The buffers that a nest reads in blocks, but for those of which it reads that of the block.

    The whole shift is replaced where it is in an exponential or square, and nowhere else.
    """
    replaced = {part.source}
    if part.exponential is not None or part.square is not None:
        replaced.add(shift.target.buffer)
    return {load.buffer for load in loads(part.nest.body)} - replaced


def _repair(nest: Nest, exponential: ShiftedExponential) -> Nest:
    """A nest for the factors of an exponential."""
    used = axes_in(exponential.difference.args[1]).union(*map(axes_in, exponential.factors))
    axes = tuple(axis for axis in nest.axes if axis.name in used)
    target = Store(f"{nest.name}.repair", tuple(Affine.of(axis.name) for axis in axes))
    return Nest(target.buffer, axes, exponential.whole, target, loc=nest.loc)


def _is_divisible(part: BlockedNest, extent: int) -> bool:
    """Whether what a nest computes is what is repaired times something else."""
    nest = part.nest
    if not _is_plain(nest) or nest.extents[part.axis] != extent:
        return False
    if nest.reduction is not None:
        is_sum = nest.reduction.function == "add" and nest.reduction.dtype is F32
        if not is_sum or not part.is_summed:
            return False
    elif nest.finish is not None:
        return False
    reduced = {axis.name for axis in nest.reduced_axes}
    factor = part.repair.index if part.repair is not None else ()
    is_factor_of_sum = not any(reduced & {*each.variables} for each in factor)
    return is_factor_of_sum and is_linear(nest.body, part.is_repaired)


def _is_plain(nest: Nest) -> bool:
    """Whether a nest writes where its axes say, and reads so, and has no order."""
    target, offsets = nest.target, (load.dynamic for load in nest.loads)
    return not (target.dynamic or target.combine or ordered_axes(nest) or any(offsets))


def _reading(part: BlockedNest, reader: Nest) -> BlockedNest | None:
    """A nest that reads what another one writes block by block; None where that is not clear."""
    found = {load for load in reader.loads if load.buffer == part.nest.target.buffer}
    if len(found) != 1 or part.repair is None:
        return None
    (load,) = found
    values = None if load.guards or load.dynamic else axis_values(part.nest, load)
    if values is None or len(values[part.axis].terms) != 1:
        return None
    (axis,) = values[part.axis].variables
    if values[part.axis] != Affine.of(axis):
        return None
    index = tuple(each.substitute(values) for each in part.repair.index)
    repair = replace(part.repair, index=index)
    is_free = not any(each.coefficient(axis) for each in index)
    return BlockedNest(reader, axis, repair, source=load.buffer) if is_free else None
