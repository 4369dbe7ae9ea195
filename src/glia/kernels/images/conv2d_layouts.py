"""Convolution with named layouts, as the documented guide for UNet training calls it.

One function serves the three convolutions of a training step, distinguished by their shapes:

  forward             image [N, C, H, W]     weights [O, C, 3, 3]     -> [N, O, H, W]
  gradient, image     g [N, O, H, W]         weights transposed, [C, O]   -> [N, C, H, W]
  gradient, weights   image as [C, N, H, W]  g as [O, N, H, W]        -> [C, O, 3, 3]

The first two have a small filter and many outputs: `conv2d.convolve` contracts channels. The third
has a filter as large as the image and few outputs; there
`conv2d_weights.accumulate_weight_gradient` contracts pixels. The function takes whichever of the
two spends less of the Tensor Engine on the shapes: what has more elements, the filter or the
output, is what should be contracted or streamed.

A layout is a permutation: `in_perm[d]` is the dimension of the tensor that holds dimension d of
N, C, H, W, `kern_perm` the same of O, C, KH, KW and `out_perm` of N, O, H, W. The tensors are views
of HBM, so that a layout costs nothing but shorter runs for the DMA engines.
"""

from __future__ import annotations

from typing import Any

from glia.kernels.images.conv2d import convolve
from glia.kernels.images.conv2d_weights import accumulate_weight_gradient
from glia.nki.language import NkiTensor

IDENTITY = (0, 1, 2, 3)
SWAPPED_BATCH = (1, 0, 2, 3)
SHAPES = ("input", "filter", "output", "srcs_shapes", "dsts_shapes")  # redundant with the tensors


def conv2d_dw_fb01_io01_01bf_rep_nhwc_Pcinh(  # noqa: N802, the documented name
    img_ref: NkiTensor, filter_ref: NkiTensor, out_ref: NkiTensor, **options: Any
) -> NkiTensor:
    """Convolve into `out_ref`, inside a kernel; returns it.

    Options: stride (rows, columns), padding ((before, after), (before, after)), rhs_dilation (rows,
    columns), in_perm, kern_perm, out_perm, and the shapes once more as input, filter and output.
    ValueError for other options and for shapes that do not belong together.
    """
    known = {"stride", "padding", "rhs_dilation", "in_perm", "kern_perm", "out_perm", *SHAPES}
    unknown = sorted(options.keys() - known)
    if unknown:
        raise ValueError(f"no option {unknown[0]!r}; the options are {', '.join(sorted(known))}")
    image = img_ref.permute(tuple(options.get("in_perm") or IDENTITY))
    weights = filter_ref.permute(tuple(options.get("kern_perm") or IDENTITY))
    out = out_ref.permute(tuple(options.get("out_perm") or IDENTITY))
    stride = _pair(options, "stride", 1)
    dilation = _pair(options, "rhs_dilation", 1)
    padding = tuple(tuple(pair) for pair in options.get("padding") or ((0, 0), (0, 0)))
    _check_shapes(image.shape, weights.shape, out.shape, stride, dilation, padding)
    before = padding[0][0], padding[1][0]
    filter_elements, outputs = (t.shape[2] * t.shape[3] for t in (weights, out))
    if filter_elements > outputs and stride == 1:
        image, weights, out = (each.permute(SWAPPED_BATCH) for each in (image, weights, out))
        accumulate_weight_gradient(image, weights, out, dilation, before)
    else:
        convolve(image, weights, out, stride, before, dilation)
    return out_ref


def _pair(options: dict[str, Any], name: str, default: int) -> int:
    """An option for rows and columns, which have to agree."""
    value = options.get(name) or default
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or pair[0] != pair[1] or pair[0] < 1:
        raise ValueError(f"{name} must be two equal positive integers, not {value}")
    return int(pair[0])


def _check_shapes(
    image: tuple[int, ...],
    weights: tuple[int, ...],
    out: tuple[int, ...],
    stride: int,
    dilation: int,
    padding: tuple[tuple[int, ...], ...],
) -> None:
    """ValueError unless the three shapes are those of a convolution."""
    extents = [
        (extent + before + after - dilation * (taps - 1) - 1) // stride + 1
        for extent, taps, (before, after) in zip(image[2:], weights[2:], padding, strict=True)
    ]
    wanted = image[0], weights[0], *extents
    if image[1] != weights[1] or out != wanted:
        raise ValueError(
            f"an image {image} and a filter {weights}, stride {stride}, dilation {dilation} and "
            f"padding {padding} do not give {out}"
        )
