"""Results that nothing reads: the host does not compute what goes there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glia.isa.kit import Instr
from glia.isa.operand import Memory, Tile
from glia.machine.ir import Program, walk
from glia.sim.host.overlap import tiles_meet

LARGE_BYTES = 1 << 24  # of a tensor: about what a core has of the last cache, or more


@dataclass(frozen=True)
class UnreadResults:
    """Tiles on chip by name, and engines with the names of their states, that are only written.

    `large` are tensors in HBM, by name, that are only written and larger than caches.
    """

    tiles: frozenset[str] = frozenset()
    states: frozenset[tuple[str, str]] = frozenset()
    large: frozenset[str] = frozenset()

    @staticmethod
    def of(program: Program, bases: Mapping[str, Tile], exposed: Sequence[Tile]) -> UnreadResults:
        """Those of a program, without tiles whose bytes another one may show.

        `bases` are the `MoveTracer`'s that made it, `exposed` its `exposed_tiles`.
        """
        written: dict[str, Tile] = {}
        read: set[str] = set()
        states: set[tuple[str, str]] = set()
        read_states: set[tuple[str, str]] = set()
        for instr in walk(program.body):
            for name, _, pattern in instr.operands():
                tile = bases.get(pattern.tile.name, pattern.tile)
                if instr.access(name) != "writes":
                    read.add(tile.name)
                else:
                    written[tile.name] = tile
            for _, kept, access in instr.states_touched():
                states.add((instr.runs_on, kept.state.name))
                if access in ("reads", "updates"):
                    read_states.add((instr.runs_on, kept.state.name))
        unread = [tile for name, tile in written.items() if name not in read]
        tiles = frozenset(
            tile.name
            for tile in unread
            if tile.memory is not Memory.HBM and not _is_shown(tile, exposed, program)
        )
        large = frozenset(
            t.name for t in unread if t.memory is Memory.HBM and t.bytes >= LARGE_BYTES
        )
        return UnreadResults(tiles, frozenset(states - read_states), large)

    def large_operands(self, instr: Instr) -> frozenset[str]:
        """The operands of an instruction in such tensors."""
        return _operands_in(self.large, instr)

    def of_instruction(self, instr: Instr) -> frozenset[str]:
        """The operands on chip and states of an instruction, by name, whose results are such."""
        found = {*_operands_in(self.tiles, instr)}
        found |= {
            name
            for name, kept, _ in (instr.states_touched() if self.states else ())
            if (instr.runs_on, kept.state.name) in self.states
        }
        return frozenset(found)


ALL_READ = UnreadResults()


def _operands_in(tiles: frozenset[str], instr: Instr) -> frozenset[str]:
    """The operands of an instruction that are in some of these tiles."""
    operands = instr.operands() if tiles else ()
    return frozenset(name for name, _, pattern in operands if pattern.tile.name in tiles)


def _is_shown(tile: Tile, exposed: Sequence[Tile], program: Program) -> bool:
    """Whether a tile shares bytes with one that may show others' bytes."""
    return any(tile.memory is each.memory and tiles_meet(tile, each, program) for each in exposed)
