"""Copies that the host does not make: what reads them reads their source.

A chip copies tensors into its scratchpad, turns them for its matrix engine and copies results out
again. The host computes from any place and by any steps, so where nothing changes the source
meanwhile, reads of a copy become reads of what was copied, and a copy without reads is left
out. Results are the same bit by bit. In program order, which is the order that the host runs in:

* A move reaches a read in its own block, or inside of one after it there, until something may
  write to its source or to its destination. After a loop all its iterations reach as one move, if
  none disturbs another.
* A tile goes if every read of it can read a source instead, and if no tile takes over its bytes
  without writing them first (which only shows in programs that are at fault).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.byte_owners import ByteOwners
from glia.machine.instruction_rewriting import rewrite_at
from glia.machine.ir import Block, Loop, Program, blocks, walk
from glia.sim.host.overlap import may_touch, tiles_meet
from glia.sim.host.rewriting.byte_boxes import ByteBox, are_apart
from glia.sim.host.rewriting.element_moves import (
    Move,
    MoveTracer,
    may_relocate,
    meets_cores,
    steps_alike,
    takes_arrays,
)

MOST_MOVES = 64  # that reach at once from or to a tile
MOST_ROUNDS = 8  # a copy of a copy is found in the round after that of the first


@dataclass(frozen=True)
class Forwarded:
    """A program without some of its copies; `left_out` counts these by mnemonic."""

    program: Program
    left_out: Mapping[str, int] = field(default_factory=dict)


def without_copies(program: Program, tracer: MoveTracer, exposed: Sequence[Tile]) -> Forwarded:
    """The program for the host: reads of copies are reads of their sources.

    `exposed` are the program's `exposed_tiles`.
    """
    left_out: Counter[str] = Counter()
    forwarding = _Forwarding(tracer, exposed)
    for _ in range(MOST_ROUNDS):
        program, is_done = forwarding.rewritten(program, left_out)
        if is_done:
            break
    return Forwarded(program, dict(left_out))


class _Forwarding:
    """What is the same in all rounds over a program."""

    def __init__(self, tracer: MoveTracer, exposed: Sequence[Tile]) -> None:
        self.tracer, self._exposed = tracer, exposed

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
        return not any(tiles_meet(tile, other, program) for other in self._exposed)


class _Reaching:
    """The moves that reach the place of a walk, by the tiles that they touch."""

    def __init__(self, tracer: MoveTracer, program: Program) -> None:
        self._tracer, self._program = tracer, program
        self._by_tile: defaultdict[str, dict[Move, None]] = defaultdict(dict)
        self._owners = {memory: ByteOwners() for memory in Memory}

    def into(self, tile: Tile) -> list[Move]:
        """The moves into a tile, latest first."""
        found = [m for m in self._by_tile.get(tile.name, ()) if m.written.tile.name == tile.name]
        return found[::-1]

    def _names(self, move: Move) -> tuple[str, str]:
        return move.written.tile.name, self._tracer.base_of(move.read.tile).name

    def add(self, move: Move) -> None:
        """From here on a move reaches, and of many of a tile the oldest does not any more."""
        for name in self._names(move):
            moves = self._by_tile[name]
            moves[move] = None
            if len(moves) > MOST_MOVES:
                self.forget(next(iter(moves)))

    def forget(self, move: Move) -> None:
        """From here on it does not."""
        for name in self._names(move):
            self._by_tile[name].pop(move, None)

    def is_reaching(self, move: Move) -> bool:
        """Whether a move still reaches."""
        return move in self._by_tile.get(self._names(move)[0], ())

    def touch(self, tile: Tile) -> None:
        """A tile is accessed: others that have its bytes hold nothing any more."""
        tile = self._tracer.base_of(tile)
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
            is_changed = to == name and (
                move.is_of_loop or may_touch(written, move.written, self._program)
            )
            if source == name:
                is_whole = move.is_of_loop or move.read.tile.name != name
                is_changed |= is_whole or may_touch(written, move.read, self._program)
            if is_changed:
                self.forget(move)

    def forget_all_in_hbm(self) -> None:
        """Another core may have written to any source in HBM."""
        for moves in list(self._by_tile.values()):
            for move in list(moves):
                if self._tracer.base_of(move.read.tile).memory is Memory.HBM:
                    self.forget(move)

    def forget_tile(self, name: str) -> None:
        """No move from or to a tile reaches further."""
        for move in list(self._by_tile.get(name, ())):
            self.forget(move)


class _Reads:
    """One walk over a program: which move reaches which read."""

    def __init__(self, forwarding: _Forwarding, program: Program) -> None:
        self._tracer, self._program = forwarding.tracer, program
        self._reaching = _Reaching(self._tracer, program)
        self._trips: dict[str, int] = {}
        self.found: set[str] = set()  # tiles with a read that a move reaches
        self.kept: set[str] = set()  # tiles with a read that none does
        self.sources: defaultdict[str, set[str]] = defaultdict(set)  # of the former, by tile
        # By position of the instruction: its operands with the tile that they read and its source
        self.changes: dict[int, dict[str, tuple[str, Pattern]]] = {}
        self.moves_into: dict[int, str] = {}
        self.instructions: list[Instr] = []

    def block(self, body: Block) -> list[Move]:
        """Walk a block; the moves of it that reach its end, where all of them end to reach."""
        begun: list[Move] = []
        for statement in body:
            if isinstance(statement, Instr):
                self._instruction(statement, begun)
                continue
            for instr in walk((statement,)):
                for pattern in instr.patterns():
                    self._reaching.touch(pattern.tile)
                for pattern in instr.written_patterns():
                    self._reaching.forget_tile(pattern.tile.name)
                if meets_cores(instr):
                    self._reaching.forget_all_in_hbm()
            if isinstance(statement, Loop):
                self._trips[statement.variable] = statement.trips
                moves = self.block(statement.body)
                for move in self._moves_of_loop(statement, moves):
                    self._reaching.add(move)
                    begun.append(move)
                continue
            for inner in blocks(statement):
                self.block(inner)
        reaching = [move for move in begun if self._reaching.is_reaching(move)]
        for move in begun:
            self._reaching.forget(move)
        return reaching

    def _moves_of_loop(self, loop: Loop, moves: Sequence[Move]) -> Iterator[Move]:
        """All iterations of moves that reach the end of a loop's body, where they stay so long."""
        if not moves or loop.trips < 1 or any(map(meets_cores, walk(loop.body))):
            return
        found = _LoopAccesses(self._tracer, loop)
        for move in moves:
            whole = self._tracer.over_loop(move, loop.variable, loop.trips)
            tiles = move.written.tile, self._tracer.base_of(move.read.tile)
            is_disturbed = any(
                self._share_bytes(other, tile)
                for other in found.tiles.values()
                for tile in tiles
                if other.name not in (tiles[0].name, tiles[1].name)
            )
            if whole is not None and not is_disturbed and found.stay(*tiles):
                yield whole

    def _instruction(self, instr: Instr, begun: list[Move]) -> None:
        position = len(self.instructions)
        self.instructions.append(instr)
        for pattern in instr.patterns():
            self._reaching.touch(pattern.tile)
        for name, declared, pattern in instr.operands():
            tile = self._tracer.base_of(pattern.tile)
            if instr.access(name) == "writes" or tile.memory is Memory.HBM:
                continue
            if tile.name in self.kept:
                continue
            is_single = declared.access == "reads" and not declared.is_several
            may_change = is_single and may_relocate(instr, name, pattern)
            source = self._source(instr, pattern, tile) if may_change else None
            if source is None:
                self.kept.add(tile.name)
            else:
                self.found.add(tile.name)
                self.sources[tile.name].add(self._tracer.base_of(source.tile).name)
                self.changes.setdefault(position, {})[name] = (tile.name, source)
        for pattern in instr.written_patterns():
            self._reaching.write(pattern)
        if meets_cores(instr):
            self._reaching.forget_all_in_hbm()
        move = self._move(instr)
        if move is not None:
            self.moves_into[position] = move.written.tile.name
            self._reaching.add(move)
            begun.append(move)

    def _source(self, instr: Instr, read: Pattern, tile: Tile) -> Pattern | None:
        """What an instruction can read in place of a tile on chip."""
        if not takes_arrays(instr):
            return None
        for move in self._reaching.into(tile):
            source = self._tracer.image(read, move, self._trips)
            if source is not None:
                base = self._tracer.base_of(move.read.tile)
                is_apart = not any(
                    self._share_bytes(p.tile, base) for p in instr.written_patterns()
                )
                return source if is_apart and self._is_as_fast(instr, read, source) else None
        return None

    def _is_as_fast(self, instr: Instr, read: Pattern, source: Pattern) -> bool:
        """Whether reading the source takes no longer.

        Products pack what they read, and moves transpose it in registers.
        """
        if instr.runs_on == "tensor" or steps_alike(source, read):
            return True
        return self._tracer.move_of(instr) is not None

    def _move(self, instr: Instr) -> Move | None:
        """The move that an instruction is, if it is one into a tile on chip."""
        move = self._tracer.move_of(instr)
        if move is None:
            return None
        tile = move.written.tile
        is_apart = not self._share_bytes(tile, self._tracer.base_of(move.read.tile))
        is_on_chip = tile.memory is not Memory.HBM
        is_inside = all(self._tracer.is_inside(p, self._trips) for p in instr.patterns())
        return move if is_on_chip and is_apart and is_inside else None

    def _share_bytes(self, one: Tile, other: Tile) -> bool:
        return one.memory is other.memory and tiles_meet(one, other, self._program)


