"""PSUM banks in kernels: allocation, evacuation to SBUF, transposition through PSUM."""

from __future__ import annotations

from collections.abc import Iterable

from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.language import NkiTensor

BANK_COLUMNS = 512  # of float32


def psum_bank(rows: int, columns: int, dtype: str = nl.float32) -> NkiTensor:
    """A new tile [rows, columns] at the start of a PSUM bank of its own."""
    whole = nl.ndarray((rows, nl.tile_size.psum_bank_fmax), nl.float32, buffer=nl.psum)
    return (whole if dtype == nl.float32 else whole.view(dtype))[:, :columns]


def evacuate_psum(destination: NkiTensor, total: NkiTensor, *, by_scalar: bool) -> None:
    """Copy a tile from PSUM to SBUF on the Vector or the Scalar Engine.

    Before generation 3 the Scalar Engine copies by an activation function.
    """
    if not by_scalar:
        nisa.tensor_copy(destination, total, engine=nisa.vector_engine)
    elif nisa.get_nc_version().value >= nisa.nc_version.gen3.value:
        nisa.tensor_copy(destination, total, engine=nisa.scalar_engine)
    else:
        nisa.activation(destination, nl.copy, total)


def transpose_tiles(
    source: NkiTensor, pieces: Iterable[tuple[int, int]], destinations: Iterable[NkiTensor]
) -> None:
    """Transpose column ranges (start, count) of a tile [P, N] into destinations [count, P]."""
    for number, ((start, count), transposed) in enumerate(zip(pieces, destinations, strict=True)):
        total = psum_bank(count, source.shape[0], source.dtype)
        nisa.nc_transpose(total, source[:, nl.ds(start, count)], engine=nisa.tensor_engine)
        evacuate_psum(transposed, total, by_scalar=number % 2 > 0)
