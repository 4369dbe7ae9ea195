"""Exchanges of one group that follow each other travel together, and gathers start when needed.

An exchange takes a fixed time before its first byte arrives, so neighbours with few bytes are one
where the first need not wait for longer than that.
What is gathered of a program's own inputs could be gathered first; memory holds it only for as long
as it takes to come, where each begins some time before it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from glia.arch.instances import get_target
from glia.options import CompileOptions
from glia.tile.dependences import predecessors
from glia.tile.estimated_time import estimated_ns
from glia.tile.exchanges.start_exchanges import is_sent
from glia.tile.ir import Branch, Exchange, Program, Statement, While

WORTH_TIMES = 8  # the fixed time of an exchange: what takes longer than that travels by itself
AHEAD = 2.0  # times what a gather takes, that it begins before it is needed


def place_exchanges(program: Program, options: CompileOptions) -> Program:
    """The program with neighbouring exchanges as one, and gathers late, under a strategy."""
    if not options.distribution_strategy:
        return program
    return replace(program, body=_Placer(program, options).block(program.body))


@dataclass(frozen=True)
class _Unit:
    """Statements that stay together: the nests of a group, or one statement."""

    statements: tuple[Statement, ...]

    @property
    def exchange(self) -> Exchange | None:
        """The exchange that this is."""
        (first, *_) = self.statements
        return first if isinstance(first, Exchange) and is_sent(first) else None


class _Placer:
    """Places the exchanges of each block of a program."""

    def __init__(self, program: Program, options: CompileOptions) -> None:
        self.buffers = program.buffers
        self.program = program
        self.arch = get_target(options.target).arch
        self.is_sparing = options.distribution_strategy == "fsdp"  # with memory
        self.group_of = {m.nest: group.name for group in program.groups for _, m in group.members()}

    def block(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        """A block, and the blocks inside of it, with exchanges in their places."""
        units = self._units([self._inside(each) for each in body])
        if any(unit.exchange for unit in units):
            units = self._joined(units)
            units = self._late(units) if self.is_sparing else units
        return tuple(each for unit in units for each in unit.statements)

    def _inside(self, statement: Statement) -> Statement:
        if isinstance(statement, While):
            return replace(statement, body=self.block(statement.body))
        if isinstance(statement, Branch):
            return replace(statement, arms=tuple(map(self.block, statement.arms)))
        return statement

    def _units(self, body: Sequence[Statement]) -> list[_Unit]:
        found: list[_Unit] = []
        last = ""
        for each in body:
            group = self.group_of.get(getattr(each, "name", ""), "")
            if group and group == last:
                found[-1] = _Unit((*found[-1].statements, each))
            else:
                found.append(_Unit((each,)))
            last = group
        return found

    def _predecessors(self, units: Sequence[_Unit]) -> list[set[int]]:
        return predecessors([unit.statements for unit in units], self.program)

    # --- together ---------------------------------------------------------------------------------

    def _joined(self, units: Sequence[_Unit]) -> list[_Unit]:
        """Units whose neighbouring exchanges of few bytes travel together, when the last is due."""
        before = self._predecessors(units)
        result: list[_Unit | None] = [*units]
        waiting: dict[object, list[int]] = {}  # by kind and group, what others may join, as one
        ends_ns = [0.0]  # of the engines' work, before each unit
        for position, unit in enumerate(units):
            waiting = {
                key: held for key, held in waiting.items() if before[position].isdisjoint(held)
            }
            ends_ns.append(ends_ns[-1] + (0.0 if unit.exchange else self._ns(unit)))
            if unit.exchange is None:
                continue
            key = (unit.exchange.kind, unit.exchange.function, unit.exchange.groups)
            held = waiting.get(key, [])
            waiting[key] = [position]
            last = result[held[-1]] if held else None
            joined = last and last.exchange and _joined_exchange(last.exchange, unit.exchange)
            if joined and self._is_short(joined, ends_ns[position] - ends_ns[held[0]]):
                result[held[-1]], result[position] = None, _Unit((joined,))
                waiting[key] = [*held, position]
        return [unit for unit in result if unit]

    def _is_short(self, exchange: Exchange, waits_ns: float) -> bool:
        """Whether neither bytes nor a wait outweigh the time that any exchange takes."""
        sent = [*exchange.inputs, *exchange.outputs]
        tiny = {name: replace(self.buffers[name], shape=()) for name in sent}
        fixed_ns = estimated_ns(exchange, tiny, self.arch)
        is_short = estimated_ns(exchange, self.buffers, self.arch) <= WORTH_TIMES * fixed_ns
        return is_short and waits_ns <= fixed_ns

    # --- late -------------------------------------------------------------------------------------

    def _late(self, units: list[_Unit]) -> list[_Unit]:
        """Units with each gather of what was there before them moved to where it must begin."""
        before = self._predecessors(units)
        gathers = [
            n for n, u in enumerate(units)
            if u.exchange and u.exchange.kind == "all-gather" and not before[n]
        ]  # fmt: skip
        others = [n for n in range(len(units)) if n not in set(gathers)]
        starts = self._starts(units, before, others)
        end = max(starts.values(), default=0.0)
        needed_ns = {
            gather: min((starts[n] for n in others if gather in before[n]), default=end)
            for gather in gathers
        }
        placed = [(starts[n], n) for n in others]
        begins_ns = end
        for gather in sorted(gathers, key=lambda n: needed_ns[n], reverse=True):
            begins_ns = min(begins_ns, needed_ns[gather]) - AHEAD * self._ns(units[gather])
            placed.append((begins_ns, gather))
        return [units[n] for _, n in sorted(placed, key=lambda each: (each[0], each[1]))]

    def _starts(
        self, units: Sequence[_Unit], before: Sequence[set[int]], order: Sequence[int]
    ) -> dict[int, float]:
        """When each unit of an order begins, others being there in time, in nanoseconds."""
        free_ns = {True: 0.0, False: 0.0}  # of the links, and of the engines
        ends: dict[int, float] = {}
        starts: dict[int, float] = {}
        latest = 0.0
        for position in order:
            unit = units[position]
            ready = max((ends.get(n, 0.0) for n in before[position]), default=0.0)
            start = max(ready, free_ns[unit.exchange is not None])
            ends[position] = free_ns[unit.exchange is not None] = start + self._ns(unit)
            latest = starts[position] = max(latest, start)
        return starts

    def _ns(self, unit: _Unit) -> float:
        return sum(estimated_ns(each, self.buffers, self.arch) for each in unit.statements)


def _joined_exchange(first: Exchange, second: Exchange) -> Exchange | None:
    """Two exchanges of one kind and group as one, where an instruction takes several tensors."""
    if first.kind == "collective-permute":
        return None
    inputs, outputs = (*first.inputs, *second.inputs), (*first.outputs, *second.outputs)
    return replace(second, inputs=inputs, outputs=outputs)
