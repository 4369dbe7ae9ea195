"""What only moves or maps its operands takes a few times as long as they take to be transferred.

Where a layout is wrong, elements move one by one, or one partition works, that is a hundred times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import glia
from glia.arch import get_target

LAUNCH_US = 16.0
TIMES = 6.0

Function = Callable[..., Any]
IMAGES = (8, 56, 56, 64)

CASES: dict[str, tuple[Function, tuple[int, ...]]] = {
    "map of a vector": (lambda x: x * 2 + 1, (1 << 19,)),
    "map of a prime number": (lambda x: x * 2 + 1, (400_009,)),
    "map of pairs of rows": (lambda x: jnp.maximum(x, 0), (2, 1 << 18)),
    "map of triples": (lambda x: x / 255 - 0.5, (1 << 17, 3)),
    "triples turned": (lambda x: x.T + 1, (1 << 17, 3)),
    "sum of all": (lambda x: x.sum(), (512, 1024)),
    "greatest of all": (lambda x: x.max(), (1 << 19,)),
    "position of the greatest": (lambda x: x.argmax(), (1, 1 << 18)),
    "mean squared error": (lambda x: ((x - 1) ** 2).mean(), (500, 999)),
    "norm of a gradient": (lambda x: x * lax.rsqrt((x * x).sum()), (1 << 19,)),
    "product with itself": (lambda x: jnp.vdot(x, x), (1 << 19,)),
    "sums of few rows": (lambda x: x.sum(1), (8, 1 << 16)),
    "sums of few columns": (lambda x: x.sum(0), (1 << 17, 4)),
    "sums of columns": (lambda x: x.sum(0), (1024, 512)),
    "softmax of one row": (lambda x: jax.nn.softmax(x), (1, 128_256)),
    "logarithms of a few rows": (lambda x: jax.nn.log_softmax(x), (4, 50_257)),
    "differences": (lambda x: x[1:] - x[:-1], (1 << 19,)),
    "backwards": (lambda x: x[::-1] + 1, (1 << 19,)),
    "every other": (lambda x: x[::2] + x[1::2], (1 << 19,)),
    "padded": (lambda x: jnp.pad(x, (3, 4)) * 2, (1 << 19,)),
    "rolled": (lambda x: jnp.roll(x, 5), (1 << 19,)),
    "logarithm of one more": (lambda x: jnp.log1p(x), (512, 1024)),
    "mean of images, channels last": (lambda x: x.mean((1, 2)), IMAGES),
    "mean of images, channels first": (lambda x: x.mean((2, 3)), (8, 64, 56, 56)),
    "scale of channels": (lambda x: x * jnp.arange(64, dtype=np.float32), IMAGES),
    "channels first": (lambda x: x.transpose(0, 3, 1, 2), IMAGES),
    "heads": (lambda x: x.reshape(4, 128, 12, 64).transpose(0, 2, 1, 3), (4, 128, 768)),
    "three dimensions turned": (lambda x: x.transpose(2, 0, 1), (64, 16, 512)),
    "largest of windows": (
        lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"),
        (8, 64, 56, 56),
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("name", CASES)
def test_operations_take_a_few_times_their_transfers(name: str, target: str) -> None:
    function, shape = CASES[name]
    lowered = jax.jit(function).lower(jax.ShapeDtypeStruct(shape, np.float32))
    (result,) = jax.tree.leaves(lowered.out_info)
    moved = 4 * np.prod(shape) + result.dtype.itemsize * np.prod(result.shape)
    arch = get_target(target).arch
    bound = LAUNCH_US + moved / (arch.dma_engines * arch.dma_bytes_per_ns) / 1000
    latency = glia.load(glia.compile(lowered, target=target)).profile().latency_us
    assert latency <= TIMES * bound, f"{latency:.0f} us for transfers of {bound:.0f} us"
