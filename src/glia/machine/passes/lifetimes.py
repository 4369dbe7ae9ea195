"""When each tile is live, in positions of the static program."""

from __future__ import annotations

from dataclasses import dataclass, field

from glia.isa.kit import Instr
from glia.isa.operand import Memory
from glia.machine.ir import Branch, Loop, Program, Statement, While


@dataclass
class Life:
    """First and last position at which a tile holds something, both inclusive."""

    first: int
    last: int


@dataclass
class _Use:
    position: int
    regions: tuple[int, ...]  # enclosing loops, outermost first
    writes: bool


@dataclass
class _Walker:
    position: int = 0
    regions: tuple[int, ...] = ()
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    uses: dict[str, list[_Use]] = field(default_factory=dict)

    def block(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                self.region(statement.body)
            elif isinstance(statement, While):
                self.region((*statement.condition, *statement.body))
            elif isinstance(statement, Branch):
                for arm in statement.arms:
                    self.block(arm)
            else:
                self.instruction(statement)

    def region(self, body: tuple[Statement, ...]) -> None:
        identity = len(self.spans)
        self.spans[identity] = (self.position, self.position)
        outer, start = self.regions, self.position
        self.regions = (*outer, identity)
        self.block(body)
        self.regions = outer
        self.spans[identity] = (start, max(start, self.position - 1))

    def instruction(self, instruction: Instr) -> None:
        read = {p.tile.name for p in instruction.read_patterns()}
        for pattern in (*instruction.read_patterns(), *instruction.written_patterns()):
            if pattern.memory is not Memory.HBM:
                use = _Use(self.position, self.regions, pattern.tile.name not in read)
                self.uses.setdefault(pattern.tile.name, []).append(use)
        self.position += 1


def find_lives(program: Program) -> dict[str, Life]:
    """The life of every on-chip tile.

    A tile used only inside one iteration of a loop, written before it is read, lives within
    that iteration; one that enters or leaves a loop lives through the whole of it.
    """
    walker = _Walker()
    walker.block(program.body)
    return {name: _life(uses, walker.spans) for name, uses in walker.uses.items()}


def _life(uses: list[_Use], spans: dict[int, tuple[int, int]]) -> Life:
    common = uses[0].regions
    for use in uses:
        depth = 0
        while depth < min(len(common), len(use.regions)) and common[depth] == use.regions[depth]:
            depth += 1
        common = common[:depth]
    first, last = uses[0].position, uses[-1].position
    for use in uses:
        for region in use.regions[len(common) :]:
            first, last = min(first, spans[region][0]), max(last, spans[region][1])
    if not uses[0].writes:
        for region in common:
            first, last = min(first, spans[region][0]), max(last, spans[region][1])
    return Life(first, last)
