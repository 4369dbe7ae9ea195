"""How many bytes of a scalar expression's values are live at once while it is computed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from glia.tile.ir import Accumulator, Apply, Expr, Index, Load


@dataclass(frozen=True)
class _Computed:
    """A value that gets a tile, and the values with tiles from which it is computed."""

    number: int
    bytes: int
    operands: frozenset[int]


def live_bytes(expression: Expr | None, rows: str) -> int:
    """The most bytes for each swept element that values need at once, beside buffers; an estimate.

    Each value is computed once, in the order of arguments, and held until its last use. A function
    of one swept value that is used once needs no tile: the instruction that takes it computes it
    too. What has one value for each of the `rows` is not counted.
    """
    computed = _Values(expression, rows).computed if expression is not None else []
    last_use = {each.number: each.number for each in computed}
    for each in computed:
        last_use |= dict.fromkeys(each.operands, each.number)
    ends: dict[int, int] = {}
    live = most = 0
    for each in computed:
        live += each.bytes
        most = max(most, live)
        end = last_use[each.number]
        ends[end] = ends.get(end, 0) + each.bytes
        live -= ends.pop(each.number, 0)
    return most


class _Values:
    """The values of an expression that need tiles, in the order in which they are computed."""

    def __init__(self, expression: Expr, rows: str) -> None:
        self.rows = rows
        self.computed: list[_Computed] = []
        self.uses = _uses(expression)
        self.known: dict[int, tuple[bool, frozenset[int]]] = {}
        self._visit(expression)

    def _visit(self, part: Expr) -> tuple[bool, frozenset[int]]:
        """Whether a value is swept, and the computed ones that it is read from."""
        if isinstance(part, Load):
            used = {name for each in part.index for name in each.variables}
            return bool(used - {self.rows}), frozenset()
        if isinstance(part, Accumulator):
            return True, frozenset()
        if not isinstance(part, Apply | Index):
            return False, frozenset()
        if id(part) not in self.known:
            self.known[id(part)] = self._compute(part)
        return self.known[id(part)]

    def _compute(self, part: Apply | Index) -> tuple[bool, frozenset[int]]:
        args = part.args if isinstance(part, Apply) else ()
        swept = {id(each): found[1] for each in args if (found := self._visit(each))[0]}
        operands = frozenset[int]().union(*swept.values())
        if isinstance(part, Apply) and not swept:
            return False, operands
        if len(swept) == 1 and self.uses[id(part)] == 1:
            return True, operands
        number = len(self.computed)
        self.computed.append(_Computed(number, part.dtype.bytes, operands))
        return True, frozenset((number,))


def _uses(expression: Expr) -> Counter[int]:
    """How often each part of an expression is an argument."""
    found, waiting, seen = Counter((id(expression),)), [expression], set[int]()
    while waiting:
        part = waiting.pop()
        if isinstance(part, Apply) and id(part) not in seen:
            seen.add(id(part))
            found.update(map(id, part.args))
            waiting += part.args
    return found
