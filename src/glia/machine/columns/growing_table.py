"""Tables of integers that rows are added to, as one array for each column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glia.machine.columns.value_numbering import Array

FIRST_ROOM = 256  # rows


class GrowingTable:
    """Rows of integers in named columns; adding one costs the same however many there are."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._new: list[Sequence[int]] = []
        self._room = np.zeros((len(self.names), FIRST_ROOM), np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count + len(self._new)

    def append(self, row: Sequence[int]) -> None:
        """Add a row: an integer for each column."""
        self._new.append(row)

    def columns(self) -> dict[str, Array]:
        """The columns by name; they hold for the rows that there are."""
        if self._new:
            self._take_up()
        return {
            name: column[: self._count] for name, column in zip(self.names, self._room, strict=True)
        }

    def _take_up(self) -> None:
        """Move what was added since to the arrays, which double their room where it is full."""
        end = len(self)
        if end > self._room.shape[1]:
            grown = np.zeros((len(self.names), max(end, 2 * self._room.shape[1])), np.int64)
            grown[:, : self._count] = self._room[:, : self._count]
            self._room = grown
        self._room[:, self._count : end] = np.array(self._new, np.int64).T
        self._count = end
        self._new = []
