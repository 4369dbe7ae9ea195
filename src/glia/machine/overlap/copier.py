"""Copies of a loop's body, each with tiles of its own."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Container, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from glia.arch import Arch
from glia.base.affine import Affine
from glia.isa.operand import Memory, Tile
from glia.machine.instruction_rewriting import control_variables, rename_block, substitute
from glia.machine.ir import Loop, Statement, walk
from glia.machine.passes.on_chip_space import occupied_bytes

if TYPE_CHECKING:
    from glia.machine.overlap.overlap_plan import OverlapPlan


class LoopCopier:
    """Copies a loop's body with private tiles, updating the number of uses of each tile."""

    def __init__(
        self,
        variable: str,
        body: tuple[Statement, ...],
        uses: Counter[str],
        tiles: MutableMapping[str, Tile],
    ) -> None:
        self.variable = variable
        self.body = body
        self.uses = uses
        self.tiles = tiles
        self.inside = Counter(
            pattern.tile.name for instruction in walk(body) for pattern in instruction.patterns()
        )
        on_chip = (name for name in self.inside if tiles[name].memory is not Memory.HBM)
        self.private = [name for name in on_chip if self.inside[name] == uses[name]]
        uses.subtract(self.inside)
        self._sets: list[dict[str, Tile]] = [{}]  # private tile -> its clone
        self._clones: dict[str, int] = {}  # the number of the last one, by tile

    def trial(self, body: tuple[Statement, ...]) -> LoopCopier:
        """A copier of another body with the same tiles, or fewer, that changes nothing here."""
        uses = Counter({name: self.uses[name] for name in self.inside})
        return self._with_body(body, uses, ChainMap({}, self.tiles))

    def with_body(self, body: tuple[Statement, ...]) -> LoopCopier:
        """The copier to use instead of this one for another body, with the same tiles or fewer."""
        copier = self._with_body(body, self.uses, self.tiles)
        for name in self.private:
            if name not in copier.inside:
                del self.tiles[name]
        return copier

    def _with_body(
        self, body: tuple[Statement, ...], uses: Counter[str], tiles: MutableMapping[str, Tile]
    ) -> LoopCopier:
        uses.update(
            pattern.tile.name for instruction in walk(body) for pattern in instruction.patterns()
        )
        return LoopCopier(self.variable, body, uses, tiles)

    def room_with_outside(self, room: int, arch: Arch) -> int:
        """Bytes per partition of SBUF for all that the body accesses; 0 where that is not known.

        `room` is what there is for tiles that are private to an iteration.
        """
        outside = (self.tiles[name] for name in self.inside.keys() - {*self.private})
        sbuf = (occupied_bytes(tile, arch) for tile in outside if tile.memory is Memory.SBUF)
        return room + sum(sbuf) if room else 0

    def private_bytes(self, memory: Memory) -> int:
        """Bytes per partition of the tiles private to one copy."""
        own = (self.tiles[name] for name in self.private)
        return sum(tile.bytes_per_partition for tile in own if tile.memory is memory)

    def copies(self, values: Iterable[Affine | int], sets: int, first: int = 0) -> list[Statement]:
        """The body at several values of the loop variable, rotating through `sets` sets of tiles.

        They are numbered from `first` on; set 0 is the tiles of the original body.
        """
        result: list[Statement] = []
        for number, value in enumerate(values):
            replacements = self._tile_set(first + number % sets)
            for name, count in self.inside.items():
                self.uses[replacements[name].name if name in replacements else name] += count
            at = {self.variable: Affine.of(value)}
            body = self.body if not number else self._with_own_loops(number)
            result += [substitute(statement, replacements, at) for statement in body]
        return result

    def _with_own_loops(self, number: int) -> tuple[Statement, ...]:
        """The body with other variables in its loops than the first copy has."""
        if not any(isinstance(each, Loop) for each in self.body):
            return self.body
        names = {name: f"{name}'{number}" for name in control_variables(self.body)}
        return rename_block(self.body, {}, names)

    def steps(self, loop: Loop, plan: OverlapPlan) -> list[Statement]:
        """The loop in steps: in step t, stage s of iteration t - s, with the tiles of that.

        The loop has as many steps as the plan says; those in which some stages have no iteration
        stand around it. A loop of fewer than two trips becomes one of all steps, and one trip.
        """
        stages, sets = plan.stages, plan.steps
        first = stages.count - 1  # the first step in which every stage has an iteration
        trips = (loop.trips - first) // sets
        is_loop = trips > 1
        parts: list[list[Statement]] = [[] for _ in range(stages.count)]
        for statement, stage in zip(self.body, stages.of, strict=True):
            parts[stage].append(statement)

        def step(at: Affine, number: int) -> list[Statement]:
            found = []
            for stage in reversed(range(stages.count)):
                iteration = at + -stage
                is_outside = iteration.is_constant
                if is_outside and not 0 <= iteration.constant < loop.trips:
                    continue
                tiles = self._tiles_of(number - stage, plan.copies)
                if is_outside and is_loop:
                    tiles = self._tiles_around(tiles, stages.crossing)
                found += self._instance(parts[stage], iteration, tiles)
            return found

        if not is_loop:
            whole = [each for t in range(loop.trips + first) for each in step(Affine((), t), t)]
            return [replace(loop, trips=1, body=tuple(whole))]
        variable = Affine.of(loop.variable)
        result = [each for t in range(first) for each in step(Affine((), t), t)]
        unrolled = [step(variable * sets + (first + u), first + u) for u in range(sets)]
        body = tuple(each for statements in unrolled for each in statements)
        result.append(replace(loop, trips=trips, body=body))
        for t in range(first + trips * sets, loop.trips + first):
            result += step(Affine((), t), t)
        return result

    def _instance(
        self, statements: Sequence[Statement], value: Affine, tiles: Mapping[str, Tile]
    ) -> list[Statement]:
        """Statements of the body in one iteration, with one set of tiles."""
        found = [substitute(each, tiles, {self.variable: value}) for each in statements]
        self.uses.update(
            pattern.tile.name for instruction in walk(tuple(found))
            for pattern in instruction.patterns()
        )  # fmt: skip
        return found

    def _tiles_around(self, tiles: Mapping[str, Tile], crossing: Container[str]) -> dict[str, Tile]:
        """The tiles of a set for a part of an iteration that is not in the loop.

        Those that live within it are other ones than in the loop, which would keep them live.
        """
        own = {name: self._clone_tile(name) for name in self.private if name not in crossing}
        return {**tiles, **own}

    def _tiles_of(self, iteration: int, copies: Mapping[str, int]) -> dict[str, Tile]:
        """The tiles of an iteration, where each has so many copies."""
        found = {}
        for name, count in copies.items():
            chosen = self._tile_set(iteration % count)
            if name in chosen:
                found[name] = chosen[name]
        return found

    def _tile_set(self, number: int) -> dict[str, Tile]:
        while len(self._sets) <= number:
            self._sets.append({name: self._clone_tile(name) for name in self.private})
        return self._sets[number]

    def _clone_tile(self, name: str) -> Tile:
        number = self._clones.get(name, 0) + 1
        while f"{name}'{number}" in self.tiles:
            number += 1
        self._clones[name] = number
        tile = self.tiles[name]
        clone = Tile(f"{name}'{number}", tile.memory, tile.dtype, tile.partitions, tile.elements)
        self.tiles[clone.name] = clone
        return clone
