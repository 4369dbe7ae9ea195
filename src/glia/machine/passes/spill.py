"""Spilling: where live tiles exceed a memory, contents leave it and come back before their use.

What PSUM cannot hold goes to SBUF, what SBUF cannot hold to HBM. The victim is the tile whose next
use is farthest away for what its way out and back costs (Belady's rule, weighted). What was loaded
of an argument, and not changed, is not stored but loaded again. A tile that leaves and returns
becomes several tiles, so that every later pass sees ordinary lifetimes.

A sum of products that leaves before its last one is cut in two: what it has come to goes to SBUF,
the products that follow begin another sum, and the parts are added before anything reads them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from glia.arch import Arch
from glia.arch.instances import get_target
from glia.base.dtype import F32, U8
from glia.base.loc import UNKNOWN, Loc
from glia.isa.cost import engine_cycles
from glia.isa.instructions.dma import DmaCopy, Transfer
from glia.isa.instructions.vector import TensorCopy, TensorTensor
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile, whole_tile
from glia.isa.rendezvous import CrossCoreInstr
from glia.machine.instruction_rewriting import substitute
from glia.machine.ir import Program, Statement, walk
from glia.machine.legal_instruction import violations
from glia.machine.passes.lifetimes import find_lifetimes
from glia.machine.passes.on_chip_space import (
    ON_CHIP,
    OnChipMemoryFull,
    UnplacedTile,
    memory_full,
    occupied_bytes,
    on_chip_capacities,
)
from glia.machine.passes.pack_intervals import Block, largest_live_set
from glia.machine.queues import QUEUE_OWNERS
from glia.machine.written_parts import WrittenParts, part_of

Products = Sequence[tuple[int, bool]]  # (statement, whether it adds)
Demand = Mapping[Memory, int]  # bytes of a partition


@dataclass(frozen=True)
class SpilledLine:
    """What left a memory of the tiles that one source line writes first."""

    memory: Memory
    to: Memory
    loc: Loc
    tiles: int
    stored_bytes: int
    reloads: int
    reloaded_bytes: int
    copy_ns: float  # of the engines that copy; other work may overlap it

    def __str__(self) -> str:
        returns = f"{self.reloads} reloads of {self.reloaded_bytes} bytes" if self.reloads else ""
        stored = f"spill {self.stored_bytes} bytes to {self.to.value}"
        parts = [stored if self.stored_bytes else "leave it", returns]
        what = f"{self.tiles} tiles written first at {self.loc}"
        text = "; ".join(filter(None, parts))
        return f"{self.memory.value} is full: {what} {text}, {self.copy_ns / 1000:.1f} us of copies"


def spill(program: Program, share: float = 1.0) -> tuple[Program, tuple[SpilledLine, ...]]:
    """The program, in its order, with no more live tiles than `share` of each memory on chip.

    And what it costs, by memory and source line, the most bytes first. Tiles with addresses stay,
    so do those that a loop or branch accesses while it runs, and sums that are read, or written in
    parts, before their last product. OnChipMemoryFull where those alone are too many.
    """
    spiller = _Spiller(program, share)
    for position, statement in enumerate(program.body):
        spiller.take(position, statement)
    body = tuple(spiller.body)
    return replace(program, body=body, tiles=spiller.tiles), spiller.report.lines()


@dataclass(eq=False)
class _Value:
    """The contents of one tile of the program, wherever they are.

    `place` is the tile on chip that holds them now. Otherwise they are in `copy`: a value of SBUF,
    or a tile of HBM, which is valid until they change (`is_dirty`); or `loads` of arguments made
    them, and do again; None once anything else wrote.
    """

    tile: Tile
    uses: list[int]  # statements that access it
    home: Memory
    products: Products = ()
    place: Tile | None = None
    copy: _Value | Tile | None = None
    loads: list[Transfer] | None = field(default_factory=list)
    is_dirty: bool = True
    is_new: bool = True  # it had no place yet
    can_be_cut: bool = False  # as a sum, before its last product
    first_part: _Value | None = None  # of a sum that was cut, in SBUF
    used: int = 0  # how many of `uses` have been emitted
    loc: Loc = UNKNOWN  # of its first use
    written: WrittenParts = field(default_factory=WrittenParts)

    def is_open_sum(self, position: int) -> bool:
        """Whether the next product into it adds to what it holds, which a copy would end."""
        following = bisect_left(self.products, (position, False))
        return following < len(self.products) and self.products[following][1]

    def is_summed_at(self, position: int) -> bool:
        """Whether a statement is a product into it."""
        found = bisect_left(self.products, (position, False))
        return found < len(self.products) and self.products[found][0] == position


class _Spiller:
    """Emits the statements of a program one by one, with what must move before each."""

    def __init__(self, program: Program, share: float) -> None:
        self.arch = get_target(program.target).arch
        self.program = program
        self.tiles = dict(program.tiles)
        self.body: list[Statement] = []
        self.report = _Report(self.arch)
        self.capacity = _capacities(program, self.arch, share)
        self.inside: dict[int, Demand] = {}
        self.constant = _constant_arguments(program)
        self.values = self._find_values()
        self.resident: dict[Memory, dict[str, _Value]] = {memory: {} for memory in ON_CHIP}
        self.live_bytes = dict.fromkeys(ON_CHIP, 0)
        self.position = 0
        self.needed: set[str] = set()  # tiles whose values must not leave now
        # bytes of a partition that could move while one transfer starts and completes
        rate = self.arch.dma_bytes_per_ns * self.arch.dma_engines / self.arch.partitions
        self.fixed_cost = (self.arch.dma_start_ns + self.arch.dma_completion_ns) * rate

    def _find_values(self) -> dict[str, _Value]:
        """The value of every tile but those that one loop or branch alone uses (`inside`)."""
        body, tiles = self.program.body, self.program.tiles
        uses, products = _uses(self.program), _products(self.program)
        cut = _sums_to_cut(self.program, uses, products)
        own: dict[int, set[str]] = {
            i: set() for i, s in enumerate(body) if not isinstance(s, Instr)
        }
        for name, found in uses.items():
            if len(found) == 1 and found[0] in own:
                own[found[0]].add(name)
        for position, names in own.items():
            self.inside[position] = _demand_inside(self.program, position, names, self.arch)
        private = set().union(*own.values())
        return {
            name: _Value(
                tiles[name],
                found,
                tiles[name].memory,
                products.get(name, ()),
                can_be_cut=name in cut,
            )
            for name, found in uses.items()
            if name not in private
        }

    def take(self, position: int, statement: Statement) -> None:
        """Emit one statement, its tiles brought back first."""
        self.position = position
        values = [self.values[name] for name in _tiles_of(statement) if name in self.values]
        self.needed = {value.tile.name for value in values}
        for value in values:
            if value.is_new and isinstance(statement, Instr):
                value.loc = statement.loc
            was_cut = value.first_part is not None and value.place is None
            self._fetch(value)
            if was_cut and isinstance(statement, Instr):
                statement = _begun_again(statement)
            elif value.first_part is not None and not value.is_summed_at(position):
                self._join(value)
        for memory, wanted in self.inside.get(position, {}).items():
            self._make_room(memory, Tile("tiles of a loop", memory, U8, 1, wanted), wanted)
        moved = {v.tile.name: v.place for v in values if v.place and v.place is not v.tile}
        self.body.append(substitute(statement, moved, {}) if moved else statement)
        self._record_writes(statement)
        for value in values:
            value.used += 1
            if value.used == len(value.uses):
                self._leave(value)
                if value.first_part is not None and value.first_part.place is not None:
                    self._leave(value.first_part)  # of a sum that nothing reads

    def _record_writes(self, statement: Statement) -> None:
        is_once = isinstance(statement, Instr)
        for instruction in walk((statement,)):
            for pattern in instruction.written_patterns():
                value = self.values.get(pattern.tile.name)
                if value is not None:
                    value.written.add(pattern if is_once else None)
                    value.is_dirty = True
                    self._record_load(value, instruction if is_once else None, pattern)

    def _record_load(self, value: _Value, load: Instr | None, dst: Pattern) -> None:
        """Note a write of a value by an instruction, None for any other."""
        if not isinstance(load, Transfer) or not self._is_constant(load):
            value.loads = None
        elif _is_whole(dst):
            value.loads = [load]
        elif value.loads is not None:
            value.loads.append(load)

    def _is_constant(self, load: Transfer) -> bool:
        """Whether it brings the same from arguments whenever it is executed."""
        read = {pattern.tile.name for pattern in load.read_patterns()}
        return not load.variables() and read <= self.constant

    # --- out and back ----------------------------------------------------------------------------

    def _fetch(self, value: _Value) -> None:
        """Bring a value to a place in its memory."""
        if value.place is not None:
            return
        held = value.copy
        if isinstance(held, _Value):
            self.needed.add(held.tile.name)
            self._fetch(held)
        place = value.tile if value.is_new else self._clone(value.tile, value.home)
        value.is_new = False
        self._enter(value, place)
        if isinstance(held, _Value):
            assert held.place is not None
            self._reload(value, place, held.place)
            self._leave(held)
            value.copy = None
        elif held is not None:
            self._reload(value, place, held)
        elif value.loads:
            self.body += [substitute(each, {value.tile.name: place}, {}) for each in value.loads]
            moved = sum(each.moved_bytes() for each in value.loads)
            self.report.reloaded(Memory.HBM, value.loc, moved, value.loads)

    def _evict(self, value: _Value) -> None:
        """Take a value out of its memory."""
        place = value.place
        assert place is not None
        self._leave(value)
        if value.first_part is not None or value.is_open_sum(self.position):
            self._cut(value, place)
        elif place.memory is Memory.PSUM:
            self._evict_to_sbuf(value, place)
        elif value.loads is not None:
            value.copy = None
            self.report.stored(value.tile.name, Memory.HBM, value.loc, 0, [])
        elif value.is_dirty:
            if value.copy is None:
                value.copy = self._clone(value.tile, Memory.HBM)
            assert isinstance(value.copy, Tile)
            self._store(value, value.copy, place)
            value.is_dirty = False

    def _cut(self, value: _Value, place: Tile) -> None:
        """Keep in SBUF what a sum has come to; products that follow begin another one."""
        first = value.first_part
        if first is None:
            there = self._clone(value.tile, Memory.SBUF)
            first = self._value_in_sbuf(value, there)
            self._enter(first, there)
            self._store(value, there, place)
        else:
            self._add(first, place)
        if value.is_open_sum(self.position):
            value.first_part = first
        else:
            value.copy, value.first_part = first, None

    def _join(self, value: _Value) -> None:
        """Add the first part of a sum that was cut to the rest of it."""
        first, place = value.first_part, value.place
        assert first is not None and place is not None
        joined = self._parts_added(first, place, place)
        self.report.reloaded(Memory.SBUF, value.loc, joined.dst.bytes, [joined])
        self._leave(first)
        value.first_part = None

    def _add(self, first: _Value, place: Tile) -> None:
        """Add what a tile of PSUM holds to the first part of a sum."""
        added = self._parts_added(first, place)
        first.is_dirty = True
        self.report.stored(first.tile.name, Memory.SBUF, first.loc, added.dst.bytes, [added])

    def _parts_added(self, first: _Value, rest: Tile, dst: Tile | None = None) -> TensorTensor:
        """Emit the sum of a first part and the rest of it, to the first part's tile unless said."""
        self.needed.add(first.tile.name)
        self._fetch(first)
        assert first.place is not None
        total, more, part = map(whole_tile, (dst or first.place, rest, first.place))
        added = TensorTensor(dst=total, data1=more, data2=part, op="add", loc=first.loc)
        self.body.append(added)
        return added

    def _evict_to_sbuf(self, value: _Value, place: Tile) -> None:
        """Move a value of PSUM to SBUF, for good where all that follows finds it there."""
        there = self._clone(value.tile, Memory.SBUF)
        held = value
        if self._is_legal_at(value, there):
            value.home = Memory.SBUF
        else:
            value.copy = held = self._value_in_sbuf(value, there)
        self._enter(held, there)
        self._store(value, there, place)

    def _value_in_sbuf(self, value: _Value, there: Tile) -> _Value:
        """What a value of PSUM has come to, at a tile of SBUF."""
        uses, written = value.uses[value.used :], value.written
        return _Value(
            there, uses, Memory.SBUF, loads=None, is_new=False, loc=value.loc, written=written
        )

    def _is_legal_at(self, value: _Value, there: Tile) -> bool:
        """Whether every later access is legal with the value at another tile."""
        later = (self.program.body[at] for at in value.uses[value.used :])
        return not any(
            violations(instruction, self.arch)
            for statement in later
            for instruction in walk((substitute(statement, {value.tile.name: there}, {}),))
        )

    def _store(self, value: _Value, dst: Tile, src: Tile) -> None:
        copies, moved = self._move(value, dst, src)
        self.report.stored(value.tile.name, dst.memory, value.loc, moved, copies)

    def _reload(self, value: _Value, dst: Tile, src: Tile) -> None:
        copies, moved = self._move(value, dst, src)
        self.report.reloaded(src.memory, value.loc, moved, copies)

    def _move(self, value: _Value, dst: Tile, src: Tile) -> tuple[list[Instr], int]:
        """Copy what was written of a value from one tile to another: copies, and their bytes."""
        copies, moved = [], 0
        for part in value.written.parts(value.tile):
            to, source = (part_of(each, part, value.tile.elements) for each in (dst, src))
            copies.append(_copy(to, source, value.loc))
            moved += to.bytes
        self.body += copies
        return copies, moved

    # --- room ------------------------------------------------------------------------------------

    def _enter(self, value: _Value, place: Tile) -> None:
        """Make room for a value at a tile, and count it there."""
        occupied = occupied_bytes(place, self.arch)
        self._make_room(place.memory, place, occupied)
        value.place = place
        self.resident[place.memory][place.name] = value
        self.live_bytes[place.memory] += occupied

    def _leave(self, value: _Value) -> None:
        """Count a value no longer."""
        place = value.place
        assert place is not None
        del self.resident[place.memory][place.name]
        self.live_bytes[place.memory] -= occupied_bytes(place, self.arch)
        value.place = None

    def _make_room(self, memory: Memory, tile: Tile, wanted: int) -> None:
        """Evict until so many bytes of a partition are free; OnChipMemoryFull where none may go."""
        while self.live_bytes[memory] + wanted > self.capacity[memory]:
            candidates = [
                value
                for value in self.resident[memory].values()
                if value.tile.name not in self.needed
                and (value.can_be_cut or not value.is_open_sum(self.position))
            ]
            if not candidates:
                raise self._full(memory, tile)
            self._evict(max(candidates, key=self._merit))

    def _merit(self, value: _Value) -> float:
        """Statements until the next use, for each byte that moves and the start of transfers."""
        size = value.tile.bytes_per_partition
        away = value.uses[value.used] - self.position
        ways = 2 if value.is_dirty and value.loads is None else 1
        return away * size / (ways * (size + self.fixed_cost))

    def _full(self, memory: Memory, tile: Tile) -> OnChipMemoryFull:
        values = self.resident[memory].values()
        live = {value.tile.name: occupied_bytes(value.tile, self.arch) for value in values}
        capacity = on_chip_capacities(self.arch)[memory]
        lines = {value.tile.name: value.loc for value in values}
        here = next(walk((self.program.body[self.position],))).loc
        place = UnplacedTile(tile, capacity, live)
        return memory_full([place], lambda name: lines.get(name, here))

    def _clone(self, tile: Tile, memory: Memory) -> Tile:
        """A new tile of a memory with the extent and dtype of another."""
        stem = tile.name.partition("'")[0]
        name = next(each for n in count(1) if (each := f"{stem}'{n}") not in self.tiles)
        shape = (1, tile.partitions * tile.elements)
        shape = shape if memory is Memory.HBM else (tile.partitions, tile.elements)
        made = self.tiles[name] = Tile(name, memory, tile.dtype, *shape)
        return made


