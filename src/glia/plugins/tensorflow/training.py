"""Functions that write variables, such as steps of training, run on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

import glia
from glia.plugins.tensorflow.errors import UntraceableFunction
from glia.plugins.tensorflow.function_graph import PLATFORM, FunctionGraph, variable_of


class FunctionOnDevice:
    """A function on the device; variables are read before a call and written after it.

    It is compiled for each set of shapes and dtypes that it is called with. Raises what XLA and
    the compiler refuse as coded errors.
    """

    def __init__(self, function: Any, options: Mapping[str, Any]) -> None:

        def called(*tensors: Any) -> Any:
            """The function without defaults, of which XLA has no shapes."""
            return function(*tensors)

        self.function = tf.function(called, jit_compile=True)
        self.options = options
        self.programs: dict[Any, _Program] = {}

    def __call__(self, *tensors: Any) -> Any:
        """The function's result for tensors."""
        given = [tf.convert_to_tensor(each) for each in tensors]
        key = tuple((tuple(each.shape), each.dtype) for each in given)
        if key not in self.programs:
            specs = [tf.TensorSpec(each.shape, each.dtype) for each in given]
            self.programs[key] = _Program(self.function, specs, self.options)
        return self.programs[key](given)


def on_device(function: Any, **options: Any) -> FunctionOnDevice:
    """A function of tensors that runs on the device; `options` are those of `glia.compile`."""
    return FunctionOnDevice(function, options)


class _Program:
    """A function compiled for some shapes."""

    def __init__(self, function: Any, specs: list[Any], options: Mapping[str, Any]) -> None:
        self.concrete = function.get_concrete_function(*specs)
        graph = FunctionGraph(self.concrete)
        try:
            representation = function.experimental_get_compiler_ir(*specs)
            hlo = representation(stage="hlo_serialized", platform_name=PLATFORM)
        except (ValueError, tf.errors.OpError) as problem:
            raise UntraceableFunction(reason=str(problem).splitlines()[0][:300]) from None
        held = self.concrete.captured_inputs
        variables = [variable_of(self.concrete, each) for each in held]
        self.captured = [
            each if variable is None else variable
            for each, variable in zip(held, variables, strict=True)
        ]
        written = {tensor.name for each in graph.writes for tensor in each.inputs}
        inner = self.concrete.graph.internal_captures
        self.written = [
            variable
            for variable, tensor in zip(variables, inner, strict=True)
            if tensor.name in written and variable is not None
        ]
        self.results = len(graph.results)
        self.model = glia.load(glia.compile(hlo, **options))
        if len(self.model.outputs) != self.results + len(self.written):
            raise UntraceableFunction(reason="it writes variables in functions that it calls")

    def __call__(self, tensors: list[Any]) -> Any:
        """The result for tensors, after which variables have their new values."""
        captured = [each.numpy() for each in self.captured]
        found = self.model(*(each.numpy() for each in tensors), *captured)
        for variable, value in zip(self.written, found[self.results :], strict=True):
            variable.assign(value)
        results = [tf.constant(each) for each in found[: self.results]]
        return tf.nest.pack_sequence_as(self.concrete.structured_outputs, results)
