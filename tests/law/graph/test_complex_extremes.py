"""Complex functions at zeros, infinities, NaN and where squares overflow or vanish."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from glia.base.dtype import C64
from glia.compiler import compile_graph
from glia.graph.evaluate import evaluate
from glia.graph.expand.complex import expand_complex
from glia.graph.ir import Graph, Parameter, TensorType
from glia.graph.ops import Iota, Map, Reduce
from glia.graph.ops.scalar_regions import combiner
from glia.graph.rules.constructors import constant
from glia.options import CompileOptions
from glia.runtime.model import load
from support.targets import CORES

REAL = (0, -0.0, 1, -1, 0.5, -2.5, 30, -30, 1e-30, 1e-42, -1e-42, 1e19, -1e20, 3e38, -3e38,
        np.inf, -np.inf, np.nan)  # fmt: skip


def _log1p(z: np.ndarray) -> np.ndarray:
    """NumPy's, which adds 1 first, where that keeps the digits."""
    return np.where(np.abs(z) < 1e-9, z, np.log1p(z))


INVERSES: dict[str, Callable[..., np.ndarray]] = {
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh,
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "abs": np.abs, "sqrt": np.sqrt, "log": np.log, "exp": np.exp, "sinh": np.sinh,
    "cosh": np.cosh, "tanh": np.tanh, "log1p": _log1p,
}  # fmt: skip
NEAR = (0, -0.0, 1, -1, 1.0001, -0.9999, 0.5, -2.5, 1e-3, -1e-6, 1e-10, -1e-30, 50, -90, 1e10,
        -1e30)  # fmt: skip
LARGEST_ANGLE = 1e3  # beyond it the angle of a result is only as good as float32 sine


def numbers(parts: Sequence[float] = REAL) -> np.ndarray:
    pairs = np.array(list(itertools.product(parts, parts)), np.float32)
    return pairs.view(np.complex64).reshape(-1)