def _copy(dst: Pattern, src: Pattern, loc: Loc) -> Instr:
    """The instruction that moves contents between two memories, bit by bit."""
    if Memory.HBM not in (dst.memory, src.memory):
        return TensorCopy(dst=dst, src=src, loc=loc)
    queue = "store" if dst.memory is Memory.HBM else "load"
    return DmaCopy(dst=dst, src=src, queue=queue, on=QUEUE_OWNERS[queue], loc=loc)


def _copy_ns(copy: Instr, arch: Arch) -> float:
    """How long a copy occupies the DMA engines, or the engine that makes it."""
    if isinstance(copy, Transfer):
        return copy.transfer_nanoseconds(arch)
    return engine_cycles(copy, arch) / arch.clocks_ghz[copy.runs_on]


def _is_whole(dst: Pattern) -> bool:
    """Whether a pattern names all of its tile."""
    whole = (1, dst.tile.partitions), dst.tile.bytes_per_partition
    return (dst.dims[0], dst.contiguous_bytes) == whole


def _constant_arguments(program: Program) -> frozenset[str]:
    """The arguments that no instruction of any core writes."""
    instructions = list(walk(program.body))
    if any(isinstance(each, CrossCoreInstr) for each in instructions):
        return frozenset()
    written = {p.tile.name for each in instructions for p in each.written_patterns()}
    return frozenset(each.tile.name for each in program.inputs) - written


