"""Symbols of which parts run on the device: one node with a NEFF in place of each part."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from glia.base.errors import CompileError
from glia.graph.ir import TensorType
from glia.plugins.graph_parts import Part, parts_of
from glia.plugins.hlo_module import HloModule
from glia.plugins.mxnet.lowering import SymbolWriter, needed_nodes, symbol_to_hlo, unsupported
from glia.plugins.mxnet.operators.families import TABLE
from glia.plugins.mxnet.subgraphs import NEFF, SUBGRAPH, types_text
from glia.plugins.mxnet.symbol_file import VARIABLE, NodeResult, Symbol, SymbolNode

CUSTOM = "Custom"  # MXNet's node for operators that are written in Python

Arrays = Mapping[str, np.ndarray]
Types = Mapping[NodeResult, TensorType]
Compile = Callable[[bytes, str], bytes]


@dataclass(frozen=True)
class CompiledSymbol:
    """A symbol with nodes for its parts on the device, and the NEFFs that are their parameters.

    `on_host` says of the nodes that were left to MXNet why they were.
    """

    symbol: Symbol
    neffs: Mapping[str, bytes]
    on_host: Mapping[str, str]


def compile_in_parts(
    symbol: Symbol,
    parameters: Arrays,
    types: Types,
    compiler: Compile,
    excluded: Collection[str] = (),
) -> CompiledSymbol:
    """Compile what the device has of a symbol; the other nodes stay what they are.

    `types` are those of the results of all nodes; `compiler` makes a NEFF of an HLO module and a
    name. Nodes whose names are `excluded` stay on the host.
    """
    return _Partitioner(symbol, parameters, types, compiler).compiled(excluded)


class _Partitioner:
    """Replaces parts of one symbol."""

    def __init__(self, symbol: Symbol, parameters: Arrays, types: Types, compiler: Compile) -> None:
        self.symbol = symbol
        self.parameters = parameters
        self.types = types
        self.compiler = compiler
        self.nodes: list[SymbolNode] = []
        self.places: dict[NodeResult, NodeResult] = {}  # of the old symbol's entries in the new one
        self.neffs: dict[str, bytes] = {}

    def compiled(self, excluded: Collection[str]) -> CompiledSymbol:
        """The new symbol."""
        order = [n for n in needed_nodes(self.symbol) if not self.symbol.nodes[n].is_variable]
        on_host = {n: why for n in order if (why := self._obstacle(n, excluded))}
        parts = parts_of(order, self._operands, lambda node: node not in on_host)
        for part in parts:
            if part.is_on_device:
                self._replace(part, self._results(part))
            else:
                for place in part.nodes:
                    self._keep_node(place)
        heads = tuple(self._placed(entry) for entry in self.symbol.heads)
        reasons = {self.symbol.nodes[n].name: why for n, why in on_host.items()}
        return CompiledSymbol(Symbol(tuple(self.nodes), heads), self.neffs, reasons)

    def _operands(self, place: int) -> list[int]:
        return [entry.node for entry in self.symbol.nodes[place].inputs]

    def _obstacle(self, place: int, excluded: Collection[str]) -> str:
        """Why a node cannot be on the device; nothing where it can."""
        node = self.symbol.nodes[place]
        if node.name in excluded:
            return "it is excluded"
        if node.operator not in TABLE:
            return str(unsupported(node)).splitlines()[0]
        operands = {entry: self.types[entry] for entry in node.inputs if entry in self.types}
        try:
            SymbolWriter(self.symbol, HloModule("trial")).results_of(place, operands)
        except CompileError as problem:
            return str(problem).splitlines()[0]
        return ""

    def _results(self, part: Part[int]) -> list[NodeResult]:
        """What others use of a part, in order."""
        inside = set(part.nodes)
        used = set(self.symbol.heads)
        for place in needed_nodes(self.symbol):
            if place not in inside:
                used |= set(self.symbol.nodes[place].inputs)
        found = {entry for entry in used if entry.node in inside}
        return sorted(found, key=lambda entry: (entry.node, entry.output))

    def _keep_node(self, place: int) -> None:
        """Add a node of the host as it is."""
        node = self.symbol.nodes[place]
        inputs = tuple(self._placed(entry) for entry in node.inputs)
        added = self._add(SymbolNode(node.operator, node.name, node.attributes, inputs))
        for output in range(self._result_count(place)):
            self.places[NodeResult(place, output)] = NodeResult(added, output)

    def _result_count(self, place: int) -> int:
        used = [*self.symbol.heads, *(e for node in self.symbol.nodes for e in node.inputs)]
        return 1 + max((e.output for e in used if e.node == place), default=0)

    def _placed(self, entry: NodeResult) -> NodeResult:
        """An entry in the new symbol; a variable is added where it is first used."""
        if entry not in self.places:
            node = self.symbol.nodes[entry.node]
            assert node.is_variable
            self.places[entry] = NodeResult(self._add(node))
        return self.places[entry]

    def _add(self, node: SymbolNode) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _replace(self, part: Part[int], results: Sequence[NodeResult]) -> None:
        """Compile a part, and add its node."""
        name = self._fresh_name()
        subgraph, inputs = self._subgraph(part, results)
        kinds = {f"input{n}": self.types[entry] for n, entry in enumerate(inputs)}
        used = {name: self.parameters[name] for name in subgraph.variables if name not in kinds}
        neff = self.compiler(symbol_to_hlo(subgraph, kinds, used, name), name)
        outer = [self._placed(entry) for entry in inputs]
        variable = f"{name}_{NEFF}"
        held = {"__shape__": f"({len(neff)},)", "__dtype__": "3"}
        outer.append(NodeResult(self._add(SymbolNode(VARIABLE, variable, held))))
        attributes = {
            "op_type": SUBGRAPH,
            "inputs": types_text(list(kinds.values())),
            "outputs": types_text([self.types[entry] for entry in results]),
            "subgraphs": subgraph.text(),
        }
        node = self._add(SymbolNode(CUSTOM, name, attributes, tuple(outer)))
        self.neffs[variable] = neff
        for output, entry in enumerate(results):
            self.places[entry] = NodeResult(node, output)

    def _fresh_name(self) -> str:
        taken = {node.name for node in self.symbol.nodes}
        number = len(self.neffs)
        while f"neuron_subgraph{number}" in taken:
            number += len(taken)
        return f"neuron_subgraph{number}"

    def _subgraph(
        self, part: Part[int], results: Sequence[NodeResult]
    ) -> tuple[Symbol, list[NodeResult]]:
        """A part as a symbol, whose inputs are called by number, and the entries these are."""
        inside = set(part.nodes)
        inputs: list[NodeResult] = []
        nodes: list[SymbolNode] = []
        places: dict[int, int] = {}
        outer: dict[NodeResult, int] = {}

        def placed(entry: NodeResult) -> NodeResult:
            if entry.node in inside:
                return NodeResult(places[entry.node], entry.output)
            if entry not in outer:
                node = self.symbol.nodes[entry.node]
                if not (node.is_variable and node.name in self.parameters):
                    node = SymbolNode(VARIABLE, f"input{len(inputs)}")
                    inputs.append(entry)
                nodes.append(node)
                outer[entry] = len(nodes) - 1
            return NodeResult(outer[entry])

        for place in part.nodes:
            node = self.symbol.nodes[place]
            entries = tuple(placed(entry) for entry in SymbolWriter.used(node))
            nodes.append(SymbolNode(node.operator, node.name, node.attributes, entries))
            places[place] = len(nodes) - 1
        return Symbol(tuple(nodes), tuple(placed(entry) for entry in results)), inputs
