"""What kernels do with the banks of PSUM."""

from __future__ import annotations

from collections.abc import Iterable

from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.language import NkiTensor

BANK_COLUMNS = 512  # of float32


def bank(rows: int, columns: int, dtype: str = nl.float32) -> NkiTensor:
    """A new tile of PSUM for sums; the next one lies in another bank."""
    whole = nl.ndarray((rows, nl.tile_size.psum_bank_fmax), nl.float32, buffer=nl.psum)
    return (whole if dtype == nl.float32 else whole.view(dtype))[:, :columns]


def copy_out(destination: NkiTensor, total: NkiTensor, *, by_scalar: bool) -> None:
    """Copy a tile out of PSUM on one of the two engines that share this work.

    Before generation 3 Scalar copies by a function of its tables.
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
    """Write each piece (start, count) of the columns of a tile [P, N] turned, as [count, P]."""
    for number, ((start, count), turned) in enumerate(zip(pieces, destinations, strict=True)):
        total = bank(count, source.shape[0], source.dtype)
        nisa.nc_transpose(total, source[:, nl.ds(start, count)], engine=nisa.tensor_engine)
        copy_out(turned, total, by_scalar=number % 2 > 0)
