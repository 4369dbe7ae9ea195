"""What small kernels of both generations of NKI are traced to; `--bless` accepts a change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glia.machine.text import print_program
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.beta1 import isa as nisa1
from glia.nki.beta1 import jit as jit1
from glia.nki.beta1 import language as nl1
from glia.nki.beta1.run.launch import trace_call
from glia.nki.run.trace import trace
from support.golden_text import without_lines

Golden = Callable[[str, str], None]


def f32(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def scale(x):
    """One tile through SBUF."""
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    result = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=result, src=tile)
    return result


def product(a_transposed, b):
    """A product accumulated in PSUM over two tiles of the contraction."""
    rows, columns = a_transposed.shape[1], b.shape[1]
    sums = nl.ndarray((rows, columns), nl.float32, buffer=nl.psum)
    for k in nl.affine_range(a_transposed.shape[0] // 128):
        lhs = nl.ndarray((128, rows), a_transposed.dtype, buffer=nl.sbuf)
        rhs = nl.ndarray((128, columns), b.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=lhs, src=a_transposed[nl.ds(k * 128, 128), :])
        nisa.dma_copy(dst=rhs, src=b[nl.ds(k * 128, 128), :])
        nisa.nc_matmul(sums, lhs, rhs)
    copied = nl.ndarray((rows, columns), nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(copied, sums)
    result = nl.ndarray((rows, columns), nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=result, src=copied)
    return result


def softmax(x):
    """Functions of nl: a row maximum, an exponential, a sum, a division."""
    tile = nl.load(x)
    shifted = nl.subtract(tile, nl.max(tile, axis=1, keepdims=True))
    grown = nl.exp(shifted)
    result = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(result, nl.divide(grown, nl.sum(grown, axis=1, keepdims=True)))
    return result


def transposed(x):
    """A transpose on the Tensor Engine."""
    tile = nl.load(x)
    turned = nl.ndarray((x.shape[1], x.shape[0]), x.dtype, buffer=nl.psum)
    nisa.nc_transpose(turned, tile)
    result = nl.ndarray((x.shape[1], x.shape[0]), x.dtype, buffer=nl.shared_hbm)
    nl.store(result, nl.copy(turned))
    return result


def device_loop(x):
    """A loop that stays a loop on the device."""
    result = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)

    def row(i):
        tile = nl.ndarray((1, x.shape[1]), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[nl.ds(i, 1), :])
        nisa.activation(dst=tile, op=nl.exp, data=tile)
        nisa.dma_copy(dst=result[nl.ds(i, 1), :], src=tile)

    nl.fori_loop(0, 4, row)
    return result


@jit1
def scale_beta1(x):
    """One tile through SBUF."""
    out = nl1.ndarray(x.shape, dtype=x.dtype, buffer=nl1.shared_hbm)
    nl1.store(out, nl1.multiply(nl1.load(x), 2.0))
    return out


@jit1
def product_beta1(a_transposed, b):
    """A product accumulated in PSUM over two tiles of the contraction."""
    rows, columns = a_transposed.shape[1], b.shape[1]
    out = nl1.ndarray((rows, columns), dtype=nl1.float32, buffer=nl1.shared_hbm)
    sums = nl1.zeros((rows, columns), nl1.float32, buffer=nl1.psum)
    for k in nl1.affine_range(a_transposed.shape[0] // 128):
        lhs = nl1.load(a_transposed[k * 128 : (k + 1) * 128, :])
        rhs = nl1.load(b[k * 128 : (k + 1) * 128, :])
        sums += nl1.matmul(lhs, rhs, transpose_x=True)
    nl1.store(out, nl1.copy(sums))
    return out


@jit1
def masked_beta1(x):
    """Index objects and a mask."""
    out = nl1.ndarray(x.shape, dtype=x.dtype, buffer=nl1.shared_hbm)
    row, column = nl1.mgrid[0:128, 0:512]
    inside = (row < x.shape[0]) & (column < x.shape[1])
    tile = nl1.load(x[row, column], mask=inside)
    nl1.store(out[row, column], nl1.exp(tile), mask=inside)
    return out


@jit1
def softmax_beta1(x):
    """Row reductions, and one activation that also sums."""
    out = nl1.ndarray(x.shape, dtype=x.dtype, buffer=nl1.shared_hbm)
    tile = nl1.load(x)
    highest = nl1.max(tile, axis=1, keepdims=True)
    grown = nisa1.activation(nl1.exp, tile, bias=nl1.multiply(highest, -1.0))
    nl1.store(out, nl1.divide(grown, nl1.sum(grown, axis=1, keepdims=True)))
    return out


CURRENT: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "scale": (scale, (f32(128, 64),)),
    "product": (product, (f32(256, 64), f32(256, 512))),
    "softmax": (softmax, (f32(128, 256),)),
    "transposed": (transposed, (f32(64, 128),)),
    "device_loop": (device_loop, (f32(4, 32),)),
}
BETA1: dict[str, tuple[Any, tuple[np.ndarray, ...]]] = {
    "scale_beta1": (scale_beta1, (f32(128, 64),)),
    "product_beta1": (product_beta1, (f32(256, 64), f32(256, 512))),
    "masked_beta1": (masked_beta1, (f32(100, 300),)),
    "softmax_beta1": (softmax_beta1, (f32(128, 256),)),
}


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("name", CURRENT)
def test_a_kernel_is_traced_to_the_expected_text(name: str, target: str, golden: Golden) -> None:
    function, arrays = CURRENT[name]
    program = trace(function, *arrays, target=target)
    golden(f"traced/{name}_on_{target}", without_lines(print_program(program)))


@pytest.mark.parametrize("name", BETA1)
def test_a_kernel_of_beta_1_is_traced_to_the_expected_text(name: str, golden: Golden) -> None:
    kernel, arrays = BETA1[name]
    (program,) = trace_call(kernel, arrays, {}).programs
    golden(f"traced/{name}", without_lines(print_program(program)))
