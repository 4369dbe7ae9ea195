"""What `--model-type` saves on programs of the family that it is for.

    python benchmarks/model_types.py

`results` gives the same as data: simulated microseconds of the generic program, and of what the
option keeps, which is never slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import networks
import numpy as np
from report import print_table

import glia
from glia.alternatives import latency_us

TARGETS = ("trn1", "trn2", "trn3")
Part = tuple[Callable[..., Any], tuple[Any, ...]]


def _floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.float32)


def _convolved(x: Any, kernel: Any) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)


def _residual_block(x: Any, first: Any, second: Any) -> Any:
    """Two group normalisations, each with a 3x3 convolution."""
    y = x
    for kernel in (first, second):
        groups = y.reshape(*y.shape[:-1], 8, -1)
        mean = groups.mean((1, 2, 4), keepdims=True)
        variance = ((groups - mean) ** 2).mean((1, 2, 4), keepdims=True)
        y = ((groups - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(y.shape)
        y = _convolved(jax.nn.silu(y), kernel)
    return x + y


def _attention(pixels: Any) -> Any:
    return jax.nn.softmax(pixels @ pixels.T, -1) @ pixels


def programs() -> Iterator[tuple[str, str, dict[str, Any], Part]]:
    """Model type, what the program is, more options, the function and its arguments."""
    layer, x = networks.bert(layers=1)
    for cast in ("none", "matmult"):
        what = "a layer of BERT-base, 128 tokens" + (", bf16 products" if cast != "none" else "")
        yield "transformer", what, {"auto_cast": cast}, (layer, (x,))
    kernel = _floats(3, 3, 64, 64)
    block = (_residual_block, (_floats(1, 64, 64, 64), kernel, kernel))
    yield "unet-inference", "two normalised 3x3 convolutions, 64x64 of 64 channels", {}, block
    convolution = (_convolved, (_floats(1, 96, 96, 32), _floats(3, 3, 32, 32)))
    yield "unet-inference", "3x3 convolution, 96x96 of 32 channels", {}, convolution
    for positions, channels in ((1024, 64), (2048, 40)):
        what = f"attention over {positions} positions of {channels} channels"
        yield "unet-inference", what, {}, (_attention, (_floats(positions, channels),))


def measure(kind: str, options: dict[str, Any], part: Part, target: str) -> tuple[float, float]:
    """Simulated microseconds, generic and with the option."""
    function, arguments = part
    lowered = jax.jit(function).lower(*arguments)
    found = []
    for model_type in ("generic", kind):
        neff = glia.compile(
            lowered, target=target, model_type=model_type, logical_nc_config=1, **options
        )
        found.append(latency_us(neff.programs, target) or float("nan"))
    return found[0], found[1]


def results() -> dict[str, Any]:
    """The measurements as a part of RESULTS.md; what is slower than generic is broken."""
    rows, broken = [], []
    for kind, what, options, part in programs():
        for target in TARGETS:
            generic, chosen = measure(kind, options, part, target)
            rows.append(
                [kind, what, target, f"{generic:,.1f}", f"{chosen:,.1f}", f"{chosen / generic:.2f}"]
            )
            if not chosen <= generic:
                broken.append(f"{kind} on {target}: {what} takes {chosen / generic:.2f} of generic")
    text = (
        "Simulated microseconds of programs of the families that `--model-type` is for, -O2, "
        "without the option and with it (goal: never slower)."
    )
    headings = ("model type", "program", "target", "generic us", "us", "ratio")
    return {"title": "Model types", "text": text, "headings": headings, "rows": rows,
            "broken": broken}  # fmt: skip


if __name__ == "__main__":
    print_table(results())
