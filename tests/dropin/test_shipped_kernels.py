"""Kernels of Beta 1 call kernels of this one under their documented names."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

import glia.nki.beta1 as nki
import glia.nki.beta1.language as nl
from glia_dropin.kernels.shipped import (
    conv2d_dw_fb01_io01_01bf_rep_nhwc_Pcinh,
    cumsum,
    resize_nearest_fixed_dma_kernel,
    select_and_scatter_kernel,
)
from support.kernel_checks import assert_close, normal


@nki.jit
def conv_wrap(img_ref, filter_ref, out_shape):  # as the documented guide for UNet training has it
    out_arr = nl.ndarray(shape=out_shape, dtype=img_ref.dtype, buffer=nl.hbm)
    conv2d_dw_fb01_io01_01bf_rep_nhwc_Pcinh(
        img_ref, filter_ref, out_arr,
        input=img_ref.shape, filter=filter_ref.shape, output=out_shape, stride=(1, 1),
        padding=((1, 1), (1, 1)),
        in_perm=[0, 1, 2, 3], kern_perm=[0, 1, 2, 3], out_perm=[0, 1, 2, 3],
    )  # fmt: skip
    return out_arr


def test_a_training_step_of_the_guide_gives_jax_s_gradients() -> None:
    def convolve(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), ((1, 1), (1, 1)), precision="highest")

    image, weights = normal(2, 6, 10, 12), normal(9, 6, 3, 3)
    expected, back = jax.vjp(convolve, image, weights)
    gradient = normal(*expected.shape)
    of_image, of_weights = back(gradient)
    assert_close(conv_wrap(image, weights, expected.shape), np.asarray(expected), 1e-5)
    turned = np.ascontiguousarray(weights.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1])
    assert_close(conv_wrap(gradient, turned, image.shape), np.asarray(of_image), 1e-5)
    swapped = (np.ascontiguousarray(each.swapaxes(0, 1)) for each in (image, gradient))
    found = conv_wrap(*swapped, (6, 9, 3, 3)).swapaxes(0, 1)
    assert_close(found, np.asarray(of_weights), 1e-5)


def test_results_that_a_kernel_makes_come_back() -> None:
    @nki.jit
    def kernel(x):
        return cumsum(x, axis=1)

    x = normal(5, 40)
    assert_close(kernel(x), np.cumsum(x, axis=1), 1e-6)


def test_other_axes_are_refused() -> None:
    @nki.jit
    def kernel(x):
        return cumsum(x, axis=0)

    with pytest.raises(ValueError, match="last dimension"):
        kernel(normal(5, 40))


def test_max_pooling_goes_back() -> None:
    @nki.jit
    def kernel(operand, source):
        return select_and_scatter_kernel(operand, source)

    image = np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4)
    source = np.ones((1, 2, 2, 2), np.float32)
    found = kernel(image, source)
    np.testing.assert_array_equal(found.sum((2, 3)), [[4, 4]])
    np.testing.assert_array_equal(found[0, 0, 1::2, 1::2], np.ones((2, 2)))


def test_images_are_resized_alone_and_each_by_a_program_of_a_grid() -> None:
    kernel = nki.jit(resize_nearest_fixed_dma_kernel)
    image = normal(3, 5, 4, 8)
    expected = image[:, np.arange(9) * 5 // 9][:, :, np.arange(7) * 4 // 7]
    np.testing.assert_array_equal(kernel(image, (3, 9, 7, 8)), expected)
    np.testing.assert_array_equal(kernel[3](image, (3, 9, 7, 8)), expected)


def test_documented_kernels_are_launched_as_they_are_imported() -> None:
    image = normal(2, 4, 4, 8)
    twice = image.repeat(2, axis=1).repeat(2, axis=2)
    np.testing.assert_array_equal(resize_nearest_fixed_dma_kernel[2](image, twice.shape), twice)
    source = np.ones((2, 4, 2, 4), np.float32)
    assert select_and_scatter_kernel(image, source).sum() == source.sum()
    np.testing.assert_array_equal(cumsum(np.ones((3, 5), np.float32))[:, -1], [5, 5, 5])
