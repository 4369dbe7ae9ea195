"""What the tests of graph passes share: small graphs, their values before and after a pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from glia.base.dtype import from_numpy
from glia.graph.evaluate import evaluate, random_inputs
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.legal import verify
from glia.graph.ops import results_of
from glia.graph.rules.driver import RewriteRule, apply_rules
from glia.options import CompileOptions

Array = np.ndarray[Any, Any]

PLAIN = CompileOptions(auto_cast="none")
NARROW = CompileOptions(auto_cast="none", native_int64="disabled")


def graph_of(build: Callable[..., Node | tuple[Node, ...]], types: Sequence[TensorType]) -> Graph:
    """The graph of what `build` makes from parameters of these types."""
    parameters = tuple(Parameter(i, kind, f"x{i}") for i, kind in enumerate(types))
    made = build(*parameters)
    results = made if isinstance(made, tuple) else results_of(made)
    return Graph("example", parameters, results)


def extreme_inputs(graph: Graph) -> list[Array]:
    """Random inputs whose floats begin with NaN, infinities, zeros and huge and tiny numbers."""
    inputs = []
    special = [np.nan, -0.0, np.inf, 0.0, -np.inf, 1.0, -1.0, 3e38, 1e-38, 0.5]
    for position, array in enumerate(random_inputs(graph, seed=3)):
        array = np.array(array)
        if graph.parameters[position].dtype.is_float and array.ndim:
            flat = array.reshape(-1)
            count = min(len(special), flat.size)
            with np.errstate(over="ignore"):
                flat[:count] = np.roll(special, position)[:count].astype(array.dtype)
        inputs.append(array)
    return inputs


def assert_same(found: Sequence[Array], wanted: Sequence[Array], tolerance: float = 0.0) -> None:
    """Equal types; equal values, bit for bit (NaN alike) unless there is a tolerance."""
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        kind = from_numpy(b.dtype)
        if kind.is_integer and kind.bits < 8:
            a, b = a.astype(np.int8), b.astype(np.int8)
        if not tolerance or a.dtype.kind in "biu":
            _assert_same_bits(a, b)
        else:
            wide = np.complex128 if kind.is_complex else np.float64
            np.testing.assert_allclose(
                a.astype(wide), b.astype(wide), rtol=tolerance, atol=tolerance
            )


def _assert_same_bits(a: Array, b: Array) -> None:
    is_float = from_numpy(b.dtype).is_float
    nan = np.isnan(b.astype(np.float64)) if is_float else np.zeros(b.shape, bool)
    assert np.array_equal(a[~nan].view(np.uint8), b[~nan].view(np.uint8))
    assert not is_float or np.isnan(a[nan].astype(np.float64)).all()


def check_rule(rule: RewriteRule, graph: Graph, tolerance: float = 0.0) -> Graph:
    """Apply one rule to a graph; it must change the graph and keep its values."""
    changed = apply_rules(graph, (rule,))
    assert changed is not graph, f"{rule.name} does not fire"
    verify(changed)
    inputs = extreme_inputs(graph)
    assert_same(evaluate(changed, inputs), evaluate(graph, inputs), tolerance)
    return changed


def on_device(array: Array, kind: TensorType) -> Array:
    """The bytes of an outside array as the tensor that a graph takes for it."""
    array = np.asarray(array)
    if (array.dtype, array.shape) == (kind.dtype.numpy, kind.shape):
        return array
    return np.ascontiguousarray(array).reshape(-1).view(kind.dtype.numpy).reshape(kind.shape)


def run_passes(
    graph: Graph, passes: Sequence[Callable[..., Graph]], options: CompileOptions = PLAIN
) -> Graph:
    """The graph after the passes, each result verified."""
    for each in passes:
        graph = each(graph, options)
        verify(graph)
    return graph


def run(graph: Graph, original: Graph, arrays: Sequence[Array]) -> list[Array]:
    """The results of a lowered graph, inputs and outputs with the original's types."""
    kinds = [parameter.type for parameter in graph.parameters]
    inputs = [on_device(a, kind) for a, kind in zip(arrays, kinds, strict=True)]
    results = evaluate(graph, inputs)
    wanted = [result.type for result in original.results]
    return [on_device(a, kind) for a, kind in zip(results, wanted, strict=True)]