def _tiles_of(statement: Statement) -> list[str]:
    """The tiles on chip that a statement accesses, each once."""
    patterns = (p for instruction in walk((statement,)) for p in instruction.patterns())
    return [*dict.fromkeys(p.tile.name for p in patterns if p.memory is not Memory.HBM)]


def _uses(program: Program) -> dict[str, list[int]]:
    """The statements that access each tile on chip without an address."""
    found: dict[str, list[int]] = defaultdict(list)
    for position, statement in enumerate(program.body):
        for name in _tiles_of(statement):
            if name not in program.addresses:
                found[name].append(position)
    return found


def _products(program: Program) -> dict[str, list[tuple[int, bool]]]:
    """By tile, the statements with products into it, and whether these add to what it holds."""
    found: dict[str, list[tuple[int, bool]]] = defaultdict(list)
    for position, statement in enumerate(program.body):
        for instruction in walk((statement,)):
            for name in instruction.sums:
                if instruction.is_sum:
                    adds = instruction.access(name) != "writes"
                    found[getattr(instruction, name).tile.name].append((position, adds))
    return found


def _sums_to_cut(
    program: Program, uses: Mapping[str, list[int]], products: Mapping[str, Products]
) -> set[str]:
    """The tiles with one sum of float32 products of all of the tile, which nothing reads before."""
    found = set()
    for name, summed in products.items():
        positions = [position for position, _ in summed]
        between = [at for at in uses.get(name, ()) if positions[0] <= at <= positions[-1]]
        statements = [program.body[at] for at in positions]
        is_one = between == positions and all(adds for _, adds in summed[1:])
        if (
            is_one
            and program.tiles[name].dtype is F32
            and all(isinstance(each, Instr) and _sums_whole(each, name) for each in statements)
        ):
            found.add(name)
    return found


