"""Functions of one variable are found by their values, and nothing else is taken for one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import erfc

from glia.frontend.stablehlo import import_lowered
from glia.graph.evaluate import evaluate
from glia.graph.ir import Graph
from glia.graph.ops import Map
from glia.graph.passes.recognise_functions import recognise_functions
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]
X = np.concatenate([np.linspace(-9, 9, 601), [0.0, 1e-7, -1e-7, 30, -30]]).astype(np.float32)


def recognised(function: Function, *arrays: Array) -> tuple[Graph, Graph]:
    """The graph of a function before and after the pass, both behind what precedes it."""
    graph = import_lowered(jax.jit(function).lower(*arrays))
    options = CompileOptions(auto_cast="none")
    before = run_pipeline(graph, options, stop_after="eliminate_common_subexpressions")
    return before, recognise_functions(before)


def functions(graph: Graph) -> list[str]:
    """The scalar functions of a graph, operands before users."""
    return [node.function for node in graph.nodes if isinstance(node, Map)]


def scaled_tanh_gelu(x):
    return 0.5 * x * (1 + jnp.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def gelu_of_erfc(x):
    return x * erfc(-x * np.float32(0.5**0.5)) / 2


FOUND: dict[str, tuple[Function, list[str]]] = {
    "jax gelu": (lambda x: jax.nn.gelu(x, approximate=False), ["gelu"]),
    "gelu from erfc": (gelu_of_erfc, ["gelu"]),
    "gelu from erf": (lambda x: x * (1 + jax.lax.erf(x * 0.70710678)) * 0.5, ["gelu"]),
    "jax tanh gelu": (lambda x: jax.nn.gelu(x, approximate=True), ["gelu_tanh"]),
    "tanh gelu written out": (scaled_tanh_gelu, ["gelu_tanh"]),
    "silu": (jax.nn.silu, ["silu"]),
    "silu with a division": (lambda x: x / (1 + jnp.exp(-x)), ["silu"]),
    "logistic from exp": (lambda x: 1 / (1 + jnp.exp(-x)), ["logistic"]),
    "logistic from tanh": (lambda x: 0.5 * jnp.tanh(0.5 * x) + 0.5, ["logistic"]),
    "softplus": (jax.nn.softplus, ["softplus"]),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_function_is_found_however_it_is_written(name: str) -> None:
    function, expected = FOUND[name]
    before, after = recognised(function, X)
    assert functions(after) == expected
    np.testing.assert_allclose(
        evaluate(after, [X])[0], evaluate(before, [X])[0], rtol=4e-6, atol=3e-7
    )


OTHERS: dict[str, Function] = {
    "another slope": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "a little more": lambda x: jax.nn.gelu(x, approximate=False) * 1.0001,
    "a little beside": lambda x: jax.nn.gelu(x, approximate=False) + 1e-5,
    "cut off above": lambda x: jnp.minimum(jax.nn.silu(x), 50.0),
    "another value at one number": lambda x: jnp.where(x == 0.12345678, 0.5, x * jnp.exp(x)),
    "the least number": lambda x: (1 - jnp.tanh(x)) * np.finfo(np.float32).min,
    "two variables": lambda x, y: x / (1 + jnp.exp(-y)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_differs_somewhere_is_not_taken_for_a_function(name: str) -> None:
    function = OTHERS[name]
    arrays = [X] * function.__code__.co_argcount
    before, after = recognised(function, *arrays)
    expected = evaluate(before, arrays)[0]
    np.testing.assert_allclose(evaluate(after, arrays)[0], expected, rtol=4e-6, atol=3e-7)
    whole = {"gelu", "silu", "softplus", "gelu_tanh"}
    assert len(functions(after)) > 1 or not whole & set(functions(after))


def test_erfc_keeps_its_digits_where_it_is_small() -> None:
    x = np.linspace(-2, 8, 200, dtype=np.float32)
    _, after = recognised(erfc, x)
    expected = [math.erfc(point) for point in x]
    np.testing.assert_allclose(evaluate(after, [x])[0], expected, rtol=1e-4)


def test_a_single_deviating_number_is_seen() -> None:
    """The constants of a part are samples: an exception at one of them keeps the part."""

    def deviating(x):
        return jnp.where(x == 0.12345678, 0.5, x / (1 + jnp.exp(-x)))

    _, after = recognised(deviating, X)
    assert "select" in functions(after)


def test_the_function_is_found_within_a_larger_graph() -> None:
    def layer(x, w, b):
        return jax.nn.gelu(x @ w + b, approximate=False) @ w

    w = np.eye(8, dtype=np.float32)
    before, after = recognised(layer, np.ones((4, 8), np.float32), w, np.ones(8, np.float32))
    assert functions(after) == ["add", "gelu"]
    assert len(functions(before)) > 40


def test_a_part_that_others_read_is_kept_for_them() -> None:
    def both(x):
        s = 1 / (1 + jnp.exp(-x))
        return x * s, jnp.exp(-x)

    _, after = recognised(both, X)
    assert set(functions(after)) >= {"silu", "exp"}


def test_loops_are_searched_too() -> None:
    def loop(x):
        return jax.lax.fori_loop(0, 3, lambda i, y: jax.nn.gelu(y, approximate=False), x)

    _, after = recognised(loop, X)
    inner = [f for node in after.nodes for name in node.region_fields
             for f in functions(getattr(node, name))]  # fmt: skip
    assert "gelu" in inner and "exp" not in inner


NARROW = ("jax gelu", "jax tanh gelu", "silu with a division", "logistic from tanh", "softplus")


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=["bf16", "f16"])
def test_narrow_floats_may_be_rounded_between_the_steps(name: str, dtype: Any) -> None:
    function, expected = FOUND[name]
    narrow = X.astype(dtype)
    before, after = recognised(function, narrow)
    assert functions(after) == expected
    slack = 4 * float(jnp.finfo(dtype).eps)
    found, written = (evaluate(graph, [narrow])[0] for graph in (after, before))
    assert found.dtype == written.dtype
    np.testing.assert_allclose(
        found.astype(np.float32), written.astype(np.float32), rtol=slack, atol=slack
    )


NARROW_OTHERS: dict[str, Function] = {
    "what rounding makes of a large sum": lambda x: jax.nn.silu((x + 100) - 100),
    "cut off below": lambda x: jnp.where(x < -7, jnp.zeros_like(x), jax.nn.silu(x)),
    "another slope": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "another value at one number": lambda x: jnp.where(x == 0.5, 0.4, jax.nn.silu(x)),
}


@pytest.mark.parametrize("name", NARROW_OTHERS)
def test_other_narrow_functions_are_not_taken_for_one(name: str) -> None:
    narrow = X.astype(jnp.bfloat16)
    before, after = recognised(NARROW_OTHERS[name], narrow)
    assert functions(after) not in (["silu"], ["gelu"], ["gelu_tanh"])
    found, written = (evaluate(graph, [narrow])[0] for graph in (after, before))
    np.testing.assert_allclose(
        found.astype(np.float32), written.astype(np.float32), rtol=2e-2, atol=1e-3
    )
