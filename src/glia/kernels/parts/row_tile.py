"""Whole rows of a matrix on their way through a kernel."""

from __future__ import annotations

from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.language import NkiTensor


class RowTile:
    """Up to 128 whole rows of an input [M, N] and of an output, and new tiles of their height."""

    def __init__(self, source: NkiTensor, destination: NkiTensor, rows: tuple[int, int]) -> None:
        self.source, self.destination = (each[nl.ds(*rows)] for each in (source, destination))
        self.start, self.height = rows

    def tile(self, dtype: str) -> NkiTensor:
        """A new tile in SBUF as large as these rows."""
        return nl.ndarray(self.source.shape, dtype)

    def column(self) -> NkiTensor:
        """A new value for each of these rows."""
        return nl.ndarray((self.height, 1), nl.float32)

    def load(self) -> NkiTensor:
        """The rows of the input, in SBUF."""
        data = self.tile(self.source.dtype)
        nisa.dma_copy(data, self.source, engine=nisa.engine.sync)
        return data
