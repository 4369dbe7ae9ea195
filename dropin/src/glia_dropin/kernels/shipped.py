"""Other kernels of `neuronxcc.nki`: images, cumulative sums, and the example of an addition."""

from __future__ import annotations

import math

from glia.kernels.cumsum import cumsum as current_cumsum
from glia.kernels.images import conv2d_layouts
from glia.kernels.images.resize_nearest import resize_into
from glia.kernels.images.select_and_scatter import select_and_scatter
from glia.kernels.tensor_add import add_rows
from glia.nki.beta1 import jit
from glia.nki.beta1 import language as nl
from glia.nki.beta1.tensors.tensor import Tensor
from glia.nki.language import NkiTensor
from glia_dropin.kernels.grid import program_share
from glia_dropin.neuronxcc.shipping import adapt_to_beta1

conv2d_dw_fb01_io01_01bf_rep_nhwc_Pcinh = adapt_to_beta1(  # noqa: N816, the documented name
    conv2d_layouts.conv2d_dw_fb01_io01_01bf_rep_nhwc_Pcinh
)


@jit
@adapt_to_beta1
def cumsum(x: NkiTensor, axis: int = -1) -> NkiTensor:
    """The cumulative sum along the last dimension; ValueError for another axis."""
    if axis not in (-1, x.ndim - 1):
        raise ValueError(f"cumsum is along the last dimension, not axis {axis}")
    sums: NkiTensor = current_cumsum(x)
    return sums


@adapt_to_beta1
def _resize_image(out: NkiTensor, image: NkiTensor, number: int, count: int) -> None:
    """Resize `count` images, from `number` on."""
    resize_into(out[number : number + count], image[number : number + count])


@jit
def resize_nearest_fixed_dma_kernel(data_tensor: Tensor, out_shape: tuple[int, ...]) -> Tensor:
    """Images [N, H, W, C] in another shape, by nearest pixels; on a grid one for each program."""
    out = nl.ndarray(tuple(out_shape), dtype=data_tensor.dtype, buffer=nl.shared_hbm)
    batch = data_tensor.shape[0]
    number, count = (nl.program_id(0), 1) if nl.program_ndim() else (0, batch)
    _resize_image(out, data_tensor, int(number), count)
    return out


@jit
@adapt_to_beta1
def select_and_scatter_kernel(operand_tensor: NkiTensor, source_tensor: NkiTensor) -> NkiTensor:
    """The gradient of max pooling with 3 x 3 windows, 2 apart, border 1."""
    gradient: NkiTensor = select_and_scatter(operand_tensor, source_tensor)
    return gradient


@jit
def add_kernel_nx8x128x512(a_ptr: Tensor, b_ptr: Tensor, n_elements: int) -> Tensor:
    """a + b, [N, 8, 128, 512], of which the first n_elements in order are written.

    The programs of a grid split N.
    """
    out = nl.ndarray(a_ptr.shape, dtype=a_ptr.dtype, buffer=nl.shared_hbm)
    each = math.prod(a_ptr.shape[1:])
    first, count = program_share(a_ptr.shape[0])
    _add_elements(a_ptr, b_ptr, out, first * each, min((first + count) * each, n_elements))
    return out


@adapt_to_beta1
def _add_elements(a: NkiTensor, b: NkiTensor, out: NkiTensor, first: int, end: int) -> None:
    """out = a + b for the elements from `first` below `end`, in row-major order."""
    if end > first:
        add_rows(*(tensor.reshape((tensor.size,))[first:end] for tensor in (a, b, out)))
