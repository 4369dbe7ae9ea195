"""Maxima of widened bfloat16 values are found, and kept, in bfloat16: the same numbers, sooner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import glia
from glia.base.dtype import BF16
from glia.frontend.registry import read_module
from glia.graph.evaluate import evaluate
from glia.isa.instructions.vector import TensorReduce
from glia.machine.ir import walk
from glia.neff.package import Neff
from glia.tile.reductions import narrow_maxima
from support.targets import CORES

ROWS, COLUMNS = 136, 700


def _softmax(x: Any) -> Any:
    return jax.nn.softmax(x.astype(jnp.float32), axis=-1)


def _masked(x: Any) -> Any:
    """Rows of which some are hidden altogether."""
    hidden = jnp.arange(COLUMNS)[None, :] >= 7 * jnp.arange(x.shape[0])[:, None]
    return _softmax(jnp.where(hidden, -jnp.inf, x))


def _columns(x: Any) -> Any:
    wide = x.astype(jnp.float32)
    return wide - wide.max(0)


def _padded(x: Any) -> Any:
    """Maxima of windows that reach over the edge, read at places outside of the tensor."""
    greatest = x.astype(jnp.float32).max(-1)
    return jnp.pad(greatest, (3, 5), constant_values=0.1) * 2.0


def _product(x: Any) -> Any:
    """Maxima that a product reads."""
    greatest = x.astype(jnp.float32).reshape(ROWS, 7, 100).max(-1)
    return greatest @ greatest.T


def _shown(x: Any) -> Any:
    wide = x.astype(jnp.float32)
    greatest = wide.max(-1, keepdims=True)
    return greatest, wide - greatest


def _least(x: Any) -> Any:
    wide = x.astype(jnp.float32)
    return wide - wide.min(-1, keepdims=True)


CASES: dict[str, Callable[[Any], Any]] = {
    name.strip("_"): function
    for name, function in globals().copy().items()
    if name in ("_softmax", "_masked", "_columns", "_padded", "_product", "_shown", "_least")
}
NARROWED = {"softmax", "columns", "shown"}


def argument() -> np.ndarray:
    """Numbers with infinities, and rows of nothing but one of them, or with a NaN."""
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)) * 20
    x[3], x[4, 5], x[5, 6], x[6, ::2] = -np.inf, np.inf, np.nan, -np.inf
    return x.astype(ml_dtypes.bfloat16)


def compiled(function: Callable[[Any], Any], x: np.ndarray, target: str) -> Neff:
    lowered = jax.jit(function).lower(x)
    return glia.compile(lowered, target=target, verify=True, no_cache=True)


def narrow(neff: Neff) -> list[bool]:
    """Of each maximum of a row of values, whether it is written in bfloat16."""
    return [
        instr.dst.dtype is BF16
        for instr in walk(neff.programs[0].body)
        if isinstance(instr, TensorReduce) and instr.op == "maximum" and instr.data.free >= 100
    ]


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_graph(name: str, target: str) -> None:
    x = argument()
    lowered = jax.jit(CASES[name]).lower(x)
    neff = compiled(CASES[name], x, target)
    found = glia.load(neff)(x)
    module = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    for value, wanted in zip(found, evaluate(read_module(module), [x]), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=1e-30)


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_as_with_maxima_in_float32(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = argument()
    narrowed = compiled(CASES[name], x, "trn2")
    monkeypatch.setattr(narrow_maxima, "_narrow_names", lambda _: set())
    wide = compiled(CASES[name], x, "trn2")
    for one, other in zip(glia.load(narrowed)(x), glia.load(wide)(x), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not any(narrow(wide))
    found = narrow(narrowed)
    if name in NARROWED:
        assert found and all(found)
    else:
        assert not any(found), "chosen in float32, filled in, a product's, or no maximum"


def test_long_rows_take_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros((256, 65536), ml_dtypes.bfloat16)

    def microseconds() -> float:
        lowered = jax.jit(lambda x: jax.nn.logsumexp(x.astype(jnp.float32), axis=1)).lower(x)
        return glia.load(glia.compile(lowered, target="trn2", no_cache=True)).profile().latency_us

    took = microseconds()
    monkeypatch.setattr(narrow_maxima, "_narrow_names", lambda _: set())
    assert took < 0.92 * microseconds()
