"""A tile of whole rows of a matrix, with its source and destination in HBM."""

from __future__ import annotations

from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.language import NkiTensor


class RowTile:
    """Up to 128 whole rows of an input [M, N] and an output; allocates tiles of their shape."""

    def __init__(self, source: NkiTensor, destination: NkiTensor, rows: tuple[int, int]) -> None:
        self.source, self.destination = (each[nl.ds(*rows)] for each in (source, destination))
        self.start, self.height = rows

    def tile(self, dtype: str) -> NkiTensor:
        """A new SBUF tile of the rows' shape."""
        return nl.ndarray(self.source.shape, dtype)

    def column(self) -> NkiTensor:
        """A new SBUF tile [rows, 1] of float32."""
        return nl.ndarray((self.height, 1), nl.float32)

    def load(self) -> NkiTensor:
        """Load the input rows into a new SBUF tile."""
        data = self.tile(self.source.dtype)
        nisa.dma_copy(data, self.source, engine=nisa.engine.sync)
        return data
