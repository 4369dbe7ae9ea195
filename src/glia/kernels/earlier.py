"""Kernels under the names that `neuronxcc.nki` has them, for kernels of that generation to call."""

from __future__ import annotations

from glia.kernels import conv2d_layouts
from glia.kernels.cumsum import cumsum as current_cumsum
from glia.kernels.select_and_scatter import select_and_scatter
from glia.nki.beta1.kernels import from_current
from glia.nki.language import NkiTensor

conv2d_dw_fb01_io01_01bf_rep_nhwc_Pcinh = from_current(  # noqa: N816, the documented name
    conv2d_layouts.conv2d_dw_fb01_io01_01bf_rep_nhwc_Pcinh
)


@from_current
def cumsum(x: NkiTensor, axis: int = -1) -> NkiTensor:
    """Sums of everything up to each element of the last dimension."""
    if axis not in (-1, x.ndim - 1):
        raise ValueError(f"sums go along the last dimension, not along {axis}")
    return current_cumsum(x)


@from_current
def select_and_scatter_kernel(operand_tensor: NkiTensor, source_tensor: NkiTensor) -> NkiTensor:
    """The gradient of max pooling with 3 x 3 windows, 2 apart, border 1."""
    return select_and_scatter(operand_tensor, source_tensor)
