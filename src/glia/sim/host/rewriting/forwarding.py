"""Copies that the host does not make: what reads them reads their source.

A chip copies tensors into its scratchpad, turns them for its matrix engine and copies results out
again. The host computes from any place and by any steps, so where nothing changes the source
meanwhile, reads of a copy become reads of what was copied, and a copy without reads is left
out. Results are the same bit by bit. In program order, which is the order that the host runs in:

* A *move* is an instruction whose declared meaning only says which element goes where: a nest of
  loops with a step in the destination and one in the source for each. It is found by tracing, so
  that copies and transposes of every kind are moves.
* A move reaches a read in its own block, or inside of one after it there, until something may
  write to its source or to its destination.
* A tile goes if every read of it can read a source instead, and if no tile takes over its bytes
  without writing them first (which only shows in programs that are at fault).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from glia.arch import Arch
from glia.base.affine import Affine
from glia.isa.kit import Instr, is_register
from glia.isa.operand import Dims, Memory, Pattern, Tile
from glia.machine.byte_owners import ByteOwners
from glia.machine.instruction_rewriting import rewrite_at
from glia.machine.ir import Block, Loop, Program, blocks, walk
from glia.sim.host.instruction_classes import Operands, class_key, traced_writes
from glia.sim.host.loop_nest import build_nest
from glia.sim.host.overlap import may_touch, tiles_meet
from glia.sim.host.table import pattern_parts
from glia.sim.host.traced import HeldArray, NotTraceable, Shape, recorded_decisions
from glia.sim.memory import Memories

MOST_ROUNDS = 8  # a copy of a copy is found in the round after that of the first


@dataclass(frozen=True)
class ElementMoves:
    """Which element of a source each element of a destination is.

    Loops over `extents`, longest step in the destination first; steps in bytes.
    """

    written: str  # operands by name
    read: str
    extents: Shape
    to_steps: Shape
    from_steps: Shape


@dataclass(frozen=True, eq=False)
class _Move:
    """A move at its place in the program."""

    moves: ElementMoves
    written: Pattern
    read: Pattern


@dataclass(frozen=True)
class Forwarded:
    """A program without the copies that nothing reads.

    `left_out` counts these by mnemonic. `bases` has the tiles on chip that patterns of the new
    program step through as plain bytes, by the name of what these patterns call their tile.
    """

    program: Program
    left_out: Mapping[str, int] = field(default_factory=dict)
    bases: Mapping[str, Tile] = field(default_factory=dict)


def without_copies(program: Program, arch: Arch, memories: Memories) -> Forwarded:
    """The program for the host: reads of copies are reads of their sources."""
    left_out: Counter[str] = Counter()
    forwarding = _Forwarding(program, arch, memories)
    for _ in range(MOST_ROUNDS):
        program, is_done = forwarding.rewritten(program, left_out)
        if is_done:
            break
    return Forwarded(program, dict(left_out), forwarding.bases)


class _Forwarding:
    """What is the same in all rounds over a program."""

    def __init__(self, program: Program, arch: Arch, memories: Memories) -> None:
        self._arch, self.memories = arch, memories
        self._moves: dict[tuple[Any, ...], ElementMoves | None] = {}
        self._as_bytes: dict[str, Tile] = {}
        self.bases: dict[str, Tile] = {}
        self._fragile = _read_before_written(program)

    def rewritten(self, program: Program, left_out: Counter[str]) -> tuple[Program, bool]:
        """The program with one more link of each chain of copies gone, and whether it was the last.

        Counts what goes in `left_out`.
        """
        reads = _Reads(self, program)
        reads.block(program.body)
        all_going = {name for name in reads.found - reads.kept if self._may_go(name, program)}
        # A source has to stay in this round
        going = {name for name in all_going if not reads.sources[name] & all_going}
        if not going:
            return program, True
        change: dict[int, Instr | None] = {}
        for position, operands in reads.changes.items():
            fields: dict[str, Any] = {
                n: read for n, (tile, read) in operands.items() if tile in going
            }
            change[position] = replace(reads.instructions[position], **fields)
        for position, name in reads.moves_into.items():
            if name in going:
                change[position] = None
                left_out[reads.instructions[position].mnemonic()] += 1
        return rewrite_at(program, change), going == all_going

    def _may_go(self, name: str, program: Program) -> bool:
        """Whether no tile is read that may show the bytes of this one."""
        tile = program.tiles[name]
        return not any(tiles_meet(tile, other, program) for other in self._fragile)

    def moves_of(self, instr: Instr) -> ElementMoves | None:
        """What an instruction moves, if that is all that it does."""
        patterns = list(instr.patterns())
        if len(patterns) != 2 or not _takes_arrays(instr) or instr.sets_register:
            return None
        if any(True for _ in instr.states_touched()):
            return None
        one, other = patterns
        if one.dtype is not other.dtype or any(map(is_register, instr.variables())):
            return None
        operands = Operands.of(instr, self.memories)
        key = class_key(instr, operands)
        if key not in self._moves:
            self._moves[key] = _traced_moves(instr, self._arch, operands)
        return self._moves[key]

    def base_of(self, tile: Tile) -> Tile:
        """The tile whose bytes a pattern's tile stands for."""
        return self.bases.get(tile.name, tile)

    def _flat(self, pattern: Pattern) -> tuple[Affine, Dims]:
        """Where a pattern begins, and its dimensions, in bytes from its tile's first."""
        width, dims = pattern.dtype.bytes, pattern.dims
        start, steps = pattern.offset * width, tuple((step * width, count) for step, count in dims)
        if pattern.memory is Memory.HBM:
            return start, steps
        pitch = self.memories.region(pattern.tile).pitch
        (rows, count), *_ = dims
        return start + pattern.partition * pitch, ((rows * pitch, count), *steps[1:])

    def source_of(self, read: Pattern, move: _Move) -> Pattern | None:
        """Where what `read` names comes from; None if that is not one pattern of the source."""
        moves, width = move.moves, read.dtype.bytes
        (start, dims), (first_written, _) = self._flat(read), self._flat(move.written)
        distance = start - first_written
        if move.written.dtype.bytes != width or not distance.is_constant:
            return None
        first = _positions(distance.constant, moves)
        if first is None:
            return None
        last, source_dims = list(first), []
        for step, count in dims:
            axis, times = _axis_of(step, moves) if count > 1 else (0, 0)
            if times < 0:
                return None
            if times:
                last[axis] += times * (count - 1)
            source_dims.append((times * moves.from_steps[axis] // width if times else 0, count))
        if any(at >= extent for at, extent in zip(last, moves.extents, strict=True)):
            return None
        start, _ = self._flat(move.read)
        start += sum(at * step for at, step in zip(first, moves.from_steps, strict=True))
        offset = Affine(
            tuple((name, factor // width) for name, factor in start.terms), start.constant // width
        )
        return Pattern(self._tile_of_bytes(move.read.tile), read.dtype, tuple(source_dims), offset)

    def _tile_of_bytes(self, tile: Tile) -> Tile:
        """A tile as plain bytes; in HBM it is that."""
        if tile.memory is Memory.HBM:
            return tile
        if tile.name not in self._as_bytes:
            found = self._as_bytes[tile.name] = self.memories.as_bytes(tile)
            self.bases[found.name] = tile
        return self._as_bytes[tile.name]


class _Reaching:
    """The moves that reach the place of a walk, by the tiles that they touch."""

    def __init__(self, forwarding: _Forwarding, program: Program) -> None:
        self._forwarding, self._program = forwarding, program
        self._by_tile: defaultdict[str, dict[_Move, None]] = defaultdict(dict)
        self._owners = {memory: ByteOwners() for memory in Memory}

    def into(self, tile: Tile) -> list[_Move]:
        """The moves into a tile, latest first."""
        found = [m for m in self._by_tile.get(tile.name, ()) if m.written.tile.name == tile.name]
        return found[::-1]

    def _names(self, move: _Move) -> tuple[str, str]:
        return move.written.tile.name, self._forwarding.base_of(move.read.tile).name

    def add(self, move: _Move) -> None:
        """From here on a move reaches."""
        for name in self._names(move):
            self._by_tile[name][move] = None

    def forget(self, move: _Move) -> None:
        """From here on it does not."""
        for name in self._names(move):
            self._by_tile[name].pop(move, None)

    def touch(self, tile: Tile) -> None:
        """A tile is accessed: others that have its bytes hold nothing any more."""
        tile = self._forwarding.base_of(tile)
        start = self._program.addresses.get(tile.name)
        if start is None:
            return
        size = tile.bytes if tile.memory is Memory.HBM else tile.bytes_per_partition
        others, _ = self._owners[tile.memory].claim(start, start + size, tile.name)
        for other in others:
            if other != tile.name:
                self.forget_tile(other)

    def write(self, written: Pattern) -> None:
        """A pattern is written: what it may change does not reach further."""
        name = written.tile.name
        for move in list(self._by_tile.get(name, ())):
            to, source = self._names(move)
            is_changed = to == name and may_touch(written, move.written, self._program)
            if source == name:
                is_whole = move.read.tile.name != name
                is_changed |= is_whole or may_touch(written, move.read, self._program)
            if is_changed:
                self.forget(move)

    def forget_tile(self, name: str) -> None:
        """No move from or to a tile reaches further."""
        for move in list(self._by_tile.get(name, ())):
            self.forget(move)


class _Reads:
    """One walk over a program: which move reaches which read."""

    def __init__(self, forwarding: _Forwarding, program: Program) -> None:
        self._forwarding, self._program = forwarding, program
        self._reaching = _Reaching(forwarding, program)
        self._trips: dict[str, int] = {}
        self.found: set[str] = set()  # tiles with a read that a move reaches
        self.kept: set[str] = set()  # tiles with a read that none does
        self.sources: defaultdict[str, set[str]] = defaultdict(set)  # of the former, by tile
        # By position of the instruction: its operands with the tile that they read and its source
        self.changes: dict[int, dict[str, tuple[str, Pattern]]] = {}
        self.moves_into: dict[int, str] = {}
        self.instructions: list[Instr] = []

    def block(self, body: Block) -> None:
        """Walk a block; what begins to reach in it ends to reach with it."""
        begun: list[_Move] = []
        for statement in body:
            if isinstance(statement, Instr):
                self._instruction(statement, begun)
                continue
            for instr in walk((statement,)):
                for pattern in instr.patterns():
                    self._reaching.touch(pattern.tile)
                for pattern in instr.written_patterns():
                    self._reaching.forget_tile(pattern.tile.name)
            if isinstance(statement, Loop):
                self._trips[statement.variable] = statement.trips
            for inner in blocks(statement):
                self.block(inner)
        for move in begun:
            self._reaching.forget(move)

    def _instruction(self, instr: Instr, begun: list[_Move]) -> None:
        position = len(self.instructions)
        self.instructions.append(instr)
        for pattern in instr.patterns():
            self._reaching.touch(pattern.tile)
        for name, declared, pattern in instr.operands():
            tile = self._forwarding.base_of(pattern.tile)
            if instr.access(name) == "writes" or tile.memory is Memory.HBM:
                continue
            if tile.name in self.kept:
                continue
            is_single = declared.access == "reads" and not declared.is_several
            source = self._source(instr, pattern, tile) if is_single else None
            if source is None:
                self.kept.add(tile.name)
            else:
                self.found.add(tile.name)
                self.sources[tile.name].add(self._forwarding.base_of(source.tile).name)
                self.changes.setdefault(position, {})[name] = (tile.name, source)
        for pattern in instr.written_patterns():
            self._reaching.write(pattern)
        move = self._move(instr)
        if move is not None:
            self.moves_into[position] = move.written.tile.name
            self._reaching.add(move)
            begun.append(move)

    def _source(self, instr: Instr, read: Pattern, tile: Tile) -> Pattern | None:
        """What an instruction can read in place of a tile on chip."""
        if not _takes_arrays(instr):
            return None
        for move in self._reaching.into(tile):
            source = self._forwarding.source_of(read, move)
            if source is not None:
                base = self._forwarding.base_of(move.read.tile)
                is_apart = not any(
                    self._share_bytes(p.tile, base) for p in instr.written_patterns()
                )
                return source if is_apart and _is_as_fast(instr, read, source) else None
        return None

    def _move(self, instr: Instr) -> _Move | None:
        """The move that an instruction is, if it is one into a tile on chip."""
        moves = self._forwarding.moves_of(instr)
        if moves is None:
            return None
        move = _Move(moves, getattr(instr, moves.written), getattr(instr, moves.read))
        tile = move.written.tile
        is_apart = not self._share_bytes(tile, self._forwarding.base_of(move.read.tile))
        is_on_chip = tile.memory is not Memory.HBM
        return move if is_on_chip and is_apart and self._is_inside(instr) else None

    def _share_bytes(self, one: Tile, other: Tile) -> bool:
        return one.memory is other.memory and tiles_meet(one, other, self._program)

    def _is_inside(self, instr: Instr) -> bool:
        """Whether its patterns stay within their tiles, whatever the loops are at."""
        for pattern in instr.patterns():
            region = self._forwarding.memories.region(pattern.tile)
            for _, (low, high), start in pattern_parts(pattern, region):
                if not set(start.variables) <= self._trips.keys():
                    return False
                least, greatest = range_of(start, self._trips)
                if least < low or greatest > high:
                    return False
        return True


def _takes_arrays(instr: Instr) -> bool:
    """Whether operands arrive as arrays that only their patterns decide."""
    return instr.arrives not in ("memory", "participants") and not instr.index_checks()


def _is_as_fast(instr: Instr, read: Pattern, source: Pattern) -> bool:
    """Whether reading the source takes no longer: products pack what they read, others do not."""
    step, count = source.dims[-1]
    return instr.runs_on == "tensor" or count == 1 or step == read.dims[-1][0]


def _traced_moves(instr: Instr, arch: Arch, operands: Operands) -> ElementMoves | None:
    """The nest of an instruction whose meaning is a load, in the order of its destination."""
    try:
        with recorded_decisions() as decisions:
            writes, places = traced_writes(instr, arch, operands, None)
        if decisions or len(writes) != 1:
            return None
        nest = build_nest(writes)
    except NotTraceable:
        return None
    value = nest.stores[0][1] if len(nest.stores) == 1 else ("",)
    if value[0] != "load" or nest.inner:
        return None
    to, source = nest.slots[nest.stores[0][0]], nest.slots[value[1]]
    names = [
        places[slot.operand].name
        for slot in (to, source)
        if not isinstance(slot.operand, HeldArray)
    ]
    if len(names) != 2:
        return None
    loops = sorted(zip(to.steps, nest.outer, source.steps, strict=True), reverse=True)
    to_steps, extents, from_steps = zip(*loops, strict=True) if loops else ((), (), ())
    span = np.dtype(to.dtype).itemsize
    for step, extent in zip(reversed(to_steps), reversed(extents), strict=True):
        if step < span:
            return None  # elements that several iterations write, or that are in no order
        span += step * (extent - 1)
    return ElementMoves(names[0], names[1], extents, to_steps, from_steps)


def _positions(distance: int, moves: ElementMoves) -> list[int] | None:
    """The position of each loop at so many bytes from the destination's first element."""
    found = []
    for step, extent in zip(moves.to_steps, moves.extents, strict=True):
        at = distance // step
        if not 0 <= at < extent:
            return None
        found.append(at)
        distance -= at * step
    return None if distance else found


def _axis_of(stride: int, moves: ElementMoves) -> tuple[int, int]:
    """The loop, and how many of its iterations, that so many bytes are; (0, -1) if none does."""
    if stride == 0:
        return 0, 0
    for axis, step in enumerate(moves.to_steps):
        if 0 < step <= stride and stride % step == 0:
            return axis, stride // step
    return 0, -1


def range_of(expression: Affine, trips: Mapping[str, int]) -> tuple[int, int]:
    """The least and the greatest value over loops of so many trips each."""
    ends = [factor * (trips[variable] - 1) for variable, factor in expression.terms]
    least = expression.constant + sum(min(0, end) for end in ends)
    return least, expression.constant + sum(max(0, end) for end in ends)


def _read_before_written(program: Program) -> list[Tile]:
    """Tiles on chip that an instruction reads before any writes them: they show what was there."""
    seen: set[str] = set()
    found = []
    for instr in walk(program.body):
        touched = [each for each in instr.operands() if each[2].memory is not Memory.HBM]
        for name, _, pattern in touched:
            is_begun = instr.access(name) == "writes" or name in instr.read_when
            if pattern.tile.name not in seen and not is_begun and not instr.may_be_fresh(name):
                found.append(pattern.tile)
        seen.update(pattern.tile.name for _, _, pattern in touched)
    return found
