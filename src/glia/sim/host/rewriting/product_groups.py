"""Products that add to one sum, as one product of longer rows.

The matrix engine contracts 128 rows at a time, so that a sum of many rows is a group of products.
Where the operands of two of them are one matrix's neighbouring rows, the host multiplies both at
once: the sum stays in registers instead of going through memory. Sums are made in another order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from glia.base.affine import Affine
from glia.base.dtype import F32
from glia.isa.instructions.tensor import NcMatmul
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Block, Loop, Program, Statement, with_blocks
from glia.sim.host.overlap import tiles_meet
from glia.sim.host.packing import FLOAT_BYTES, host_block
from glia.sim.host.rewriting.element_moves import meets_cores

FIRST_CACHE_PART = 1 << 14  # bytes that a packed block of columns may take


def with_joined_products(
    program: Program, bases: Mapping[str, Tile]
) -> tuple[Program, dict[str, int]]:
    """The program with products joined that follow each other in a block and add to one sum.

    Also how many became part of another one, by mnemonic. `bases` are those of a `MoveTracer`.
    """
    joining = _Joining(program, bases)
    return replace(program, body=joining.block(program.body)), dict(joining.joined)


class _Joining:
    def __init__(self, program: Program, bases: Mapping[str, Tile]) -> None:
        self._program, self._bases = program, bases
        self.joined: Counter[str] = Counter()
        self._most_rows = FIRST_CACHE_PART // (FLOAT_BYTES * host_block().width)
        self._trips: dict[str, int] = {}

    def block(self, body: Block) -> Block:
        """A block with its products joined, each where its last one was."""
        result: list[Statement | None] = []
        groups: dict[Pattern, int] = {}  # destination: place in the result
        for statement in body:
            if not isinstance(statement, Instr):
                groups.clear()
                if isinstance(statement, Loop):
                    self._trips[statement.variable] = statement.trips
                result.append(with_blocks(statement, self.block))
                continue
            joined: Instr | None = self._joined(statement, groups, result)
            if joined is None:
                self._close(statement, groups, result)
                joined = statement
            if isinstance(joined, NcMatmul) and _may_join(joined):
                groups[joined.dst] = len(result)
            result.append(joined)
        return tuple(each for each in result if each is not None)

    def _joined(
        self, instr: Instr, groups: Mapping[Pattern, int], result: list[Statement | None]
    ) -> NcMatmul | None:
        """The product of a group and one that adds to it, which takes its place."""
        if not isinstance(instr, NcMatmul) or not _may_join(instr) or instr.dst not in groups:
            return None
        place = groups[instr.dst]
        before = result[place]
        assert isinstance(before, NcMatmul)
        if not self._adds(instr) or not _is_alike(before, instr):
            return None
        stationary = _continued(before.stationary, instr.stationary)
        moving = _continued(before.moving, instr.moving)
        if stationary is None or moving is None or stationary.partitions > self._most_rows:
            return None
        result[place] = None
        self.joined[instr.mnemonic()] += 1
        return replace(instr, stationary=stationary, moving=moving, accumulate=before.accumulate)

    def _close(
        self, instr: Instr, groups: dict[Pattern, int], result: list[Statement | None]
    ) -> None:
        """End the groups whose sum an instruction touches, or whose operands it may change."""
        touched = list(map(self._base, instr.patterns()))
        written = list(map(self._base, instr.written_patterns()))
        if meets_cores(instr):
            groups.clear()
        for destination, place in list(groups.items()):
            product = result[place]
            assert isinstance(product, NcMatmul)
            sources = (self._base(product.stationary), self._base(product.moving))
            if self._have_shared_bytes([destination.tile], touched) or self._have_shared_bytes(
                sources, written
            ):
                del groups[destination]

    def _have_shared_bytes(self, some: Iterable[Tile], others: Collection[Tile]) -> bool:
        return any(
            one.memory is other.memory and tiles_meet(one, other, self._program)
            for one in some
            for other in others
        )

    def _base(self, pattern: Pattern) -> Tile:
        """The tile whose bytes a pattern names."""
        return self._bases.get(pattern.tile.name, pattern.tile)

    def _adds(self, instr: NcMatmul) -> bool:
        """Whether it adds to what its destination holds in every iteration."""
        condition = instr.accumulate
        if not isinstance(condition, Affine):
            return bool(condition)
        if not set(condition.variables) <= self._trips.keys():
            return False
        least, greatest = condition.bounds(self._trips)
        return least > 0 or greatest < 0


def _may_join(instr: NcMatmul) -> bool:
    """Whether it is a plain product of operands that are not bound to partitions."""
    is_plain = not instr.is_transpose and instr.perf_mode == "none" and instr.dst.dtype is F32
    return is_plain and instr.stationary.memory is instr.moving.memory is Memory.HBM


def _is_alike(one: NcMatmul, other: NcMatmul) -> bool:
    """Whether two products differ in nothing but what they multiply and whether they add."""
    common = {"stationary": other.stationary, "moving": other.moving, "waits": (), "signals": ()}
    common |= {"accumulate": True, "loc": other.loc}
    return replace(one, **common) == replace(other, **common)  # type: ignore[arg-type]


def _continued(one: Pattern, other: Pattern) -> Pattern | None:
    """Both patterns' rows as those of one, if the second's follow the first's."""
    (step, count), *inner = one.dims
    (other_step, more), *others = other.dims
    is_same = (one.tile.name, one.dtype, step, inner) == (
        other.tile.name, other.dtype, other_step, others,
    )  # fmt: skip
    if not is_same or other.offset - one.offset != Affine.of(step * count):
        return None
    return replace(one, dims=((step, count + more), *inner))
