"""Symbols of MXNet, with shapes for their inputs and arrays for their parameters, as HLO."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

import numpy as np

from glia.base.dtype import from_numpy
from glia.base.loc import Loc
from glia.base.suggestions import nearest
from glia.frontend.errors import DynamicShape, UnsupportedOperator
from glia.frontend.hlo_import.shapes import LARGEST_TENSOR_BYTES
from glia.graph.ir import TensorType
from glia.plugins.hlo_module import HloModule, HloValue
from glia.plugins.mxnet.errors import BadSymbolInputs
from glia.plugins.mxnet.operators.attributes import Attributes
from glia.plugins.mxnet.operators.families import TABLE
from glia.plugins.mxnet.operators.operator_table import NodeCall
from glia.plugins.mxnet.symbol_file import NodeResult, Symbol, SymbolNode


def symbol_to_hlo(
    symbol: Symbol,
    inputs: Mapping[str, TensorType],
    parameters: Mapping[str, np.ndarray],
    name: str = "symbol",
) -> bytes:
    """The serialized HLO module of a symbol.

    Variables that `inputs` has are inputs of the module, in its order; `parameters` are constants
    in it. A variable that is neither is refused where a result depends on it. Raises
    UnsupportedOperator, BadAttribute and BadSymbolInputs, which name the node.
    """
    return SymbolWriter(symbol, HloModule(name)).written(inputs, parameters)


class SymbolWriter:
    """Writes the nodes that results depend on, in order."""

    def __init__(self, symbol: Symbol, hlo: HloModule) -> None:
        self.symbol = symbol
        self.hlo = hlo
        self.values: dict[int, Sequence[HloValue]] = {}

    def written(
        self, inputs: Mapping[str, TensorType], parameters: Mapping[str, np.ndarray]
    ) -> bytes:
        """The module's bytes."""
        _check_names(self.symbol, inputs)
        given = {name: self._input(name, kind) for name, kind in inputs.items()}
        for place in needed_nodes(self.symbol):
            node = self.symbol.nodes[place]
            if not node.is_variable:
                with self.hlo.entry.at(Loc(name=f"{node.operator} {node.name}")):
                    self.values[place] = self._call(node)
            elif node.name in given:
                self.values[place] = [given[node.name]]
            elif node.name in parameters:
                self.values[place] = [self.hlo.entry.constant(parameters[node.name])]
        results = [self._value(entry, "the symbol") for entry in self.symbol.heads]
        self.hlo.name_tensors(list(inputs), [f"output{n}" for n in range(len(results))])
        return self.hlo.serialized(results)

    def results_of(self, place: int, operands: Mapping[NodeResult, TensorType]) -> None:
        """Write one node alone, for operands of these types; raises what `symbol_to_hlo` does."""
        for entry, kind in operands.items():
            held = list(self.values.get(entry.node, ()))
            held += [self._input("", kind)] * (entry.output + 1 - len(held))
            held[entry.output] = self._input("", kind)
            self.values[entry.node] = held
        self._call(self.symbol.nodes[place])

    def _input(self, name: str, kind: TensorType) -> HloValue:
        if min(kind.shape, default=1) < 1:
            raise DynamicShape(name=name, shape=str(kind), loc=Loc(name=name))
        return self.hlo.entry.parameter(kind, name)

    def _value(self, entry: NodeResult, user: str) -> HloValue:
        found = self.values.get(entry.node, ())
        if entry.output < len(found):
            return found[entry.output]
        node = self.symbol.nodes[entry.node]
        if node.is_variable:
            raise BadSymbolInputs(reason=f"{user:.80} needs {node.name!r:.80}, which is not given")
        raise BadSymbolInputs(
            reason=f"{user:.80} takes result {entry.output} of {node.operator} {node.name:.80}, "
            "which is not computed"
        )

    def _call(self, node: SymbolNode) -> Sequence[HloValue]:
        lowering = TABLE.get(node.operator)
        if lowering is None:
            raise unsupported(node)
        site = NodeCall(self.hlo.entry, Attributes(node.operator, node.name, node.attributes))
        operands = [self._value(entry, node.name) for entry in self.used(node)]
        try:
            inspect.signature(lowering).bind(site, *operands)
        except TypeError:
            raise site.misfit(f"has {len(operands)} operands") from None
        found = lowering(site, *operands)
        site.attributes.finish()
        results = [found] if isinstance(found, HloValue) else list(found)
        for each in results:
            if each.type.bytes > LARGEST_TENSOR_BYTES:
                raise site.misfit(f"makes a tensor {each.type}, which is too large")
        return results

    @staticmethod
    def used(node: SymbolNode) -> Sequence[NodeResult]:
        """The operands that have a meaning: the label of an output layer has one in training."""
        return node.inputs[:1] if node.operator in LABELLED else node.inputs


LABELLED = frozenset({
    "SoftmaxOutput", "Softmax", "LinearRegressionOutput", "MAERegressionOutput",
    "LogisticRegressionOutput",
})  # fmt: skip


def _check_names(symbol: Symbol, inputs: Mapping[str, TensorType]) -> None:
    """Raise BadSymbolInputs for inputs that the symbol lacks, or names that a NEFF cannot have."""
    known = symbol.variables
    for name in inputs:
        if name not in known:
            raise BadSymbolInputs(reason=f"there is no input {name!r:.80}{nearest(name, known)}")
        if not name or "," in name or name != name.strip():
            raise BadSymbolInputs(reason=f"{name!r:.80} is no name for an input of a NEFF")


def needed_nodes(symbol: Symbol) -> list[int]:
    """The nodes that results depend on, in order."""
    needed = {entry.node for entry in symbol.heads}
    for place in reversed(range(len(symbol.nodes))):
        if place in needed:
            needed |= {entry.node for entry in symbol.nodes[place].inputs}
    return sorted(needed)


def unsupported(node: SymbolNode) -> UnsupportedOperator:
    """The error for an operator that the table lacks."""
    close = nearest(node.operator, TABLE)
    return UnsupportedOperator(opcode=node.operator[:80], nearest=close, loc=Loc(name=node.name))


def type_of(array: np.ndarray) -> TensorType:
    """The type of an array."""
    return TensorType(from_numpy(array.dtype), array.shape)
