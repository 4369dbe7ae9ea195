"""Run a graph on NumPy arrays: the definition of what every later level must compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from glia.base.dtype import DTYPES, from_numpy
from glia.base.errors import InternalError
from glia.graph.ir import Graph, Node, Parameter, TensorType, Type

Array = np.ndarray[Any, Any]


def evaluate(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The results of `graph` on one array per parameter.

    Raises TypeError when an input's shape or dtype is not the parameter's. A value is dropped as
    soon as its last user has run. A result may share memory with an input or be a read-only view.
    """
    _check_inputs(graph, inputs)
    remaining = Counter(graph.results)
    for node in graph.nodes:
        remaining.update(node.operands)
    values: dict[Node, Any] = {}
    for node in graph.nodes:
        if isinstance(node, Parameter):
            values[node] = inputs[node.index]
            continue
        values[node] = _check_result(node, node.compute(*(values[o] for o in node.operands)))
        for operand in node.operands:
            remaining[operand] -= 1
            if not remaining[operand]:
                del values[operand]
    return [values[result] for result in graph.results]


def random_inputs(graph: Graph, seed: int = 0) -> list[Array]:
    """One array per parameter: normal floats, small integers, fair preds; same for every run."""
    generator = np.random.default_rng(seed)
    return [_random_array(generator, parameter.type) for parameter in graph.parameters]


def _random_array(generator: np.random.Generator, kind: Type) -> Array:
    assert isinstance(kind, TensorType)
    dtype, shape = kind.dtype, kind.shape
    if dtype is DTYPES["pred"]:
        return generator.random(shape) < 0.5
    if dtype.is_integer:
        low = -4 if dtype.kind.value == "signed" else 0
        return np.asarray(generator.integers(low, 5, shape)).astype(dtype.numpy)
    values = np.asarray(generator.standard_normal(shape))
    if dtype.is_complex:
        values = values + 1j * generator.standard_normal(shape)
    return np.asarray(values).astype(dtype.numpy)


def _check_inputs(graph: Graph, inputs: Sequence[Array]) -> None:
    if len(inputs) != len(graph.parameters):
        raise TypeError(f"{graph.name} takes {len(graph.parameters)} inputs, not {len(inputs)}")
    for parameter, array in zip(graph.parameters, inputs, strict=True):
        if not _has_type(array, parameter.type):
            given = f"{array.dtype}{list(array.shape)}"
            where = f"input {parameter.index} of {graph.name}"
            raise TypeError(f"{where} is {given}, not {parameter.type}")


def _has_type(value: Any, declared: Type) -> bool:
    if isinstance(declared, TensorType):
        fits = isinstance(value, np.ndarray) and value.shape == declared.shape
        return fits and from_numpy(value.dtype) is declared.dtype
    same_count = isinstance(value, tuple) and len(value) == len(declared.elements)
    return same_count and all(map(_has_type, value, declared.elements))


def _check_result(node: Node, value: Any) -> Any:
    if not _has_type(value, node.type):
        parts = value if isinstance(value, tuple) else [value]
        kinds = [f"{part.dtype}{list(part.shape)}" for part in parts]
        raise InternalError(f"{node!r} of type {node.type} computed {', '.join(kinds)}")
    return value
