"""`on_device` takes and returns what the JAX function does, and compiles once per signature."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.frontend.errors import UnknownCustomCall
from glia.plugins.jax import compiled_functions as plugin
from glia.plugins.jax import on_device

X = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """The options of every call of `glia.compile`."""
    made: list[dict[str, Any]] = []
    original = glia.compile

    def count(module: object, **options: Any) -> glia.Neff:
        made.append(options)
        return original(module, **options)

    monkeypatch.setattr(glia, "compile", count)
    yield made


def assert_same(found: Any, expected: Any) -> None:
    """Equal trees of jax arrays with equal dtypes and close values."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert isinstance(a, jax.Array) and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def _layer(weights: dict[str, Any], x: Any) -> dict[str, Any]:
    hidden = jax.nn.relu(x @ weights["w"] + weights["b"])
    return {"hidden": hidden, "both": (hidden.sum(), x.astype(jnp.bfloat16))}


def test_trees_go_in_and_come_out() -> None:
    weights = {"w": W, "b": jnp.ones(5)}
    assert_same(on_device(_layer)(weights, X), _layer(weights, X))
    assert_same(on_device(_layer)(weights, x=X), _layer(weights, X))


def test_constants_of_a_closure_are_part_of_the_program() -> None:
    assert_same(on_device(lambda x: jnp.tanh(x @ W))(X), jnp.tanh(X @ W))


def test_an_unused_argument_is_taken() -> None:
    assert_same(on_device(lambda a, b: b + 1)(W, X), jnp.asarray(X + 1))


def test_python_numbers_and_wide_arrays_have_the_types_jax_gives_them() -> None:
    def scale(x: Any, factor: Any) -> Any:
        return x * factor

    half = X.astype(jnp.bfloat16)
    assert_same(on_device(scale)(half, 2.0), jnp.asarray(half) * 2.0)
    assert_same(on_device(scale)(X.astype(np.float64), np.int64(2)), jnp.asarray(X) * 2)


def test_random_keys_go_in_and_come_out() -> None:
    key = jax.random.key(7)
    found = on_device(jax.random.split)(key)
    assert found.dtype == key.dtype
    expected = jax.random.key_data(jax.random.split(key))
    np.testing.assert_array_equal(jax.random.key_data(found), expected)


def test_a_call_compiles_once_for_each_signature(compilations: list[dict[str, Any]]) -> None:
    double = on_device(lambda x: x + x, target="trn1", optlevel=1)
    for _ in range(2):
        assert_same(double(X), jnp.asarray(X + X))
    assert compilations == [{"target": "trn1", "optlevel": 1}]
    assert double.neff(X).target == "trn1"
    assert len(compilations) == 1
    double(W)
    assert len(compilations) == 2
    double(X.astype(np.int32))
    assert len(compilations) == 3


def test_the_model_used_longest_ago_is_forgotten(
    compilations: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "MAX_MODELS", 1)
    negate = on_device(lambda x: -x)
    for x in (X, W, X):
        negate(x)
    assert len(compilations) == 3


@pytest.mark.parametrize("static", [{"static_argnums": 1}, {"static_argnames": "times"}])
def test_static_arguments_are_values(
    static: dict[str, Any], compilations: list[dict[str, Any]]
) -> None:
    @on_device(**static)
    def repeat(x: Any, times: int, y: Any) -> Any:
        return jnp.tile(x, times) + y

    for _ in range(2):
        assert_same(repeat(X, 2, 1.0), jnp.tile(X, 2) + 1)
    assert len(compilations) == 1
    assert_same(repeat(X, 3, 1.0), jnp.tile(X, 3) + 1)
    assert_same(repeat(X, times=3, y=1.0), jnp.tile(X, 3) + 1)


def test_static_positions_work_where_a_function_hides_its_parameters() -> None:
    class Hidden:
        @property
        def __signature__(self) -> Any:
            raise ValueError("as for functions written in C")

        def __call__(self, x: Any, times: int) -> Any:
            return jnp.tile(x, times)

    assert_same(on_device(Hidden(), static_argnums=1)(X, 2), jnp.tile(X, 2))


def test_static_arguments_count_from_the_end_and_differ_by_type() -> None:
    def convert(*arguments: Any) -> Any:
        return arguments[0] + jnp.asarray(arguments[-1])

    found = on_device(convert, static_argnums=-1)
    integers = np.arange(3, dtype=np.int32)
    for value in (1, 1.0):
        assert_same(found(integers, value), convert(integers, value))


def test_a_training_step_runs() -> None:
    def loss(weights: dict[str, Any], x: Any) -> Any:
        return jnp.square(_layer(weights, x)["hidden"] - 1).mean()

    def step(weights: dict[str, Any], x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    weights = {"w": jnp.asarray(W), "b": jnp.zeros(5)}
    found = on_device(step)(weights, X)
    assert_same(found, step(weights, X))
    assert on_device(loss)(found[1], X) < found[0]


def test_gradients_of_integers_hold_nothing() -> None:
    gradient = jax.grad(lambda x: 1.0 * x.sum(), allow_int=True)
    found = on_device(gradient)(np.ones(3, np.int32))
    assert found.dtype == jax.dtypes.float0 and found.shape == (3,)


def test_tracers_are_refused_before_anything_is_compiled(
    compilations: list[dict[str, Any]],
) -> None:
    with pytest.raises(jax.errors.TracerArrayConversionError):
        jax.jit(on_device(lambda x: x + 1))(X)
    assert compilations == []


def test_linear_algebra_runs() -> None:
    a = W @ W.T + np.eye(3, dtype=np.float32)
    assert_same(on_device(jnp.linalg.cholesky)(a), jnp.linalg.cholesky(a))


def test_a_profile_has_a_latency() -> None:
    assert on_device(_layer).profile({"w": W, "b": np.ones(5, np.float32)}, X).latency_us > 0


def test_errors_of_the_compiler_are_not_changed() -> None:
    with pytest.raises(UnknownCustomCall):
        on_device(lambda x: jax.ffi.ffi_call("nobody_knows", x)(x))(X)
    with pytest.raises(TypeError, match="no_such_option"):
        on_device(lambda x: x + 1, no_such_option=1)(X)


def test_what_is_no_array_is_refused_by_jax() -> None:
    with pytest.raises(TypeError, match="not a valid JAX type"):
        on_device(lambda x: x)("text")


def test_the_callable_looks_like_the_function() -> None:
    assert on_device(_layer).__name__ == "_layer"
