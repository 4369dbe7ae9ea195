"""Functions that have an equation instead of an instruction are as accurate as it says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from glia.base.dtype import F32
from glia.compiler import compile_graph
from glia.conformance.stablehlo.compare import ulp_difference
from glia.graph.ir import Graph, Parameter, TensorType
from glia.graph.ops import Map
from glia.graph.rules.constructors import splat
from glia.options import CompileOptions
from glia.runtime.model import load
from support.targets import CORES

MOST_ULPS = {"sin": 2, "cos": 2, "tan": 4}
MULTIPLES = np.arange(-6, 7) * np.pi / 2


def run(graph: Graph, arrays: list[np.ndarray], target: str) -> list[np.ndarray]:
    model = load(compile_graph(graph, CompileOptions(target=target, auto_cast="none")))
    names = (binding.name for binding in model.inputs)
    return list(model.run(dict(zip(names, arrays, strict=True))).values())


@pytest.mark.parametrize("target", CORES)
def test_angles_far_from_zero_and_near_multiples_of_pi(target: str) -> None:
    generator = np.random.default_rng(0)
    spread = [generator.uniform(-reach, reach, 500) for reach in (1, 4, 30, 3000)]
    beside = (MULTIPLES[:, None] + np.array([-1e-3, -1e-6, 0, 1e-6, 1e-3])).reshape(-1)
    x = np.concatenate([*spread, beside]).astype(np.float32)
    parameter = Parameter(0, TensorType(F32, x.shape), "input0")
    graph = Graph("angles", (parameter,), tuple(Map(name, (parameter,)) for name in MOST_ULPS))
    for (name, most), found in zip(MOST_ULPS.items(), run(graph, [x], target), strict=True):
        wanted = getattr(np, name)(x.astype(np.float64)).astype(np.float32)
        assert ulp_difference(found, wanted).max() <= most, name


@pytest.mark.parametrize("target", CORES)
def test_quotients_by_numbers_without_a_finite_reciprocal(target: str) -> None:
    sizes = np.array([1e-45, 1e-40, 5e-39, 1.2e-38, 1e-30, 1, 1e30, 3e38], np.float32)
    a, b = (np.concatenate([grid.reshape(-1), -grid.reshape(-1)])
            for grid in np.meshgrid(sizes, sizes))  # fmt: skip
    a, b = np.append(a, [0, 1, 0, np.inf]), np.append(b, [0, 0, -1, 2])
    arrays = [a.astype(np.float32), b.astype(np.float32)]
    x, y = (Parameter(i, TensorType(F32, a.shape), f"input{i}") for i in range(2))
    (found,) = run(Graph("quotients", (x, y), (Map("divide", (x, y)),)), arrays, target)
    with np.errstate(all="ignore"):
        wanted = arrays[0] / arrays[1]
    assert ulp_difference(found, wanted).max() <= 4


@pytest.mark.parametrize("target", CORES)
def test_quotients_by_roots_that_are_surely_positive(target: str) -> None:
    sizes = 2.0 ** np.linspace(-140, 127, 96)
    a, v = np.meshgrid(np.append(sizes, 0.0), np.append(sizes, [0.0, np.inf, np.nan, -1.0]))
    arrays = [a.astype(np.float32), v.astype(np.float32)]
    x, y = (Parameter(i, TensorType(F32, a.shape), f"input{i}") for i in range(2))
    divisor = Map("add", (Map("sqrt", (y,)), splat(1e-8, F32, a.shape)))
    graph = Graph("quotients", (x, y), (Map("divide", (x, divisor)),))
    (found,) = run(graph, arrays, target)
    with np.errstate(all="ignore"):
        wanted = arrays[0] / (np.sqrt(arrays[1]) + np.float32(1e-8))
    is_normal = ~(np.abs(wanted) < 2.0**-126)  # the engines' products below are flushed or rounded
    assert ulp_difference(found[is_normal], wanted[is_normal]).max() <= 5


@pytest.mark.parametrize("target", CORES)
def test_angles_of_any_size(target: str) -> None:
    generator = np.random.default_rng(0)
    x = (generator.uniform(1, 10, 400) * 10.0 ** generator.uniform(4, 37, 400)).astype(np.float32)
    x = np.concatenate([x, -x, np.array([3.4e38, 99999.99, 100000.01, 2**24, np.inf], np.float32)])
    parameter = Parameter(0, TensorType(F32, x.shape), "input0")
    graph = Graph("angles", (parameter,), (Map("sin", (parameter,)), Map("cos", (parameter,))))
    for name, found in zip(("sin", "cos"), run(graph, [x], target), strict=True):
        wanted = [getattr(math, name)(value) for value in x[:-1].tolist()]  # of exact doubles
        assert np.abs(found[:-1] - wanted).max() < 4e-7
        assert np.isnan(found[-1])
