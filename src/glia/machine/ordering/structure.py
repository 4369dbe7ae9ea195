"""What bodies of loops have in common that differ in the names of their tiles and variables.

Layers of a model are alike; what is found for one of them holds for the others.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from glia.base.affine import Affine
from glia.isa.kit import Instr, is_register
from glia.machine.queues import stream_of


@dataclass(frozen=True)
class Structure:
    """A body without names: equal for bodies that are ordered alike.

    `tiles` are the names of the tiles, by the number that the key has for each.
    """

    key: tuple[int, ...]
    tiles: tuple[str, ...] = field(compare=False)


class Structures:
    """Finds structures; what instructions have in common is numbered."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def of(self, body: Sequence[Instr], variable: str) -> Structure:
        """The structure of the body of a loop with a variable."""
        tiles: dict[str, int] = {}
        variables = {variable: 0}
        key: list[int] = []
        for instruction in body:
            form = _form(instruction, variables)
            key.append(self._numbers.setdefault(form, len(self._numbers)))
            for pattern in instruction.patterns():
                key.append(tiles.setdefault(pattern.tile.name, len(tiles)))
        return Structure(tuple(key), tuple(tiles))


def _form(instruction: Instr, variables: dict[str, int]) -> Hashable:
    """An instruction without the names of tiles, and with numbers for those of variables."""

    def place(value: object) -> object:
        if not isinstance(value, Affine) or not value.terms:
            return value
        terms = [
            (name if is_register(name) else variables.setdefault(name, len(variables)), factor)
            for name, factor in value.terms
        ]
        return (*terms, value.constant)

    operands = [
        (name, p.memory, p.tile.dtype, p.tile.partitions, p.tile.elements, p.dtype, p.dims,
         place(p.offset), place(p.partition))
        for name, _, p in instruction.operands()
    ]  # fmt: skip
    attributes = [(name, place(value)) for name, value in instruction.numbers()]
    streams = instruction.runs_on, stream_of(instruction)
    return type(instruction), *streams, tuple(operands), tuple(attributes)
