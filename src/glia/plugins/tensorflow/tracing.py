"""Functions of TensorFlow traced into Keras models, whose parts for the device are NEFFs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import glia
from glia.base.errors import CompileError
from glia.base.output_files import writing
from glia.frontend.hlo import import_hlo
from glia.plugins.graph_parts import Part, parts_of
from glia.plugins.tensorflow.errors import UntraceableFunction
from glia.plugins.tensorflow.forward_operator import NodeDescription, digest_of
from glia.plugins.tensorflow.function_graph import (
    FunctionGraph,
    PartGraph,
    RefusedOperator,
    consumers,
    graph_of,
    has_fixed_shapes,
    is_written_as_hlo,
    unsupported,
)
from glia.plugins.tensorflow.neuron_model import ModelStep, NeuronModel

OnDevice = Callable[[Any], bool]


@dataclass(frozen=True)
class Tracing:
    """How a function is traced.

    `wanted` says of an operator's definition whether it may be on the device. With
    `takes_any_batch` the first extent of inputs is free; without `inline_weights` variables stay
    outside of the NEFF. With `directory`, HLO modules and NEFFs are left there.
    """

    wanted: OnDevice | None = None
    takes_any_batch: bool = False
    inline_weights: bool = True
    directory: Path | None = None
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class _DevicePart:
    """A part with its HLO module."""

    graph: PartGraph
    hlo: bytes


def example_call(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a function for example inputs: a tuple and a dict are several."""
    if isinstance(example, tuple):
        return tuple(_specification(each) for each in example), {}
    if isinstance(example, Mapping):
        return (), {name: _specification(each) for name, each in example.items()}
    return (_specification(example),), {}


def _specification(value: Any) -> Any:
    """What describes tensors in lists and dicts, all sizes fixed."""

    def described(each: Any) -> tf.TensorSpec:
        if not isinstance(each, tf.Tensor | tf.Variable | np.ndarray | tf.TensorSpec):
            raise UntraceableFunction(reason=f"an example input is a {type(each).__name__}")
        spec = each if isinstance(each, tf.TensorSpec) else tf.TensorSpec(each.shape, each.dtype)
        if not spec.shape.is_fully_defined():
            raise UntraceableFunction(reason=f"an example input has the shape {spec.shape}")
        return spec

    return tf.nest.map_structure(described, value)


class _Partitioner:
    """Finds the parts of a function that the device has."""

    def __init__(self, graph: FunctionGraph, tracing: Tracing) -> None:
        self.graph = graph
        self.tracing = tracing
        self.on_host: dict[str, str] = {}  # why, by name
        for operator in graph.operators:
            if why := self._obstacle(operator):
                self.on_host[operator.name] = why

    def _obstacle(self, operator: Any) -> str:
        if not is_written_as_hlo(operator):
            return str(unsupported(self.graph, operator)).splitlines()[0]
        if any(tensor.dtype == tf.resource for tensor in operator.inputs):
            return f"{operator.type} {operator.name} takes a resource of the host"
        if not has_fixed_shapes(operator):
            return f"{operator.type} {operator.name} has sizes that data decides"
        if self.tracing.wanted is not None and not self.tracing.wanted(operator.node_def):
            return "it is not wanted on the device"
        return ""

    def parts(self) -> list[tuple[Part[Any], _DevicePart | None]]:
        """The parts in order; what turns out to be refused is moved to the host."""
        while True:
            found = [(part, self._written(part)) for part in self._split()]
            if all((made is not None) == part.is_on_device for part, made in found):
                return found

    def _split(self) -> list[Part[Any]]:
        by_name = {operator.name: operator for operator in self.graph.operators}
        parts = parts_of(
            list(by_name),
            lambda name: [tensor.op.name for tensor in by_name[name].inputs],
            lambda name: name not in self.on_host,
        )
        return [Part(each.is_on_device, [by_name[n] for n in each.nodes]) for each in parts]

    def _written(self, part: Part[Any]) -> _DevicePart | None:
        """A part as HLO; None, and an operator more on the host, where it cannot be."""
        if not part.is_on_device:
            return None
        graph = PartGraph(self.graph, part.nodes, consumers(self.graph, part.nodes))
        try:
            hlo = graph.hlo(self.graph.values if self.tracing.inline_weights else {})
            import_hlo(hlo)
        except RefusedOperator as problem:
            self.on_host[problem.name] = problem.reason
            return None
        except CompileError as problem:
            name = problem.loc.name
            if name not in {each.name for each in part.nodes}:
                raise
            self.on_host[name] = str(problem).splitlines()[0]
            return None
        return _DevicePart(graph, hlo)