class _LoopAccesses:
    """What a loop accesses: tiles by name, and the boxes of what it writes on chip."""

    def __init__(self, tracer: MoveTracer, loop: Loop) -> None:
        self._tracer, self._loop = tracer, loop
        self.tiles: dict[str, Tile] = {}
        self._written: defaultdict[str, list[ByteBox]] = defaultdict(list)
        self._oblique: set[str] = set()
        self._block(loop.body, {})

    def _block(self, body: Block, free: dict[str, int]) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                self._block(statement.body, {**free, statement.variable: statement.trips})
            elif not isinstance(statement, Instr):
                for inner in blocks(statement):
                    self._block(inner, free)
            else:
                self._instruction(statement, free)

    def _instruction(self, instr: Instr, free: Mapping[str, int]) -> None:
        for name, _, pattern in instr.operands():
            tile = self._tracer.base_of(pattern.tile)
            self.tiles[tile.name] = tile
            if instr.access(name) == "reads":
                continue
            boxes = self._written[tile.name]
            if tile.memory is not Memory.HBM:
                pitch = self._tracer.memories.region(tile).pitch
                boxes.append(ByteBox.of(pattern, pitch, self._tracer, free))
                variable = self._loop.variable
                if pattern.partition.coefficient(variable) and pattern.offset.coefficient(variable):
                    self._oblique.add(tile.name)  # steps by rows and columns at once

    def stay(self, written: Tile, read: Tile) -> bool:
        """Whether no iteration changes what another one's moves wrote or read."""
        boxes = self._written.get(written.name, [])
        is_oblique = written.name in self._oblique
        is_read_only = read.name not in self._written
        return is_read_only and not is_oblique and are_apart(boxes, self._loop.variable)