def is_same(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Equal parts, NaN at the same places, or near on the scale of the number."""
    parts = [np.stack([array.real, array.imag]).astype(np.float64) for array in (found, wanted)]
    a, b = parts
    scale = np.where(np.isfinite(b), np.abs(b), 0).max(0)
    finite = np.isfinite(a) & np.isfinite(b)
    error = np.abs(np.where(finite, a, 0) - np.where(finite, b, 0))
    near = finite & (error <= 1e-6 * scale + 1e-44)
    return np.all((a == b) | (np.isnan(a) & np.isnan(b)) | near, axis=0)


@pytest.mark.parametrize("target", CORES)
def test_complex_functions_at_extremes(target: str) -> None:
    z = numbers()
    x = Parameter(0, TensorType(C64, z.shape), "input0")
    graph = Graph("extremes", (x,), tuple(Map(name, (x,)) for name in FUNCTIONS))
    model = load(compile_graph(graph, CompileOptions(target=target, auto_cast="none")))
    results = list(model.run({"input0": z}).values())
    wide = z.astype(np.complex128)
    of_angle = np.isfinite(z.imag) & (np.abs(z.imag) > LARGEST_ANGLE)
    for (name, reference), found in zip(FUNCTIONS.items(), results, strict=True):
        with np.errstate(all="ignore"):
            wanted = reference(wide).astype(found.dtype)
        skipped = of_angle if name in ("exp", "sinh", "cosh", "tanh") else np.zeros(z.shape, bool)
        if name in ("sinh", "cosh", "tanh"):  # libraries differ: C99 leaves a sign to them
            skipped = skipped | ~np.isfinite(z.imag)
        wrong = ~is_same(found, wanted) & ~skipped
        assert not wrong.any(), f"{name} of {z[wrong][:4]}: {found[wrong][:4]}, {wanted[wrong][:4]}"


def expanded(name: str, *arrays: np.ndarray) -> np.ndarray:
    """A complex function by its expansion into real ones, in the evaluator of graphs."""
    xs = [Parameter(i, TensorType(C64, z.shape), "") for i, z in enumerate(arrays)]
    graph = expand_complex(Graph(name, tuple(xs), (Map(name, tuple(xs)),)), CompileOptions())
    parts = [np.stack([z.real, z.imag], -1) for z in arrays]
    with np.errstate(all="ignore"):
        (found,) = evaluate(graph, parts)
    return np.ascontiguousarray(found).view(np.complex64)[..., 0]


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("name", INVERSES)
def test_inverses_at_extremes(name: str, target: str) -> None:
    z = numbers()
    x = Parameter(0, TensorType(C64, z.shape), "input0")
    graph = Graph("inverse", (x,), (Map(name, (x,)),))
    model = load(compile_graph(graph, CompileOptions(target=target, auto_cast="none", optlevel=1)))
    (found,) = model.run({"input0": z}).values()
    with np.errstate(all="ignore"):
        wanted = INVERSES[name](z.astype(np.complex128)).astype(np.complex64)
    wrong = ~is_same(found, wanted)
    assert not wrong.any(), f"{z[wrong][:4]}: {found[wrong][:4]}, {wanted[wrong][:4]}"


@pytest.mark.parametrize("name", INVERSES)
def test_inverses_on_both_sides_of_their_cuts(name: str) -> None:
    z = numbers(NEAR)
    with np.errstate(all="ignore"):
        wanted = INVERSES[name](z.astype(np.complex128))
    apart = np.min([np.abs(z.astype(np.complex128) - pole) for pole in (1, -1, 1j, -1j)], 0)
    defined = np.isfinite(wanted) & ((apart == 0) | (apart > 1e-12))
    found = expanded(name, z)[defined]
    np.testing.assert_allclose(found, wanted[defined], 2e-6)
    for part in ("real", "imag"):
        signs = np.signbit(getattr(found, part)), np.signbit(getattr(wanted[defined], part))
        np.testing.assert_array_equal(*signs, err_msg=part)


def test_numbers_near_zero_keep_their_digits() -> None:
    """1 + z has none of them."""
    z = numbers((1e-3, -1e-3, 1e-6, -1e-10, 1e-20))
    wide = z.astype(np.complex128)
    series = {"log1p": wide - wide**2 / 2 + wide**3 / 3, "expm1": wide + wide**2 / 2 + wide**3 / 6}
    for name, wanted in series.items():
        np.testing.assert_allclose(expanded(name, z), wanted, 2e-6, err_msg=name)


@pytest.mark.parametrize("name", ["sin", "cos", "sinh", "cosh", "exp", "expm1"])
def test_parts_are_finite_where_an_exponential_is_not(name: str) -> None:
    """exp(90) is beyond float32, exp(90) sin(1e-6) is not."""
    along, across = np.float32([90, 100, -90]), np.float32([1e-6, -1e-3, 1e-30])
    z = along + 1j * across if name not in ("sin", "cos") else across + 1j * along
    wanted = getattr(np, name)(z.astype(np.complex128))
    found = expanded(name, z.astype(np.complex64))
    for part in ("real", "imag"):
        with np.errstate(over="ignore"):
            goal = getattr(wanted, part).astype(np.float32)
        np.testing.assert_allclose(getattr(found, part), goal, 2e-5, 1e-37, err_msg=part)


def test_functions_of_two_bases_and_of_two_numbers() -> None:
    generator = np.random.default_rng(0)
    parts = generator.standard_normal((2, 50, 2)).astype(np.float32)
    x, y = parts.view(np.complex64)[..., 0]
    wide, other = x.astype(np.complex128), y.astype(np.complex128)
    angle = -1j * np.log((other + 1j * wide) / np.sqrt(wide**2 + other**2))
    np.testing.assert_allclose(expanded("atan2", x, y), angle, 1e-4, 1e-6)
    np.testing.assert_allclose(expanded("exp2", x), 2**wide, 1e-5)
    np.testing.assert_allclose(expanded("log2", x), np.log(wide) / np.log(2), 1e-5)
    np.testing.assert_allclose(expanded("cbrt", x), wide ** (1 / 3), 1e-5)


@pytest.mark.parametrize("target", CORES)
def test_complex_numbers_are_ordered_by_parts(target: str) -> None:
    generator = np.random.default_rng(0)
    parts = generator.integers(-2, 3, (3, 2, 40)).astype(np.float32)
    parts[0, 1, 5] = parts[1, 0, 9] = np.nan
    a, b, c = (pair[0] + 1j * pair[1] for pair in parts)
    arrays = [np.asarray(each, np.complex64) for each in (a, b, c)]
    x, y, z = (Parameter(i, TensorType(C64, (40,)), f"input{i}") for i in range(3))
    results = (
        Map("maximum", (x, y)),
        Map("minimum", (x, y)),
        Map("clamp", (x, y, z)),
        Reduce((z,), (constant(-9 - 9j, C64),), (0,), combiner("maximum", C64)),
        Iota(TensorType(C64, (3, 4)), 1),
    )
    graph = Graph("order", (x, y, z), results)
    model = load(compile_graph(graph, CompileOptions(target=target, auto_cast="none")))
    names = (binding.name for binding in model.inputs)
    found = model.run(dict(zip(names, arrays, strict=True))).values()
    for result, wanted in zip(found, evaluate(graph, arrays), strict=True):
        np.testing.assert_array_equal(result, wanted)
