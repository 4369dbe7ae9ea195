"""Functions traced into graphs, and parts of these as HLO modules or as functions again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import kernels

from glia.base.errors import InternalError
from glia.base.loc import Loc
from glia.frontend.errors import UnsupportedOperator
from glia.plugins.hlo_module import located, with_constants

PLATFORM = "CPU"
DEVICE = f"XLA_{PLATFORM}_JIT"  # where TensorFlow registers what it can write as HLO
CONSTANTS = ("Const",)
READS = ("ReadVariableOp",)
_PREFIX = "part"
_FRAMEWORKS = tuple(str(Path(each.__file__).parent) for each in (tf, keras))
_WRITES = re.compile(r"Assign\w*VariableOp|Resource(Apply|SparseApply|Scatter)\w*")
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")


class RefusedOperator(Exception):
    """TensorFlow does not write an operator of a part as HLO; `name` is the operator's."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name
        self.reason = reason


@dataclass
class FunctionGraph:
    """The graph of a function for example inputs: operators in order, inputs, results, variables.

    `arguments` are the placeholders of what the caller gives; `values` are those of variables, by
    the tensor that reads them, as they were when the function was traced.
    """

    function: Any  # a ConcreteFunction
    values: dict[str, np.ndarray] = field(default_factory=dict)

    @cached_property
    def operators(self) -> list[Any]:
        """All operators that compute, in an order in which operands come first."""
        skipped = ("Placeholder", "NoOp", *CONSTANTS, *READS)
        return [each for each in self.function.graph.get_operations() if each.type not in skipped]

    @cached_property
    def results(self) -> list[Any]:
        """The tensors of the function's result."""
        return [each for each in self.function.outputs if each is not None]

    @cached_property
    def arguments(self) -> list[Any]:
        """The placeholders of the caller's tensors."""
        return [each for each in self.function.inputs if each.name not in self.resources]

    @cached_property
    def writes(self) -> list[Any]:
        """The operators that write variables."""
        return [each for each in self.operators if _WRITES.match(each.type)]

    @cached_property
    def resources(self) -> dict[str, Any]:
        """What the function has captured besides variables that it reads, by placeholder."""
        return {inner.name: outer for outer, inner in self.function.graph.captures}

    def location(self, operator: Any) -> Loc:
        """The line of the user's code that an operator is from."""
        frames = [f for f in operator.traceback if not f.filename.startswith(_FRAMEWORKS)]
        if not frames:
            return Loc(name=operator.name)
        return Loc(frames[-1].filename, int(frames[-1].lineno), operator.name)


