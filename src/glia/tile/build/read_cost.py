"""What reading values would cost: the expression they stand for as long as they have no buffer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glia.tile.build.values import Value


@dataclass
class Survey:
    """The distinct parts of an expression.

    `reduction` is the one reduction it holds, and `fork` the first value with several readers, from
    the reduction upwards.
    """

    work: list[Value] = field(default_factory=list)  # what is computed for each element
    sources: set[str] = field(default_factory=set)  # buffers that are loaded
    reduction: Value | None = None
    fork: Value | None = None
    needs_buffer: bool = False  # holds what can only be computed into a buffer
    _holds_reduction: dict[int, bool] = field(default_factory=dict)

    def visit(self, value: Value) -> bool:
        """Take in a value and what it reads; whether it holds the reduction."""
        known = self._holds_reduction.get(id(value))
        if known is None:
            known = self._holds_reduction[id(value)] = self._visit(value)
        return known

    def _visit(self, value: Value) -> bool:
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


def survey(values: Iterable[Value]) -> Survey:
    """The expression that reads all of these values."""
    found = Survey()
    for value in values:
        found.visit(value)
    return found
