"""Where a program's inputs and outputs lie during a run: as they are given, or copied."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.base.dtype import PRED
from glia.base.machine_code.native import address_of, copy_bytes
from glia.isa.operand import Tile
from glia.machine.ir import Binding, Program
from glia.sim.memory import Memories

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TensorPlaces:
    """What a run does with the addresses that it is given, inputs and outputs by position.

    `placed`: (tile, whether at an output, position), what the program works on where it is given.
    Copies are (from, to, bytes), one of which may be an address of the program's own memory.
    """

    placed: tuple[tuple[str, bool, int], ...]
    copied_in: tuple[tuple[int, int, int], ...]  # input -> own address
    carried: tuple[tuple[int, int, int], ...]  # input -> output that is the same tensor
    copied_out: tuple[tuple[int, int, int], ...]  # own address -> output
    repeated: tuple[tuple[int, int, int], ...]  # output -> another one of the same tensor
    predicates: tuple[tuple[Array, int], ...]  # own bytes -> output, each 0 or 1

    def copy_before_run(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """What has to be copied before a run."""
        for source, target, count in self.copied_in:
            copy_bytes(inputs[source], target, count)
        for source, target, count in self.carried:
            if inputs[source] != outputs[target]:
                copy_bytes(inputs[source], outputs[target], count)

    def copy_after_run(self, outputs: Sequence[int]) -> None:
        """What has to be copied after a run."""
        for source, target, count in self.copied_out:
            copy_bytes(source, outputs[target], count)
        for source, target, count in self.repeated:
            copy_bytes(outputs[source], outputs[target], count)
        for own, target in self.predicates:
            is_set = np.ascontiguousarray(own != 0)
            copy_bytes(address_of(is_set), outputs[target], own.size)


def planned_places(
    program: Program, memories: Memories, written: Collection[str], kept: set[str]
) -> TensorPlaces:
    """How inputs and outputs get to where the program's table finds them.

    `written` are the tiles that the table writes. What `kept` names stays in the program's own
    memory.
    """
    plan = _Plan(program, memories, written, kept)
    for number, binding in enumerate(program.outputs):
        plan.add_output(number, binding)
    for number, binding in enumerate(program.inputs):
        plan.add_input(number, binding)
    return TensorPlaces(
        tuple(plan.placed), tuple(plan.copied_in), tuple(plan.carried), tuple(plan.copied_out),
        tuple(plan.repeated), tuple(plan.predicates),
    )  # fmt: skip


class _Plan:
    def __init__(
        self, program: Program, memories: Memories, written: Collection[str], kept: set[str]
    ) -> None:
        self._memories, self._kept_here = memories, kept | set(program.constants)
        self._written = written
        self._output_of: dict[str, int] = {}  # the output that a tile is placed at
        self.placed: list[tuple[str, bool, int]] = []
        self.copied_in: list[tuple[int, int, int]] = []
        self.carried: list[tuple[int, int, int]] = []
        self.copied_out: list[tuple[int, int, int]] = []
        self.repeated: list[tuple[int, int, int]] = []
        self.predicates: list[tuple[Array, int]] = []

    def add_output(self, number: int, binding: Binding) -> None:
        tile = binding.tile
        if tile.name in self._output_of:
            self.repeated.append((self._output_of[tile.name], number, tile.bytes))
        elif binding.dtype is PRED:
            self._kept_here.add(tile.name)
            self.predicates.append((self._own_bytes(tile), number))
        elif self._may_move(tile):
            self._output_of[tile.name] = number
            self.placed.append((tile.name, True, number))
        else:
            self.copied_out.append((address_of(self._own_bytes(tile)), number, tile.bytes))

    def add_input(self, number: int, binding: Binding) -> None:
        tile = binding.tile
        if tile.name in self._output_of:
            self.carried.append((number, self._output_of[tile.name], tile.bytes))
        elif tile.name not in self._written and self._may_move(tile):
            self.placed.append((tile.name, False, number))
        else:
            self.copied_in.append((number, address_of(self._own_bytes(tile)), tile.bytes))

    def _may_move(self, tile: Tile) -> bool:
        return tile.name not in self._kept_here and self._memories.is_alone(tile)

    def _own_bytes(self, tile: Tile) -> Array:
        region = self._memories.region(tile)
        return region.buffer[region.start : region.start + tile.bytes]
