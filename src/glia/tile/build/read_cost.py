"""The cost of reading deferred values: the size of the expression they expand to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glia.tile.build.values import DeferredValue


@dataclass
class ReadCost:
    """The distinct parts of the expression that reads some values.

    `reduction` is its reduction, if it has one; `fork` is the first value with several readers on
    the way from the reduction to the root.
    """

    work: list[DeferredValue] = field(default_factory=list)  # values computed for each element
    sources: set[str] = field(default_factory=set)  # buffers that are loaded
    reduction: DeferredValue | None = None
    fork: DeferredValue | None = None
    needs_buffer: bool = False  # some part can only be computed into a buffer
    _holds_reduction: dict[int, bool] = field(default_factory=dict)

    def visit(self, value: DeferredValue) -> bool:
        """Add a value and its operands; returns whether it contains the reduction."""
        known = self._holds_reduction.get(id(value))
        if known is None:
            known = self._holds_reduction[id(value)] = self._visit(value)
        return known

    def _visit(self, value: DeferredValue) -> bool:
        if value.buffer:
            self.sources.add(value.buffer)
            return False
        holds = [self.visit(part) for part in value.parts]
        if value.is_reduction:
            self.reduction = self.reduction or value
            if value.has_several_readers:
                self.fork = self.fork or value
            return True
        self.needs_buffer |= value.needs_buffer
        if value.is_work:
            self.work.append(value)
        if any(holds) and value.has_several_readers:
            self.fork = self.fork or value
        return any(holds)


def read_cost(values: Iterable[DeferredValue]) -> ReadCost:
    """The cost of one expression that reads all of these values."""
    found = ReadCost()
    for value in values:
        found.visit(value)
    return found
