"""No cast setting makes a model slower than it is without casts, in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.alternatives import latency_us
from support.targets import CORES

TYPES = ("bf16", "fp16", "tf32", "fp8_e4m3")
SETTINGS = tuple((extent, kind) for extent in ("matmult", "all") for kind in TYPES)
IN_CI = {("matmult", "tf32"), ("matmult", "fp8_e4m3"), ("all", "bf16")}


def tensor(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def convolution(x: Any, kernel: Any) -> Any:
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)


def normalise(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def bert_layer(x: Any, q: Any, k: Any, v: Any, o: Any, up: Any, down: Any) -> Any:
    def heads(y: Any) -> Any:
        return y.reshape(y.shape[0], 4, -1).transpose(1, 0, 2)

    scores = jnp.einsum("hqd,hkd->hqk", heads(x @ q), heads(x @ k)) / 8
    mixed = jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores), heads(x @ v))
    x = normalise(x + mixed.transpose(1, 0, 2).reshape(x.shape) @ o)
    return normalise(x + jax.nn.gelu(x @ up) @ down)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[jax.ShapeDtypeStruct, ...]]] = {
    "one tile": (jnp.matmul, (tensor(128, 128), tensor(128, 128))),
    "many tiles": (jnp.matmul, (tensor(512, 512), tensor(512, 512))),
    "large product": (jnp.matmul, (tensor(1024, 1024), tensor(1024, 1024))),
    "odd shapes": (jnp.matmul, (tensor(129, 127), tensor(127, 3))),
    "matrix and vector": (jnp.matmul, (tensor(1, 768), tensor(768, 768))),
    "deep": (jnp.matmul, (tensor(64, 2048), tensor(2048, 64))),
    "batch": (jnp.matmul, (tensor(8, 64, 64), tensor(8, 64, 64))),
    "convolution": (convolution, (tensor(1, 14, 14, 64), tensor(3, 3, 64, 64))),
    "pointwise": (convolution, (tensor(1, 14, 14, 64), tensor(1, 1, 64, 64))),
    "chain": (lambda a, b: jnp.tanh(a * b + 1) - b, (tensor(256, 512), tensor(256, 512))),
    "softmax": (jax.nn.softmax, (tensor(128, 512),)),
    "sum": (lambda a: a.sum(0), (tensor(512, 256),)),
    "BERT layer": (
        bert_layer,
        (tensor(128, 256), *[tensor(256, 256)] * 4, tensor(256, 1024), tensor(1024, 256)),
    ),
}
ALL = [(name, target, setting) for name in PROGRAMS for target in CORES for setting in SETTINGS]
FEW = ("one tile", "odd shapes", "batch", "softmax", "BERT layer")
CHEAP = [
    (name, target, setting)
    for name, target, setting in ALL
    if name in FEW and target in ("trn1", "trn2") and setting in IN_CI
]


@cache
def lowered(name: str) -> Any:
    function, shapes = PROGRAMS[name]
    return jax.jit(function).lower(*shapes)


@cache
def plain_us(name: str, target: str) -> float:
    neff = glia.compile(lowered(name), target=target, auto_cast="none")
    return found if (found := latency_us(neff.programs, target)) is not None else np.nan


def check(name: str, target: str, setting: tuple[str, str]) -> None:
    extent, kind = setting
    neff = glia.compile(lowered(name), target=target, auto_cast=extent, auto_cast_type=kind)
    time = latency_us(neff.programs, target)
    assert time is not None
    assert time <= plain_us(name, target)
    chosen = next(
        each for each in neff.report["precision"]["alternatives"]
        if each["precision"] == neff.report["precision"]["compiled"]
    )  # fmt: skip
    assert chosen["latency_us"] == round(time, 3)


@pytest.mark.parametrize(("name", "target", "setting"), CHEAP)
def test_casts_never_make_a_program_slower(
    name: str, target: str, setting: tuple[str, str]
) -> None:
    check(name, target, setting)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "target", "setting"), ALL)
def test_casts_never_make_any_program_slower(
    name: str, target: str, setting: tuple[str, str]
) -> None:
    check(name, target, setting)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("kind", TYPES)
def test_casts_make_a_large_product_faster(target: str, kind: str) -> None:
    neff = glia.compile(
        lowered("large product"), target=target, auto_cast="matmult", auto_cast_type=kind
    )
    time = latency_us(neff.programs, target)
    assert time is not None
    assert time < 0.9 * plain_us("large product", target)
