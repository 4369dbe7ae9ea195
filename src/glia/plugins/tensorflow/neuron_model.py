"""Keras models that run their parts, and that `saved_model` keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from glia.plugins.tensorflow.errors import WrongModelInputs
from glia.plugins.tensorflow.forward_operator import NodeDescription, forward
from glia.plugins.tensorflow.function_graph import FunctionGraph, PartGraph


@dataclass(frozen=True)
class ModelStep:
    """A part of a function: one of the host, or one with a NEFF and how that is called.

    `inlined` are inputs that are constants in the NEFF.
    """

    graph: PartGraph
    neff: bytes = b""
    description: NodeDescription | None = None
    inlined: frozenset[str] = frozenset()


class NeuronModel(keras.Model):  # type: ignore[misc]  # no types of Keras
    """A traced function. `on_neuron_ratio` is the share of its operators on the device."""

    def __init__(
        self, graph: FunctionGraph, steps: Sequence[ModelStep], ratio: float, takes_any_batch: bool
    ) -> None:
        super().__init__(autocast=False)
        self.on_neuron_ratio = ratio
        self._graph = graph
        self._steps = tuple(steps)
        self._takes_any_batch = takes_any_batch
        self._specs = [tf.TensorSpec(each.shape, each.dtype) for each in graph.arguments]
        texts = ["" if e.description is None else e.description.text() for e in steps]
        self.descriptions = [_constant_variable(text) for text in texts]
        self._neffs = [_constant_variable(np.frombuffer(each.neff, np.uint8)) for each in steps]
        self._weights_outside = {
            name: _constant_variable(graph.values[name]) for name in _outside(graph, steps)
        }
        self._served = tf.function(self._results, autograph=False)
        arguments, keywords = graph.function.structured_input_signature
        given, named = tf.nest.map_structure(self._served_spec, (arguments, keywords))
        self._served.get_concrete_function(*given, **named)
        self.built = True

    def _served_spec(self, spec: tf.TensorSpec) -> tf.TensorSpec:
        """What a call takes: any first extent where the NEFF takes any."""
        shape = [None, *spec.shape[1:]] if self._takes_any_batch else spec.shape
        return tf.TensorSpec(shape, spec.dtype, spec.name)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result; WrongModelInputs for other shapes than it was traced for."""
        kwargs.pop("training", None)
        self._check(tf.nest.flatten((args, kwargs)))
        return self._served(*args, **kwargs)

    def _check(self, given: Sequence[Any]) -> None:
        first = 1 if self._takes_any_batch else 0
        kinds = [tf.TensorSpec(each.shape, each.dtype) for each in given]
        fits = len(kinds) == len(self._specs) and all(
            each.dtype == known.dtype
            and len(each.shape) == len(known.shape)
            and each.shape[first:].is_compatible_with(known.shape[first:])
            for each, known in zip(kinds, self._specs, strict=True)
        )
        if not fits:
            texts = [
                ", ".join(f"{each.dtype.name}{each.shape.as_list()}" for each in several)
                for several in (self._specs, kinds)
            ]
            raise WrongModelInputs(expected=texts[0], problem=f"{texts[1]} was given")

    def _results(self, *args: Any, **kwargs: Any) -> Any:
        """The nodes of all parts, one after the other."""
        given = tf.nest.flatten((args, kwargs))
        arguments = zip(self._graph.arguments, given, strict=True)
        tensors = {placeholder.name: tensor for placeholder, tensor in arguments}
        tensors |= self._graph.resources
        for place, step in enumerate(self._steps):
            found = self._run(place, step, tensors)
            known = (each.name for each in step.graph.results)
            tensors |= dict(zip(known, found, strict=True))
        results = [tensors.get(each.name, each) for each in self._graph.results]
        structure = self._graph.function.structured_outputs
        return tf.nest.pack_sequence_as(structure, results)

    def _run(self, place: int, step: ModelStep, tensors: dict[str, Any]) -> list[Any]:
        if step.description is None:
            given = [self._value(each, tensors) for each in step.graph.inputs]
            return step.graph.called(given, f"host{place}")
        outside = [each for each in step.graph.inputs if each.name not in step.inlined]
        called = [self.descriptions[place].read_value(), self._neffs[place].read_value()]
        called += [self._value(each, tensors) for each in outside]
        kinds = [tf.TensorSpec(each.shape, each.dtype) for each in step.graph.results]
        return forward(called, kinds, takes_any_batch=step.description.takes_any_batch)

    def _value(self, tensor: Any, tensors: dict[str, Any]) -> Any:
        """A tensor from outside of a part: computed, a weight, or a value of a variable."""
        if tensor.name in self._weights_outside:
            return self._weights_outside[tensor.name].read_value()
        if tensor.name in tensors:
            return tensors[tensor.name]
        return tf.constant(self._graph.values[tensor.name])

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> Any:
        """What is saved: a loaded model is called as this one is."""
        children = super()._trackable_children(save_type, **kwargs)
        if save_type == "savedmodel":
            children = {**children, "__call__": self._served}
        return children


def _constant_variable(array: np.ndarray | str) -> tf.Variable:
    return tf.Variable(array, trainable=False)


def _outside(graph: FunctionGraph, steps: Sequence[ModelStep]) -> list[str]:
    """The variables' values that NEFFs take as inputs."""
    return [
        tensor.name
        for step in steps
        if step.description is not None
        for tensor in step.graph.inputs
        if tensor.name in graph.values and tensor.name not in step.inlined
    ]
