"""Whether the iterations of a simulated device loop issue what the first iteration issued.

A compiled program has the body of such a loop once, so that state which Python changes between
iterations, a counter or a list, has no effect on it. An iteration with other constants or source
tensors than the first is reported; another engine or another scratch tile is equivalent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from glia.base.affine import Affine
from glia.isa.kit import Instr
from glia.isa.operand import Pattern
from glia.nki.names.language_errors import advise
from glia.nki.session.session import value_text

# Fields that may differ: scheduling, fresh register names, and whether memory held a sum before.
_IGNORED_FIELDS = {"on", "queue", "waits", "signals", "loc", "register", "accumulate"}


@dataclass(eq=False)
class LoopTrace:
    """A running loop: the instructions of its first iteration, and the progress of this one."""

    first: list[Instr] = field(default_factory=list)
    iteration: int = 0
    position: int = 0  # instructions issued in this iteration
    has_diverged: bool = False  # this iteration issues other instructions than the first
    is_reported: bool = False
    tiles: dict[str, int] = field(default_factory=dict)  # numbers of this iteration's tiles
    first_tiles: dict[str, int] = field(default_factory=dict)
    substitutes: dict[str, str] = field(default_factory=dict)  # first tile -> this iteration's

    def begin_iteration(self) -> None:
        """Start the next iteration."""
        if self.iteration == 1:
            self.first_tiles = self.tiles
        self.iteration, self.position, self.has_diverged = self.iteration + 1, 0, False
        self.tiles, self.substitutes = {}, {}

    def add_tile(self, tile: str) -> None:
        """Number a tile allocated in this iteration."""
        self.tiles[tile] = len(self.tiles)

    def compare(self, instr: Instr) -> None:
        """Compare an instruction with the one at its position in the first iteration."""
        if self.iteration == 1:
            self.first.append(instr)
            return
        before = self.first[self.position] if self.position < len(self.first) else None
        self.position += 1
        if type(before) is not type(instr) or before.loc != instr.loc:
            self.has_diverged = True
        elif not self.has_diverged and not self.is_reported:
            self._compare(before, instr)

    def _compare(self, before: Instr, now: Instr) -> None:
        written = {name for name in now.operand_declarations if now.access(name) == "writes"}
        for name, value in vars(now).items():
            was = vars(before).get(name)
            if (
                value is was
                or name in _IGNORED_FIELDS
                or self._is_equivalent(was, value, name in written)
            ):
                continue
            advise(
                f"iteration {self.iteration} of a loop on the device has {name} "
                f"{_operand_text(value)} in {now.mnemonic()}, the first has {_operand_text(was)}: "
                "Python runs its body once when the kernel is compiled",
                now.loc,
            )
            self.is_reported = True
        for was, pattern in zip(before.written_patterns(), now.written_patterns(), strict=True):
            self.substitutes[was.tile.name] = pattern.tile.name

    def _is_equivalent(self, before: Any, now: Any, is_written: bool = False) -> bool:
        """Whether values are equal up to the renaming of tiles and registers.

        Iterations may alternate between tiles, if each writes its own before it reads it.
        """
        if isinstance(now, Pattern) and isinstance(before, Pattern):
            return (
                (is_written or self._is_same_tile(before.tile.name, now.tile.name))
                and (before.dtype, before.dims) == (now.dtype, now.dims)
                and self._is_equivalent(before.offset, now.offset)
                and self._is_equivalent(before.partition, now.partition)
            )
        if isinstance(now, Affine) and isinstance(before, Affine):
            factors = [sorted(factor for _, factor in each.terms) for each in (before, now)]
            return factors[0] == factors[1] and before.constant == now.constant
        if isinstance(now, tuple) and isinstance(before, tuple):
            pairs = zip(before, now, strict=False)
            return len(before) == len(now) and all(self._is_equivalent(a, b) for a, b in pairs)
        return bool(before == now or (before != before and now != now))

    def _is_same_tile(self, before: str, now: str) -> bool:
        if self.substitutes.get(before, before) == now:
            return True
        return before in self.first_tiles and self.first_tiles[before] == self.tiles.get(now)


def _operand_text(value: object) -> str:
    if isinstance(value, Pattern):
        return f"{value.tile.name}{list(value.shape)} at {value.offset}"
    return value_text(value)