def graph_of(function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> FunctionGraph:
    """The graph of a function for arguments that are tensors or specifications of them."""
    traced = tf.function(lambda *args, **kwargs: function(*args, **kwargs))
    graph = FunctionGraph(traced.get_concrete_function(*arguments, **keywords))
    for operator in graph.function.graph.get_operations():
        if operator.type in READS:
            captured = graph.resources.get(operator.inputs[0].name)
            variable = variable_of(graph.function, captured)
            if variable is not None:
                graph.values[operator.outputs[0].name] = variable.numpy()
    return graph


def variable_of(function: Any, captured: Any) -> Any:
    """The variable of what a function has captured; None where that is another resource."""
    return next((each for each in function.variables if each.handle is captured), None)


def has_fixed_shapes(operator: Any) -> bool:
    """Whether the sizes of an operator's operands and results are known."""
    tensors = [*operator.inputs, *operator.outputs]
    return all(each.shape.is_fully_defined() for each in tensors)


def is_written_as_hlo(operator: Any) -> bool:
    """Whether TensorFlow has a way of writing an operator of these dtypes as HLO."""
    found = kernels.get_registered_kernels_for_op(operator.type).kernel
    return any(each.device_type == DEVICE and _admits(each, operator) for each in found)


def _admits(kernel: Any, operator: Any) -> bool:
    for constraint in kernel.constraint:
        allowed = constraint.allowed_values.list.type
        given = operator.node_def.attr[constraint.name]
        dtypes = given.list.type or [given.type]
        if allowed and any(each not in allowed for each in dtypes if each):
            return False
    return True


@dataclass
class PartGraph:
    """Some operators of a function: what they take from outside, and what others take of them."""

    whole: FunctionGraph
    operators: Sequence[Any]
    results: Sequence[Any]

    def __post_init__(self) -> None:
        self._inside = {each.name for each in self.operators}
        self._inputs: dict[str, Any] = {}
        self._constants: dict[str, Any] = {}
        self.definition = tf.compat.v1.GraphDef()
        whole = self.whole.function.graph.as_graph_def()
        self.definition.library.CopyFrom(whole.library)
        self.definition.versions.CopyFrom(whole.versions)
        for operator in self.operators:
            self._add(operator)

    @property
    def inputs(self) -> list[Any]:
        """The tensors from outside, in order: arguments, results of other parts, variables."""
        return list(self._inputs.values())

    def _add(self, operator: Any) -> None:
        node = self.definition.node.add()
        node.CopyFrom(operator.node_def)
        del node.input[:]
        node.input.extend(self._source(tensor) for tensor in operator.inputs)
        controls = (each for each in operator.control_inputs if each.name in self._inside)
        node.input.extend(f"^{each.name}" for each in controls)
        node.device = ""

    def _source(self, tensor: Any) -> str:
        """Where an operator finds an operand: what is constant is copied into the part."""
        if tensor.op.name in self._inside:
            return f"{tensor.op.name}:{tensor.value_index}"
        if tensor.op.type not in CONSTANTS:
            value = tf.get_static_value(tensor)
            if value is None:
                self._inputs.setdefault(tensor.name, tensor)
                return _placeholder(list(self._inputs).index(tensor.name))
            return self._constant(tensor, value)
        if tensor.op.name not in self._constants:
            self._constants[tensor.op.name] = node = self.definition.node.add()
            node.CopyFrom(tensor.op.node_def)
            del node.input[:]
        return str(tensor.op.name)

    def _constant(self, tensor: Any, value: Any) -> str:
        """A constant for a tensor whose value follows from shapes."""
        name = f"static/{tensor.name.replace(':', '_')}"
        if name not in self._constants:
            self._constants[name] = node = self.definition.node.add()
            node.name, node.op = name, "Const"
            array = np.asarray(value, tensor.dtype.as_numpy_dtype)
            node.attr["dtype"].type = tensor.dtype.as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(array, tensor.dtype))
        return name

    def called(self, tensors: Sequence[Any], prefix: str = _PREFIX) -> list[Any]:
        """The results for tensors in place of the inputs, as nodes of the graph that is traced."""
        given = {f"{_placeholder(n)}:0": tensor for n, tensor in enumerate(tensors)}
        wanted = [each.name for each in self.results]
        found: list[Any] = tf.graph_util.import_graph_def(
            self.definition, input_map=given, return_elements=wanted, name=prefix
        )
        for tensor, known in zip(found, self.results, strict=True):
            tensor.set_shape(known.shape)
        return found

    def hlo(self, constants: Mapping[str, np.ndarray]) -> bytes:
        """The HLO module of the part; inputs that `constants` has by name are constants in it.

        Raises RefusedOperator for one that TensorFlow does not write as HLO.
        """
        specs = [tf.TensorSpec(each.shape, each.dtype) for each in self.inputs]
        function = tf.function(
            lambda *tensors: self.called(tensors), jit_compile=True, autograph=False
        )
        try:
            representation = function.experimental_get_compiler_ir(*specs)
            data = representation(stage="hlo_serialized", platform_name=PLATFORM)
        except (ValueError, tf.errors.OpError) as problem:
            raise self._refusal(str(problem)) from None
        numbers = {
            place: constants[each.name]
            for place, each in enumerate(self.inputs)
            if each.name in constants
        }
        return with_constants(located(data, self._lines()), numbers)

    def _refusal(self, text: str) -> Exception:
        names = [each.removeprefix(f"{_PREFIX}/") for each in _NODE.findall(text)]
        known = {each.name for each in self.operators}
        found = next((each for each in names if each in known), "")
        reason = text.strip().splitlines()[0][:300]
        return RefusedOperator(found, reason) if found else InternalError(f"XLA: {reason}")

    def _lines(self) -> dict[str, Loc]:
        """The user's lines by the names that operators have in the module."""
        return {f"{_PREFIX}/{each.name}": self.whole.location(each) for each in self.operators}


def _placeholder(place: int) -> str:
    return f"given_{place}"


def unsupported(graph: FunctionGraph, operator: Any) -> UnsupportedOperator:
    """The error for an operator that is not for the device."""
    return UnsupportedOperator(
        opcode=f"{operator.type} ({operator.name})"[:100], nearest="", loc=graph.location(operator)
    )


def consumers(graph: FunctionGraph, operators: Iterable[Any]) -> list[Any]:
    """The results of operators that other operators, or the function's caller, take."""
    inside = {each.name for each in operators}
    ends = {each.name for each in graph.results}
    return [
        tensor
        for operator in operators
        for tensor in operator.outputs
        if tensor.name in ends or any(user.name not in inside for user in tensor.consumers())
    ]
