"""Products read the pieces of a concatenation where they lie, instead of a copy of all of them.

A step of decoding appends the keys and values of one token to a cache, and reads all of it once.
Where everything that reads a concatenation is a product or a copy, it is divided into one nest for
each piece: along a parallel axis each writes its own part, and sums over the pieces are added up,
the largest piece last. Nothing is concatenated then. As groups of nests end at what is in pieces,
that is done only where the array takes much less time than the copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from glia.arch.instances import get_target
from glia.base.affine import Affine
from glia.options import CompileOptions
from glia.tile.contraction import contraction_operands
from glia.tile.dependences import written_buffers
from glia.tile.estimated_time import engine_ns, estimated_ns
from glia.tile.ir import (
    Accumulator,
    Apply,
    Buffer,
    Expr,
    Load,
    Nest,
    Program,
    Statement,
    Store,
    accessed_buffers,
)
from glia.tile.nest_rewriting import (
    map_loads,
    reads,
    unused_name,
    with_blocks,
    with_total,
    within_values,
)

WORTH_SHARE = 0.5  # of the time of the copies, that the array may take for what reads them


def read_pieces(program: Program, options: CompileOptions) -> Program:
    """The program without concatenations that few rows of products read."""
    return _Rewriter(program, options).program()


@dataclass(frozen=True)
class _Piece:
    """The values `low` .. `high`-1 of the dimension that pieces are of, copied by a nest."""

    low: int
    high: int
    copy: Nest

    def source(self, load: Load, dim: int) -> Load:
        """What the copy reads for a load of the concatenation that is inside of the piece."""
        values = {}
        for place, (written, read) in enumerate(
            zip(self.copy.target.index, load.index, strict=True)
        ):
            if written.terms:
                values[written.terms[0][0]] = read - (self.low if place == dim else 0)
        body = self.copy.body
        assert isinstance(body, Load), "it is a copy"
        return replace(body, index=tuple(part.substitute(values) for part in body.index))


@dataclass(frozen=True)
class _Concatenation:
    """A buffer whose pieces along a dimension are copied from elsewhere."""

    buffer: Buffer
    dim: int
    pieces: tuple[_Piece, ...]


class _Rewriter:
    """Rewrites the blocks of a program, innermost first."""

    def __init__(self, program: Program, options: CompileOptions) -> None:
        self.whole = program
        self.arch = get_target(options.target).arch
        self.buffers = dict(program.buffers)
        self.root = dict(program.aliases)
        self.used = {nest.name for nest in program.nests()} | {*self.buffers}
        self.uses: dict[str, int] = {}  # by buffer: nests that access it
        for nest in program.nests():
            for name in accessed_buffers(nest):
                self.uses[name] = self.uses.get(name, 0) + 1

    def program(self) -> Program:
        body = self._block(self.whole.body)
        return replace(self.whole, body=body, buffers=self.buffers)

    def _block(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        body = [with_blocks(each, self._block) for each in body]
        for found in list(self._concatenations(body)):
            readers = self._readers(found, body)
            if readers and self._is_worth(found, readers):
                body = self._rewritten(found, readers, body)
        return tuple(body)

    # --- what may be read in pieces ---------------------------------------------------------------

    def _concatenations(self, body: Sequence[Statement]) -> Iterator[_Concatenation]:
        """The temporaries that copies of this block write, piece by piece."""
        writers: dict[str, list[Nest | None]] = {}
        for each in body:
            for name in written_buffers(each):
                copy = each if isinstance(each, Nest) and _is_copy(each) else None
                writers.setdefault(name, []).append(copy)
        for name, nests in writers.items():
            if self.buffers[name].role == "temporary" and len(nests) > 1 and all(nests):
                found = _concatenation(self.buffers[name], [each for each in nests if each])
                if found:
                    yield found

    def _readers(self, found: _Concatenation, body: Sequence[Statement]) -> dict[str, str] | None:
        """By nest that reads it, the axis along its pieces; None where one has to read all."""
        name = found.buffer.name
        copies = {piece.copy.name for piece in found.pieces}
        axes: dict[str, str] = {}
        copied = set[str]()
        is_there = True
        for each in body:
            if isinstance(each, Nest) and each.name in copies:
                copied |= self._roots(accessed_buffers(each) - {name})
                continue
            is_there = is_there and copied.isdisjoint(self._roots(written_buffers(each)))
            if name not in accessed_buffers(each):
                continue
            axis = _axis_along(found, each) if isinstance(each, Nest) and is_there else ""
            if not axis:
                return None
            axes[each.name] = axis
        is_all = self.uses.get(name, 0) == len(axes) + len(copies)
        return axes if is_all else None

    def _roots(self, names: set[str]) -> set[str]:
        return {self.root.get(name, name) for name in names}

    def _is_worth(self, found: _Concatenation, readers: Mapping[str, str]) -> bool:
        """Whether copying takes long beside the products."""
        nests = (each for each in self.whole.nests() if each.name in readers)
        products = [each for each in nests if contraction_operands(each)]
        arch = self.arch
        copies_ns = sum(estimated_ns(each.copy, self.buffers, arch) for each in found.pieces)
        products_ns = sum(engine_ns(each, arch) for each in products)
        return bool(products) and products_ns <= WORTH_SHARE * copies_ns

    # --- the rewriting ----------------------------------------------------------------------------

    def _rewritten(
        self, found: _Concatenation, readers: Mapping[str, str], body: Sequence[Statement]
    ) -> list[Statement]:
        copies = {piece.copy.name for piece in found.pieces}
        result: list[Statement] = []
        for each in body:
            if isinstance(each, Nest) and each.name in readers:
                result += self._in_pieces(each, readers[each.name], found)
            elif not (isinstance(each, Nest) and each.name in copies):
                result.append(each)
        del self.buffers[found.buffer.name]
        return result

    def _in_pieces(self, nest: Nest, axis: str, found: _Concatenation) -> Iterator[Nest]:
        """A nest for each piece of what a nest reads along an axis, the largest last."""
        is_summed = nest.reduction is not None and axis in nest.reduction.axes
        others: list[Nest] = []
        pieces = sorted(found.pieces, key=lambda each: each.high - each.low)
        for piece in pieces:
            is_last = piece is pieces[-1]
            part = self._of_piece(nest, axis, piece, found)
            part = part if is_last else replace(part, name=unused_name(nest.name, self.used))
            if is_summed:
                part = _with_sums(part, others) if is_last else self._partial(part)
            others.append(part)
            yield part

    def _of_piece(self, nest: Nest, axis: str, piece: _Piece, found: _Concatenation) -> Nest:
        part = within_values(nest, axis, piece.low, piece.high)

        def source(load: Load) -> Load:
            return piece.source(load, found.dim) if load.buffer == found.buffer.name else load

        return map_loads(part, source)

    def _partial(self, nest: Nest) -> Nest:
        """A nest whose sums go to a buffer of their own."""
        assert nest.reduction is not None, "it sums over a piece"
        name = unused_name(f"{nest.name}.sum", self.used)
        axes = _stored_axes(nest)
        shape = tuple(nest.extents[axis] for axis in axes)
        self.buffers[name] = Buffer(name, nest.reduction.dtype, shape)
        return replace(nest, target=Store(name, tuple(map(Affine.of, axes))), finish=None)


def _is_copy(nest: Nest) -> bool:
    """Whether a nest moves elements, each to a place along axes of its own."""
    body, target = nest.body, nest.target
    if nest.reduction or nest.finish or target.combine or target.dynamic:
        return False
    if not isinstance(body, Load) or body.guards or body.dynamic or body.buffer == target.buffer:
        return False
    terms = [term for part in target.index for term in part.terms]
    is_plain = all(step == 1 for _, step in terms) and all(len(p.terms) < 2 for p in target.index)
    return is_plain and len({axis for axis, _ in terms}) == len(terms) == len(nest.axes)


def _concatenation(buffer: Buffer, copies: Sequence[Nest]) -> _Concatenation | None:
    """The pieces of a buffer that copies write; None unless they are along one dimension."""
    spans = [
        [(low, high + 1) for low, high in (p.bounds(copy.extents) for p in copy.target.index)]
        for copy in copies
    ]
    whole = [(0, extent) for extent in buffer.shape]
    parted = {dim for span in spans for dim, each in enumerate(span) if each != whole[dim]}
    if len(parted) != 1:
        return None
    (dim,) = parted
    pieces = sorted(
        (_Piece(*span[dim], copy) for span, copy in zip(spans, copies, strict=True)),
        key=lambda each: each.low,
    )
    ends = [0, *(each.high for each in pieces)]
    is_filled = [each.low for each in pieces] == ends[:-1] and ends[-1] == buffer.shape[dim]
    return _Concatenation(buffer, dim, tuple(pieces)) if is_filled else None


def _axis_along(found: _Concatenation, nest: Nest) -> str:
    """The axis of a product or copy that goes along the pieces; "" where none does."""
    name = found.buffer.name
    if contraction_operands(nest) is None and not _is_copy(nest):
        return ""
    if nest.target.combine or nest.target.dynamic or reads(nest.finish, name):
        return ""
    if nest.target.buffer == name:
        return ""
    axes = set()
    for load in nest.loads:
        if load.buffer != name:
            continue
        along = load.index[found.dim]
        (axis, *others) = along.variables or ("",)
        is_whole = nest.extents.get(axis) == found.buffer.shape[found.dim]
        if load.guards or load.dynamic or others or along != Affine.of(axis) or not is_whole:
            return ""
        axes.add(axis)
    return axes.pop() if len(axes) == 1 else ""


def _with_sums(nest: Nest, parts: Sequence[Nest]) -> Nest:
    """A nest that adds the sums of others to its own."""
    assert nest.reduction is not None, "it sums over a piece"
    dtype = nest.reduction.dtype
    total: Expr = Accumulator(dtype)
    for part in parts:
        total = Apply("add", (total, Load(part.target.buffer, dtype, part.target.index)), dtype)
    return replace(nest, finish=with_total(nest.finish, total))


def _stored_axes(nest: Nest) -> list[str]:
    """The parallel axes in the order in which the target has them."""
    stored = dict.fromkeys(axis for part in nest.target.index for axis in part.variables)
    parallel = [axis.name for axis in nest.parallel_axes]
    return [*(a for a in parallel if a not in stored), *(a for a in stored if a in parallel)]
