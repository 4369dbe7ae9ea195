"""The JSON of a symbol: nodes in topological order, read as hostile input."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from glia.plugins.mxnet.errors import BadSymbolFile

MOST_BYTES = 256 << 20
MOST_NODES = 1 << 20
VARIABLE = "null"  # the operator of a node that is an input or a parameter


@dataclass(frozen=True)
class NodeResult:
    """One result of a node."""

    node: int
    output: int = 0


@dataclass(frozen=True)
class SymbolNode:
    """An operator with its attributes as text, or a variable."""

    operator: str
    name: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[NodeResult, ...] = ()

    @property
    def is_variable(self) -> bool:
        return self.operator == VARIABLE


@dataclass(frozen=True)
class Symbol:
    """A model: nodes, each after those that it takes, and the entries that are its results."""

    nodes: tuple[SymbolNode, ...]
    heads: tuple[NodeResult, ...]
    version: int = 10901  # of MXNet: 1.9.1

    @property
    def variables(self) -> list[str]:
        """The names of inputs and parameters, in order."""
        return [node.name for node in self.nodes if node.is_variable]

    def text(self) -> str:
        """The symbol as the JSON that MXNet reads."""
        nodes = [_node_record(node) for node in self.nodes]
        record = {
            "nodes": nodes,
            "arg_nodes": [place for place, node in enumerate(self.nodes) if node.is_variable],
            "node_row_ptr": list(range(len(nodes) + 1)),
            "heads": [_entry_record(entry) for entry in self.heads],
            "attrs": {"mxnet_version": ["int", self.version]},
        }
        return json.dumps(record)


def _entry_record(entry: NodeResult) -> list[int]:
    return [entry.node, entry.output, 0]


def _node_record(node: SymbolNode) -> dict[str, Any]:
    record: dict[str, Any] = {"op": node.operator, "name": node.name}
    if node.attributes:
        record["attrs"] = dict(node.attributes)
    return {**record, "inputs": [_entry_record(entry) for entry in node.inputs]}


def parse_symbol(data: bytes | str) -> Symbol:
    """The symbol of a JSON text; BadSymbolFile for anything else."""
    if len(data) > MOST_BYTES:
        raise BadSymbolFile(reason=f"it has more than {MOST_BYTES} bytes")
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as problem:
        reason = str(problem)[:200] or "it nests too deeply"
        raise BadSymbolFile(reason=f"it is not JSON: {reason}") from None
    nodes = _list(_object(record, "the text"), "nodes")
    if len(nodes) > MOST_NODES:
        raise BadSymbolFile(reason=f"it has {len(nodes)} nodes")
    parsed: list[SymbolNode] = []
    for place, each in enumerate(nodes):
        parsed.append(_node(_object(each, f"node {place}"), place))
    heads = tuple(_entry(each, len(parsed), "a head") for each in _list(record, "heads"))
    if not heads:
        raise BadSymbolFile(reason="it has no results")
    return Symbol(tuple(parsed), heads)


def _node(record: Mapping[str, Any], place: int) -> SymbolNode:
    operator, name = record.get("op"), record.get("name")
    if not isinstance(operator, str) or not isinstance(name, str):
        raise BadSymbolFile(reason=f"node {place} lacks its operator or name")
    entries = _list(record, "inputs")
    inputs = tuple(_entry(each, place, f"an input of {name!r:.60}") for each in entries)
    return SymbolNode(operator, name, _attributes(record, name), inputs)


def _attributes(record: Mapping[str, Any], name: str) -> dict[str, str]:
    """The attributes of a node, which older versions call attr or param."""
    found: dict[str, str] = {}
    for key in ("param", "attr", "attrs"):
        each = record.get(key, {})
        if not isinstance(each, dict):
            raise BadSymbolFile(reason=f"{key} of {name!r:.60} is no object")
        found |= {attribute: str(value) for attribute, value in each.items()}
    return found


def _entry(value: Any, nodes: int, what: str) -> NodeResult:
    """An entry, which is [node, output, version] or without the version."""
    is_listed = isinstance(value, list) and len(value) in (2, 3)
    if not is_listed or any(type(each) is not int for each in value[:2]):
        raise BadSymbolFile(reason=f"{what} is {value!r:.60}, not a node and an output")
    node, output = value[:2]
    if not 0 <= node < nodes or not 0 <= output < MOST_NODES:
        raise BadSymbolFile(reason=f"{what} is output {output} of node {node}, which is not before")
    return NodeResult(node, output)


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadSymbolFile(reason=f"{what} is no object")
    return value


def _list(record: Mapping[str, Any], key: str) -> list[Any]:
    found = record.get(key)
    if not isinstance(found, list):
        raise BadSymbolFile(reason=f"it lacks the list {key}")
    return found
