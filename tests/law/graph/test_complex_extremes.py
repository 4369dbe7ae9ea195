"""Complex functions at zeros, infinities, NaN and where squares overflow or vanish."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from glia.arch.instances import COMPILED_TARGETS
from glia.base.dtype import C64
from glia.compiler import compile_graph
from glia.graph.evaluate import evaluate
from glia.graph.ir import Graph, Parameter, TensorType
from glia.graph.ops import Iota, Map, Reduce
from glia.graph.ops.scalar_regions import combiner
from glia.graph.rules.constructors import constant
from glia.options import CompileOptions
from glia.runtime.model import load

REAL = (0, -0.0, 1, -1, 0.5, -2.5, 30, -30, 1e-30, 1e-42, -1e-42, 1e19, -1e20, 3e38, -3e38,
        np.inf, -np.inf, np.nan)  # fmt: skip
FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "abs": np.abs, "sqrt": np.sqrt, "log": np.log, "exp": np.exp, "sinh": np.sinh,
    "cosh": np.cosh, "tanh": np.tanh, "log1p": np.log1p,
}  # fmt: skip
LARGEST_ANGLE = 1e3  # beyond it the angle of a result is only as good as float32 sine


def numbers() -> np.ndarray:
    pairs = np.array(list(itertools.product(REAL, REAL)), np.float32)
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


@pytest.mark.parametrize("target", COMPILED_TARGETS)
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


@pytest.mark.parametrize("target", COMPILED_TARGETS)
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