def _sums_whole(instruction: Instr, name: str) -> bool:
    """Whether a product is into all of a tile, and says itself whether it adds."""
    return all(
        getattr(instruction, dst).tile.name != name
        or (_is_whole(getattr(instruction, dst)) and getattr(instruction, adds) is not None)
        for dst, adds in instruction.sums.items()
    )


def _begun_again(instruction: Instr) -> Instr:
    """A product that adds to nothing."""
    adds: dict[str, Any] = dict.fromkeys(instruction.sums.values(), False)
    return replace(instruction, **adds)


def _capacities(program: Program, arch: Arch, share: float) -> dict[Memory, int]:
    """The bytes of a partition for tiles without an address."""
    found = {memory: int(most * share) for memory, most in on_chip_capacities(arch).items()}
    fixed = [(program.tiles[name], start) for name, start in program.addresses.items()]
    for memory in ON_CHIP:
        end = 0  # of the bytes that are taken off
        for tile, start in sorted(fixed, key=lambda each: each[1]):
            if tile.memory is memory:
                found[memory] -= max(0, start + tile.bytes_per_partition - max(end, start))
                end = max(end, start + tile.bytes_per_partition)
    return found


def _demand_inside(program: Program, position: int, own: set[str], arch: Arch) -> Demand:
    """The most bytes of a partition that the tiles which one loop or branch alone uses take."""
    inner = replace(program, body=(program.body[position],), addresses={})
    lifetimes = find_lifetimes(inner)
    found: dict[Memory, int] = {}
    for memory in ON_CHIP:
        tiles = [program.tiles[name] for name in own if program.tiles[name].memory is memory]
        spans = [lifetimes[tile.name] for tile in tiles]
        found[memory] = largest_live_set(
            [
                Block(occupied_bytes(tile, arch), span.first, span.last)
                for tile, span in zip(tiles, spans, strict=True)
            ]
        )
    return found


