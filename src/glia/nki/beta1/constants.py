"""`neuronxcc.nki.language.constants`: limits of tiles, and the width of dtypes."""

from __future__ import annotations

from typing import Any

from glia.nki.api.tile_size import tile_size
from glia.nki.beta1.tensors.dtypes import to_dtype_name, to_numpy_dtype


def sizeinbytes(dtype: Any) -> int:
    """Bytes of one element of a dtype."""
    return to_numpy_dtype(to_dtype_name(dtype)).itemsize


sbuf_min_align = tile_size.sbuf_min_align
psum_min_align = tile_size.psum_min_align

__all__ = ["psum_min_align", "sbuf_min_align", "sizeinbytes", "tile_size"]
