"""How the nests of a group would run: blocks of the shared axes, loops, schedules, bytes moved."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations

from glia.base.affine import Affine
from glia.tile.column_operands import column_axes
from glia.tile.contraction import (
    PARTITIONS,
    axes_of,
    contraction_operands,
    row_dim,
)
from glia.tile.ir import (
    Buffer,
    Load,
    Member,
    Nest,
    Schedule,
    SharedLoop,
    Store,
    loads,
    ordered_axes,
)
from glia.tile.passes.schedule import NestScheduler, temporary_bytes, tiles_of_one_kind
from glia.tile.row_search import row_axes

GROUP_SHARE = 0.8  # of SBUF, for the tiles of all iterations of a group that overlap
MOST_COPIES = 4
ELEMENTS_BESIDE_ONE = 64  # of a larger buffer, for one that DMA may move by itself
VECTOR_INSTRUCTIONS = 2  # for each tile that a nest computes, or so
OUTER_COPIES = 2  # of what is loaded around the innermost loop, for the next iteration to begin
GOOD_BLOCK_BYTES = 16 * 1024  # of the largest buffer, per partition and iteration
GOOD_COLUMNS, LEAST_COLUMNS = 512, 64  # of a product in a block: the PE takes as long for fewer
LEAST_ELEMENTS = 32  # of a partition in a block, for instructions and transfers to be worth while
WORKING_BYTES = 32 * 1024  # per partition, for the temporaries of one nest


@dataclass(frozen=True)
class Chain:
    """Nests that have axes in common: each of `shared` is one axis of every nest."""

    nests: tuple[Nest, ...]
    shared: tuple[tuple[str, ...], ...]

    def extent(self, position: int) -> int:
        """The extent of a shared axis."""
        return self.nests[0].extents[self.shared[position][0]]

    def extended(self, nest: Nest) -> Chain | None:
        """The chain with one more nest; None where they have no axis in common."""
        kept: list[tuple[str, ...]] = []
        for axes in self.shared:
            axis = self._counterpart(axes, nest)
            if axis and all(axis != other[-1] for other in kept):
                kept.append((*axes, axis))
        return Chain((*self.nests, nest), tuple(kept)) if kept else None

    def _counterpart(self, axes: tuple[str, ...], nest: Nest) -> str:
        """The axis of a nest that indexes what the chain writes or reads as these axes do."""
        parallel = {axis.name: axis.extent for axis in row_axes(nest)}
        own = nest.accesses
        found: set[str] = set()
        for writes in (True, False):
            for member, axis in zip(self.nests, axes, strict=True):
                for access in [member.target] if writes else member.loads:
                    for other in own:
                        if other.buffer == access.buffer:
                            found |= _same_place(access.index, other.index, axis)
            if found:
                break
        extent = self.nests[0].extents[axes[0]]
        return next(iter(found)) if len(found) == 1 and parallel.get(min(found)) == extent else ""

    def on_chip(self) -> tuple[str, ...]:
        """The buffers that nests of the chain write and others read, or write pieces of."""
        read = {load.buffer for nest in self.nests for load in nest.loads}
        written = Counter(nest.target.buffer for nest in self.nests)
        return tuple(name for name, count in written.items() if name in read or count > 1)


def _same_place(here: Sequence[Affine], there: Sequence[Affine], axis: str) -> set[str]:
    """The axes of another index where the first has `axis` alone, and begins where it does."""
    found = set()
    for one, other in zip(here, there, strict=True):
        if one.terms == Affine.of(axis).terms:
            begins_alike = one.constant == other.constant
            found.add(other.terms[0][0] if other.terms and begins_alike else "")
    return found


@dataclass(frozen=True)
class _Tile:
    """What SBUF holds of a buffer for an access: bytes per partition, and what moves it.

    `total` is what one pass over all blocks of the shared axes that move it reads or writes, in
    bytes; `moves` are their positions. What stays `on_chip` is not moved from HBM.
    """

    held: int
    total: int
    moves: frozenset[int]
    on_chip: bool = False


class GroupPlan:
    """The blocks, loops and schedules of a chain with one shared axis on the partitions.

    A contraction keeps what it multiplies with every row whole in a block where that fits: its
    columns are in no shared loop then, and what both operands have goes one value at a time.
    """

    def __init__(
        self,
        chain: Chain,
        rows: int,
        buffers: Mapping[str, Buffer],
        products: Mapping[str, Schedule],
        sbuf_bytes: int,
        known_bytes: dict[tuple[str, str], int],
    ) -> None:
        self.chain = chain
        self.known_bytes = known_bytes  # of temporaries, by the name of a nest and its rows
        self.rows = rows
        self.buffers = buffers
        self.products = products
        self.capacity = int(sbuf_bytes * GROUP_SHARE)
        self.on_chip = chain.on_chip()
        self.blocks: dict[int, int] = {}
        self._tiles_by_blocks: dict[tuple[tuple[int, int], ...], list[_Tile]] = {}

    def lines_up(self) -> bool:
        """Whether every buffer that the nests touch has a dimension for the rows, or none of them.

        Where that is the innermost one, DMA would move single elements, of which there may be few;
        operands are turned, where one axis alone indexes what they are summed over.
        """
        if not self._is_one_range():
            return False
        touched = (self.buffers[a.buffer].elements for n in self.chain.nests for a in n.accesses)
        most = max(touched) // ELEMENTS_BESIDE_ONE
        for nest, axis in zip(self.chain.nests, self.chain.shared[self.rows], strict=True):
            operands = self._operands(nest)
            for load in operands:
                product = self.products[nest.name]
                contract, block = product.contract, product.tiles[product.contract]
                is_short = bool(load.index[-1].coefficient(contract))
                if is_short and row_dim(load.index, contract, block) < 0:
                    return False
            for access in nest.accesses:
                if not any(each.coefficient(axis) for each in access.index):
                    continue
                dimension = self._row_dim(access, axis)
                shape = self.buffers[access.buffer].shape
                is_innermost = math.prod(shape[dimension + 1 :]) == 1 < math.prod(shape[:dimension])
                is_few = (
                    access.buffer in self.on_chip or self.buffers[access.buffer].elements <= most
                )
                is_slow = is_innermost and not is_few
                if dimension < 0 or (is_slow and access not in operands):
                    return False
        return True

    def _row_dim(self, access: Load | Store, axis: str) -> int:
        """The dimension of an access that the rows index; -1 if none.

        In HBM other axes may choose where the rows begin: those of an image, or of a sequence.
        """
        index = _from_block(access.index)
        named = [d for d, each in enumerate(index) if each.coefficient(axis)]
        if access.buffer in self.on_chip or len(named) != 1:
            return row_dim(index, axis)
        return named[0] if index[named[0]].coefficient(axis) == 1 else -1

    def _is_one_range(self) -> bool:
        """Whether the rows are the same ones of a buffer wherever nests access it.

        One nest for a few rows of a buffer is no group: those for its other rows are beside it.
        """
        starts: dict[str, set[int]] = {}
        for nest, axis in zip(self.chain.nests, self.chain.shared[self.rows], strict=True):
            for access in nest.accesses:
                found = starts.setdefault(access.buffer, set())
                found.update(each.constant for each in access.index if each.coefficient(axis))
        blocks = -(-self.chain.extent(self.rows) // PARTITIONS)
        is_short = len(self.chain.nests) == 1 and blocks <= MOST_COPIES
        return all(len(found) < 2 and not (is_short and any(found)) for found in starts.values())

    def _operands(self, nest: Nest) -> tuple[Load, ...]:
        return (contraction_operands(nest) or ()) if nest.name in self.products else ()

    def choose_blocks(self, iterations: int) -> bool:
        """Choose the block of each shared axis; whether at least the smallest ones fit on chip.

        So many iterations have to fit beside each other.
        """
        extents = {s: self.chain.extent(s) for s in range(len(self.chain.shared))}
        blocks = {s: n if self._is_column(s) else 1 for s, n in extents.items()}
        blocks[self.rows] = min(PARTITIONS, extents[self.rows])
        fitting = next((b for b in self._narrower(blocks) if self._fits(b, iterations)), None)
        if fitting is None:
            return False
        self.blocks = fitting
        for position in reversed([s for s in extents if s != self.rows and not self.products]):
            for block in _divisors(extents[position]):
                if block > self._most_in_block(position):
                    break
                wider = {**self.blocks, position: block}
                own, largest, fixed = self._bytes(wider)
                is_good = largest <= GOOD_BLOCK_BYTES or self._is_windowed(position)
                if 2 * own + fixed > self.capacity or not is_good:
                    break
                if not self._is_cut(wider):
                    self.blocks = wider
            if self.blocks[position] < extents[position]:
                break
        return True

    def _narrower(self, blocks: Mapping[int, int]) -> Iterator[dict[int, int]]:
        """Blocks of whole columns, then of fewer.

        First of as few as keep the PE busy, then of as many as fit: each block reads rows again.
        """
        columns = [s for s in blocks if s != self.rows and blocks[s] > 1]
        yield dict(blocks)
        most = max((blocks[s] for s in columns), default=1)
        narrow = [
            {**blocks, **{s: max(d for d in _divisors(blocks[s]) if d <= limit) for s in columns}}
            for limit in _divisors(most)[:-1]
        ]
        good = [each for each in narrow if self._columns(each) >= GOOD_COLUMNS]
        yield from good[:1]
        for each in reversed(narrow):
            if self._columns(each) >= LEAST_COLUMNS:
                yield each

    def _columns(self, blocks: Mapping[int, int]) -> int:
        """How many columns the product has that has the fewest in a block."""
        found = []
        for number, nest in enumerate(self.chain.nests):
            rows = self.chain.shared[self.rows][number]
            within = self._extents_in_block(blocks, number)
            both = [axes_of(load) for load in self._operands(nest)]
            for own, other in zip(both, reversed(both), strict=True):
                if rows not in own:
                    found.append(math.prod(within[axis] for axis in own - other))
        return min(found, default=GOOD_COLUMNS)

    def is_too_small(self) -> bool:
        """Whether every nest has but a few elements in each partition of a block, and has more."""
        for number, nest in enumerate(self.chain.nests):
            rows = self.chain.shared[self.rows][number]
            counts = [
                math.prod(n for axis, n in extents.items() if axis != rows)
                for extents in (self._extents_in_block(self.blocks, number), nest.extents)
            ]
            if counts[0] >= min(LEAST_ELEMENTS, counts[1]):
                return False
        return True

    def _fits(self, blocks: Mapping[int, int], iterations: int) -> bool:
        """Whether so many iterations over such blocks fit on chip beside each other."""
        own, _, fixed = self._bytes(blocks)
        return iterations * own + fixed <= self.capacity

    def largest_bytes(self) -> int:
        """Bytes per partition of the largest tile of an iteration."""
        _, largest, _ = self._bytes(self.blocks)
        return largest

    def _is_column(self, position: int) -> bool:
        """Whether a contraction has a shared axis in the operand without the rows alone."""
        nests, shared = self.chain.nests, self.chain.shared
        for nest, axis, rows in zip(nests, shared[position], shared[self.rows], strict=True):
            holders = [axes_of(load) for load in self._operands(nest) if axis in axes_of(load)]
            if len(holders) == 1 and rows not in holders[0]:
                return True
        return False

    def _is_windowed(self, position: int) -> bool:
        """Whether neighbours along a shared axis read the same, which blocks would read again."""
        for nest, axis in zip(self.chain.nests, self.chain.shared[position], strict=True):
            swept = {each.name: each.extent for each in nest.reduced_axes}
            for index in (each for load in nest.loads for each in load.index):
                step = abs(index.coefficient(axis))
                window = sum(abs(n) * (swept[v] - 1) for v, n in index.terms if v in swept)
                if 0 < step <= window:
                    return True
        return False

    def _most_in_block(self, position: int) -> int:
        """The values of a shared axis in a block at most: no nest cuts a block further."""
        most = self.chain.extent(position)
        if self._is_windowed(position):
            return most
        for number, nest in enumerate(self.chain.nests):
            rows = self.chain.shared[self.rows][number]
            tiles = tiles_of_one_kind(nest, rows)
            if tiles is not None:
                most = min(most, tiles[self.chain.shared[position][number]])
        return most

    def _extents_in_block(self, blocks: Mapping[int, int], number: int) -> dict[str, int]:
        """The extents of a nest's axes in one iteration."""
        nest = self.chain.nests[number]
        own = {axes[number]: blocks[s] for s, axes in enumerate(self.chain.shared)}
        return {name: own.get(name, extent) for name, extent in nest.extents.items()}

    def _bytes(self, blocks: Mapping[int, int]) -> tuple[int, int, int]:
        """(bytes per partition of the tiles of an iteration, of the largest, of what all share)."""
        tiles = self._tiles(blocks)
        temporaries = 0
        for number, nest in enumerate(self.chain.nests):
            axis = self.chain.shared[self.rows][number]
            within = self._extents_in_block(blocks, number)
            if nest.name in self.products:
                within |= {a: self.products[nest.name].tiles[a] for a in within}
            swept = math.prod(n for name, n in within.items() if name != axis)
            working = swept * self._temporary_bytes[number]
            temporaries = max(temporaries, min(working, WORKING_BYTES))
        moving = [tile.held for tile in tiles if tile.moves]
        fixed = sum(tile.held for tile in tiles if not tile.moves)
        return sum(moving) + temporaries, max(moving, default=0), fixed

    def _tiles(self, blocks: Mapping[int, int]) -> list[_Tile]:
        """What SBUF holds in one iteration, beside temporaries; what nests share once."""
        key = tuple(sorted(blocks.items()))
        if key not in self._tiles_by_blocks:
            self._tiles_by_blocks[key] = self._held_tiles(blocks)
        return self._tiles_by_blocks[key]

    def _held_tiles(self, blocks: Mapping[int, int]) -> list[_Tile]:
        found: dict[object, _Tile] = {}
        for number, nest in enumerate(self.chain.nests):
            within = self._extents_in_block(blocks, number)
            for access, partition in self._placed_accesses[number]:
                spans = _spans(access.index, within, partition)
                key: object = access.buffer, partition in self.chain.shared[self.rows], spans
                if not access.index or (isinstance(access, Load) and access.guards):
                    key = key, nest.name
                found[key] = self._tile(access, partition, number, blocks, spans)
        return list(found.values())

    @cached_property
    def _placed_accesses(self) -> list[list[tuple[Load | Store, str]]]:
        """By nest, (access, axis on its partitions) of everything that it touches."""
        shared = zip(self.chain.nests, self.chain.shared[self.rows], strict=True)
        return [[*self._places(nest, rows)] for nest, rows in shared]

    @cached_property
    def _temporary_bytes(self) -> list[int]:
        """By nest, the bytes of its temporaries for each value of the axes in a partition."""
        shared = zip(self.chain.nests, self.chain.shared[self.rows], strict=True)
        found = []
        for nest, rows in shared:
            key = nest.name, rows
            if key not in self.known_bytes:
                self.known_bytes[key] = temporary_bytes(nest, rows)
            found.append(self.known_bytes[key])
        return found

    def _places(self, nest: Nest, rows: str) -> Iterator[tuple[Load | Store, str]]:
        operands = self._operands(nest)
        if not operands:
            yield from ((access, rows) for access in nest.accesses)
            return
        yield from ((load, self.products[nest.name].contract) for load in operands)
        yield nest.target, rows
        yield from ((load, rows) for load in loads(nest.finish))

    def _tile(
        self,
        access: Load | Store,
        partition: str,
        number: int,
        blocks: Mapping[int, int],
        spans: Sequence[int],
    ) -> _Tile:
        nest, buffer = self.chain.nests[number], self.buffers[access.buffer]
        within = self._extents_in_block(blocks, number)
        parts = -(-within[partition] // PARTITIONS) if partition else 1
        held = math.prod(spans) * parts * buffer.dtype.bytes
        moves = frozenset(
            s
            for s, axes in enumerate(self.chain.shared)
            if blocks[s] < nest.extents[axes[number]]
            and any(each.coefficient(axes[number]) for each in access.index)
        )
        total = math.prod(_spans(access.index, nest.extents, "")) * buffer.dtype.bytes
        return _Tile(held, total, moves, access.buffer in self.on_chip)

    def instructions(self) -> int:
        """About how many instructions an iteration takes."""
        count = 0
        for number, nest in enumerate(self.chain.nests):
            within = self._extents_in_block(self.blocks, number)
            schedule = self._schedule(number, self.blocks)
            trips = {a: -(-n // schedule.tiles[a]) for a, n in within.items()}
            count += VECTOR_INSTRUCTIONS * math.prod(trips[a.name] for a in nest.parallel_axes)
            if nest.name in self.products:
                count += math.prod(trips.values())
                for load in self._operands(nest):
                    rows = self.chain.shared[self.rows][number]
                    if rows in axes_of(load):  # it may have to be turned
                        count += 2 * math.prod(trips[a] for a in axes_of(load))
        return count

    def reloaded_bytes(self) -> int:
        """What is read from HBM more than once, because loops around do not move it."""
        return self._reloaded(self._order())

    def _reloaded(self, order: Sequence[int]) -> int:
        again = 0
        for tile in self._tiles(self.blocks):
            if tile.on_chip or not tile.moves:
                continue
            around = order[: 1 + max(order.index(s) for s in tile.moves)]
            trips = math.prod(self._trips(s) for s in around if s not in tile.moves)
            again += tile.total * (trips - 1)
        return again

    def _trips(self, position: int) -> int:
        return -(-self.chain.extent(position) // self.blocks[position])

    def _order(self) -> list[int]:
        """The shared axes that are looped over, outermost first: least traffic, then longest."""
        looped = [s for s in self.blocks if self._trips(s) > 1]
        looped.sort(key=self._trips)
        if not self.products:
            return looped
        return min(map(list, permutations(looped)), key=self._reloaded)

    def loop(self) -> SharedLoop | None:
        """The shared loops with the nests in them; None without any."""
        order = self._order()
        if not order:
            return None
        copies = min(MOST_COPIES, self._trips(order[-1]))
        body: tuple[SharedLoop | Member, ...] = tuple(
            Member(
                nest.name,
                tuple(self.chain.shared[s][number] for s in order),
                self._schedule(number, self.blocks),
            )
            for number, nest in enumerate(self.chain.nests)
        )
        for s in reversed(order):
            body = (SharedLoop(self.chain.extent(s), self.blocks[s], body, copies),)
            copies = OUTER_COPIES if self._may_take_turns() else 1
        (loop,) = body
        assert isinstance(loop, SharedLoop)
        return loop

    def _may_take_turns(self) -> bool:
        """Whether two iterations of the outer loops, and two of the innermost, fit on chip."""
        own, _, fixed = self._bytes(self.blocks)
        return bool(self.products) and 2 * own + fixed <= self.capacity

    def _is_cut(self, blocks: Mapping[int, int]) -> bool:
        """Whether a nest holds so much for each value that it cuts blocks that are looped over."""
        return any(
            axes[number] in self._schedule(number, blocks).order
            for s, axes in enumerate(self.chain.shared)
            if blocks[s] < self.chain.extent(s)
            for number in range(len(self.chain.nests))
        )

    def _schedule(self, number: int, blocks: Mapping[int, int]) -> Schedule:
        """The schedule of a nest in one iteration: instructions sweep all of it, if they can."""
        nest = self.chain.nests[number]
        rows = self.chain.shared[self.rows][number]
        within = self._extents_in_block(blocks, number)
        product = self.products.get(nest.name)
        if product is not None:
            tiles = {name: min(product.tiles[name], n) for name, n in within.items()}
            inside = tuple(name for name in product.order if tiles[name] < within[name])
            return replace(product, tiles=tiles, order=inside)
        carried = ordered_axes(nest)  # last, so that they are cut last
        axes = [*nest.parallel_axes, *nest.reduced_axes]
        own = tiles_of_one_kind(nest, rows)
        if own is not None:
            tiles = {a: min(t, within[a]) for a, t in own.items()}
            return Schedule("vector", rows, tiles, tuple(a for a in tiles if tiles[a] < within[a]))
        swept = [axis.name for axis in sorted(axes, key=lambda axis: axis.name in carried)]
        columns = column_axes(nest, rows)
        tiles = {name: 1 if name in columns else within[name] for name in swept}
        most = max(1, WORKING_BYTES // max(1, self._temporary_bytes[number]))
        for name in swept:
            if name == rows:
                continue
            elements = math.prod(n for other, n in tiles.items() if other != rows)
            if elements > most:
                tiles[name] = max(1, tiles[name] * most // elements)
        order = tuple(name for name in swept if tiles[name] < within[name])
        return Schedule("vector", rows, tiles, order)


def products_in_rows(
    chain: Chain, rows: int, scheduler: NestScheduler, schedules: Mapping[str, Schedule]
) -> dict[str, Schedule] | None:
    """The schedules of a chain's contractions with a shared axis on their partitions.

    None where one of them cannot have it there.
    """
    found: dict[str, Schedule] = {}
    for nest, axis in zip(chain.nests, chain.shared[rows], strict=True):
        if schedules[nest.name].engine == "tensor":
            schedule = scheduler.contraction_in_rows(nest, axis)
            if schedule is None:
                return None
            found[nest.name] = schedule
    return found


def _spans(index: Sequence[Affine], within: Mapping[str, int], rows: str) -> tuple[int, ...]:
    """The number of values of each dimension that one partition holds of an access."""
    found = []
    for each in index:
        low, high = each.bounds({**within, rows: 1})
        found.append(high - low + 1)
    return tuple(found)


def _from_block(index: Sequence[Affine]) -> tuple[Affine, ...]:
    """An index less the constants that are whole blocks of rows."""
    return tuple(
        each if each.constant % PARTITIONS else Affine(each.terms) if each.constant else each
        for each in index
    )


def _divisors(number: int) -> list[int]:
    """The divisors of a number in ascending order."""
    low = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    high = [number // each for each in reversed(low) if each * each != number]
    return low + high