class _Report:
    """What left each memory and came back, by source line."""

    def __init__(self, arch: Arch) -> None:
        self._arch = arch
        self._tiles: dict[tuple[Memory, Loc], set[str]] = defaultdict(set)
        self._stored: Counter[tuple[Memory, Loc]] = Counter()
        self._reloads: Counter[tuple[Memory, Loc]] = Counter()
        self._reloaded: Counter[tuple[Memory, Loc]] = Counter()
        self._copy_ns: dict[tuple[Memory, Loc], float] = defaultdict(float)

    def stored(self, name: str, to: Memory, loc: Loc, moved: int, copies: Sequence[Instr]) -> None:
        """Count a tile that left to a memory with so many bytes."""
        self._tiles[to, loc].add(name)
        self._stored[to, loc] += moved
        self._copy_ns[to, loc] += sum(_copy_ns(each, self._arch) for each in copies)

    def reloaded(self, source: Memory, loc: Loc, moved: int, copies: Sequence[Instr]) -> None:
        """Count contents that came back from a memory."""
        self._reloads[source, loc] += 1
        self._reloaded[source, loc] += moved
        self._copy_ns[source, loc] += sum(_copy_ns(each, self._arch) for each in copies)

    def lines(self) -> tuple[SpilledLine, ...]:
        """By memory and line, the most bytes first."""
        found = [
            SpilledLine(
                _FROM[key[0]], *key, len(tiles),
                self._stored[key], self._reloads[key], self._reloaded[key], self._copy_ns[key],
            )
            for key, tiles in self._tiles.items()
        ]  # fmt: skip
        return tuple(sorted(found, key=lambda line: -line.stored_bytes - line.reloaded_bytes))


_FROM = {Memory.SBUF: Memory.PSUM, Memory.HBM: Memory.SBUF}  # by where contents go