def trace(function: Any, example: Any, tracing: Tracing) -> Any:
    """A Keras model of a function, compiled for example inputs.

    What the device lacks stays with TensorFlow; variables have the values that they have now.
    """
    graph = _readable_graph(function, example)
    partitioner = _Partitioner(graph, tracing)
    parts = partitioner.parts()
    if not any(part.is_on_device for part, _ in parts):
        reasons = list(partitioner.on_host.values())
        raise UntraceableFunction(reason=f"nothing of it is for the device: {reasons[:1]}")
    if tracing.takes_any_batch and (len(parts) > 1 or not tracing.inline_weights):
        raise UntraceableFunction(
            reason="with --dynamic-batch-size all of it is for the device, weights inside"
        )
    steps: list[ModelStep] = []
    for place, (part, written) in enumerate(parts):
        if written is None:
            results = consumers(graph, part.nodes)
            steps.append(ModelStep(PartGraph(graph, part.nodes, results)))
        else:
            steps.append(_compiled(written, f"part{place}", tracing))
    on_device = sum(len(part.nodes) for part, _ in parts if part.is_on_device)
    return NeuronModel(graph, steps, on_device / len(graph.operators), tracing.takes_any_batch)


def function_to_hlo(function: Any, example: Any) -> bytes:
    """The HLO module of a function for example inputs, its variables constants in it.

    Raises UnsupportedOperator, with the source line, for the first operator that is not for the
    device.
    """
    graph = _readable_graph(function, example)
    partitioner = _Partitioner(graph, Tracing())
    parts = partitioner.parts()
    for operator in graph.operators:
        if operator.name in partitioner.on_host:
            raise unsupported(graph, operator)
    if len(parts) != 1 or parts[0][1] is None:
        raise UntraceableFunction(reason="it has no operators")
    return parts[0][1].hlo


def _readable_graph(function: Any, example: Any) -> FunctionGraph:
    arguments, keywords = example_call(example)
    graph = graph_of(function, arguments, keywords)
    if not graph.results:
        raise UntraceableFunction(reason="it returns no tensors")
    if writing_operators := graph.writes:
        name = writing_operators[0].name
        raise UntraceableFunction(reason=f"{name} writes a variable: on_device compiles such steps")
    return graph


def _compiled(written: _DevicePart, name: str, tracing: Tracing) -> ModelStep:
    """A part with its NEFF."""
    neff = glia.compile(written.hlo, **(tracing.options or {}))
    if tracing.directory is not None:
        with writing(tracing.directory):
            tracing.directory.mkdir(parents=True, exist_ok=True)
            (tracing.directory / f"{name}.hlo.pb").write_bytes(written.hlo)
        neff.save(tracing.directory / f"{name}.neff")
    data = neff.to_bytes()
    description = NodeDescription(digest_of(data), tracing.takes_any_batch)
    inlined = frozenset(written.graph.whole.values) if tracing.inline_weights else frozenset()
    return ModelStep(written.graph, data, description, inlined)


def analyze(function: Any, example: Any, wanted: OnDevice | None = None) -> dict[str, Any]:
    """Which operators of a function are for the device, by type; nothing is compiled."""
    graph = _readable_graph(function, example)
    partitioner = _Partitioner(graph, Tracing(wanted=wanted))
    partitioner.parts()
    counted = Counter(operator.type for operator in graph.operators)
    lacking = Counter(o.type for o in graph.operators if o.name in partitioner.on_host)
    total = sum(counted.values())
    supported = total - sum(lacking.values())
    return {
        "percent_supported": 100 * supported / total if total else 100.0,
        "supported_count": supported,
        "total_count": total,
        "supported_operators": sorted(counted.keys() - lacking.keys()),
        "unsupported_operators": sorted(lacking),
        "operators": sorted(counted),
        "operator_count": dict(sorted(counted.items())),
    }
