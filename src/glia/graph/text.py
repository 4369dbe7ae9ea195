"""The graph level's text form: what `print_graph` writes, `parse_graph` reads back.

```
graph "main" (%0 : f32[4,8] "x", %1 : f32[8,2] "w") {
  %2 = dot a=%0 b=%1 a_batch=[] ... result_dtype=f32 : f32[4,2]
  %3 = constant value=@c0 : f32[4,2]
  %4 = map function="add" args=[%2, %3] : f32[4,2]
  return %4 "y"
}
```

Every field of an operation is printed by name. A constant that holds one value everywhere is
printed as that value; any other is a name in the table that `constant_table` returns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from glia.base.dtype import DTYPES, DType, Kind
from glia.base.loc import UNKNOWN, Loc
from glia.base.scanner import Scanner
from glia.graph.ir import OPS, Graph, Node, Parameter, TensorType, TupleType, Type
from glia.graph.ops.pointwise import Constant
from glia.graph.type_rules import has_declared_type

Array = np.ndarray[Any, Any]
Value = TypeVar("Value")

MOST_NESTING = 50
_COUNTS = ("replicas", "partitions")


def print_graph(graph: Graph, *, with_locations: bool = False) -> str:
    """The graph as text, ending in a newline."""
    return _Printer(with_locations).graph(graph, "") + "\n"


def constant_table(graph: Graph) -> dict[str, Array]:
    """The arrays that `print_graph(graph)` refers to by name."""
    printer = _Printer(False)
    printer.graph(graph, "")
    return dict(printer.table)


def describe(node: Node) -> str:
    """One operation as text, its operands shown by their types and its regions by their names."""
    shown = [f"{name}={_describe_value(getattr(node, name))}" for name in _fields(node)]
    return " ".join([node.opcode, *shown])


def parse_graph(text: str, constants: Mapping[str, Array] | None = None) -> Graph:
    """The graph of a text form; TextError for text that does not parse or type-check."""
    scanner = Scanner(text)
    graph = _Parser(scanner, constants or {}).graph(0)
    if scanner.peek():
        scanner.fail("expected the end")
    return graph


def _fields(node: Node) -> list[str]:
    """The names of every field but the location, in declared order."""
    return [name for name in node.field_hints if name in {
        *node.operand_fields, *node.attribute_fields, *node.region_fields
    }]  # fmt: skip


def _describe_value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_describe_value, value))}]"
    if isinstance(value, Node):
        return str(vars(value).get("type", "?"))
    if isinstance(value, Graph):
        return f"graph {json.dumps(value.name)}"
    if isinstance(value, np.ndarray):
        return f"array{list(value.shape)}"
    return _literal(value)


def _literal(value: Any) -> str:
    """The text of an attribute: a string, bool, number, dtype or type."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return json.dumps(value) if isinstance(value, str) else str(value)


def _splat_text(array: Array) -> str | None:
    """The text of the value all elements share, None unless it parses back to the same bits."""
    if not array.size:
        return None
    first = np.ascontiguousarray(array.reshape(-1)[:1])
    if array.size > 1 and not _is_uniform(array, first):
        return None
    if first.dtype == np.bool_:
        return _literal(bool(first[0]))
    if first.dtype.kind in "iu" or "int" in first.dtype.name:
        return str(int(first[0]))
    parts = [first.real, first.imag] if first.dtype.kind == "c" else [first]
    numbers = [float(part[0]) for part in parts]
    if _float_element(numbers, first.dtype).tobytes() != first.tobytes():
        return None
    shown = ", ".join(map(repr, numbers))
    return f"[{shown}]" if len(numbers) > 1 else shown


def _is_uniform(array: Array, first: Array) -> bool:
    if not any(array.strides):
        return True
    pattern = np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8)
    return bool((pattern == first.view(np.uint8)).all())


def _float_element(numbers: list[float], dtype: np.dtype) -> Array:
    """One element of a dtype from its real and, for complex dtypes, imaginary part."""
    value = np.zeros(1, dtype)
    with np.errstate(all="ignore"):
        if len(numbers) > 1:
            value.real, value.imag = numbers
        else:
            value[:] = np.array(numbers).astype(dtype)
    return value


def _integer_element(number: Any, dtype: DType) -> Array:
    """A 0-d integer or pred array; ValueError when the dtype cannot represent the number."""
    if isinstance(number, bool) != (dtype.kind is Kind.PRED) or isinstance(number, float):
        raise ValueError(f"it is not of type {dtype}")
    if not -(2**63) <= number < 2**64:
        raise ValueError("it has more than 64 bits")
    one = np.array(number, np.uint64 if number >= 2**63 else np.int64).astype(dtype.numpy)
    if int(one) != number:
        raise ValueError(f"it would become {int(one)}")
    return one


@dataclass
class _Printer:
    """Writes graphs; collects the constants that are referred to by name."""

    with_locations: bool
    table: dict[str, Array] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)

    def graph(self, graph: Graph, indent: str) -> str:
        names = {node: f"%{number}" for number, node in enumerate(graph.nodes)}
        inputs = ", ".join(
            f"{names[p]} : {p.declared} {json.dumps(p.name)}{self._location(p)}"
            for p in graph.parameters
        )
        aliases = f" aliases={self._value(graph.aliases, {}, '')}" if graph.aliases else ""
        counts = "".join(
            f" {name}={getattr(graph, name)}" for name in _COUNTS if getattr(graph, name)
        )
        lines = [f"graph {json.dumps(graph.name)} ({inputs}){aliases}{counts} {{"]
        inner = indent + "  "
        operations = [node for node in graph.nodes if not isinstance(node, Parameter)]
        lines += [f"{inner}{self._node(node, names, inner)}" for node in operations]
        labels = [f" {json.dumps(name)}" for name in graph.result_names]
        labels = labels or [""] * len(graph.results)
        results = [names[r] + label for r, label in zip(graph.results, labels, strict=True)]
        lines.append(f"{inner}return {', '.join(results)}".rstrip())
        return "\n".join([*lines, f"{indent}}}"])

    def _node(self, node: Node, names: Mapping[Node, str], indent: str) -> str:
        shown = [
            f"{name}={self._value(getattr(node, name), names, indent)}" for name in _fields(node)
        ]
        head = f"{names[node]} = {' '.join([node.opcode, *shown])}"
        return f"{head} : {node.type}{self._location(node)}"

    def _value(self, value: Any, names: Mapping[Node, str], indent: str) -> str:
        if isinstance(value, tuple):
            return f"[{', '.join(self._value(element, names, indent) for element in value)}]"
        if isinstance(value, Node):
            return names[value]
        if isinstance(value, Graph):
            return self.graph(value, indent)
        if isinstance(value, np.ndarray):
            return _splat_text(value) or self._constant_reference(value)
        return _literal(value)

    def _constant_reference(self, array: Array) -> str:
        name = self._names.setdefault(id(array), f"c{len(self._names)}")
        self.table[name] = array
        return f"@{name}"

    def _location(self, node: Node) -> str:
        loc = node.loc
        if not self.with_locations or loc == UNKNOWN:
            return ""
        return f" loc({json.dumps(loc.file)}, {loc.line}, {json.dumps(loc.name)})"


@dataclass
class _Parser:
    """Reads graphs from one scanner."""

    scanner: Scanner
    constants: Mapping[str, Array]

    def graph(self, depth: int) -> Graph:
        """Take a graph."""
        scanner = self.scanner
        self._check_depth(depth)
        scanner.expect("graph")
        name = self._string()
        scanner.expect("(")
        values: dict[str, Node] = {}
        parameters: list[Parameter] = []
        while not scanner.accept(")"):
            if parameters:
                scanner.expect(",")
            parameters.append(self._parameter(len(parameters), values))
        aliases = self._value({}, depth) if self._keyword("aliases") else ()
        if not has_declared_type(aliases, tuple[tuple[int, int], ...]):
            scanner.fail("aliases are pairs of a result's and a parameter's number")
        counts = [self._count(name) for name in _COUNTS]
        scanner.expect("{")
        while not scanner.accept("return"):
            self._node(values, depth)
        results, labels = self._results(values)
        return Graph(name, tuple(parameters), results, labels, aliases, *counts)

    def _count(self, name: str) -> int:
        """The number after `name=`, 0 where it does not stand here."""
        count = self.scanner.integer() if self._keyword(name) else 0
        if count < 0:
            self.scanner.fail(f"{name} cannot be negative")
        return count

    def _parameter(self, index: int, values: dict[str, Node]) -> Parameter:
        name = self._new_name(values)
        declared = self._type(0)
        if not isinstance(declared, TensorType):
            self.scanner.fail("a parameter is a tensor")
        parameter = Parameter(index, declared, self._string(), loc=self._location())
        values[name] = parameter
        return parameter

    def _results(self, values: Mapping[str, Node]) -> tuple[tuple[Node, ...], tuple[str, ...]]:
        results: list[Node] = []
        labels: list[str] = []
        while not self.scanner.accept("}"):
            if results:
                self.scanner.expect(",")
            results.append(self._lookup(values, self.scanner.take()))
            if self.scanner.peek().startswith('"'):
                labels.append(self._string())
        if labels and len(labels) != len(results):
            self.scanner.fail("either all results are named or none")
        return tuple(results), tuple(labels)

    def _node(self, values: dict[str, Node], depth: int) -> None:
        scanner = self.scanner
        name = scanner.take()
        self._check_new_name(name, values)
        scanner.expect("=")
        opcode = scanner.take()
        if opcode not in OPS or opcode == "parameter":
            scanner.fail(f"no operation is named {opcode!r}")
        fields = {}
        while not scanner.accept(":"):
            key = scanner.take()
            scanner.expect("=")
            fields[key] = self._value(values, depth)
        declared = self._type(0)
        values[name] = self._build(OPS[opcode], fields, declared)

    def _build(self, operation: type[Node], fields: dict[str, Any], declared: Type) -> Node:
        hints = {name: hint for name, hint in operation.field_hints.items() if name in {
            *operation.operand_fields, *operation.attribute_fields, *operation.region_fields
        }}  # fmt: skip
        if operation is Constant and "value" in fields:
            fields["value"] = self._constant(fields["value"], declared)
        if set(fields) != set(hints):
            self.scanner.fail(f"{operation.opcode} has the fields {', '.join(hints)}")
        for name, value in fields.items():
            if not has_declared_type(value, hints[name]):
                self.scanner.fail(
                    f"{name} of {operation.opcode} cannot be {_describe_value(value)}"
                )
        node = operation(**fields, loc=self._location())
        try:
            inferred = node.type
        except TypeError as error:
            self.scanner.fail(f"{operation.opcode}: {error}")
        if inferred != declared:
            self.scanner.fail(f"{operation.opcode} gives {inferred}, not {declared}")
        return node

    def _constant(self, value: Any, declared: Type) -> Array:
        """An array from the table, or a splat, whose value is stored once whatever its shape."""
        if isinstance(value, np.ndarray):
            return value
        if not isinstance(declared, TensorType):
            self.scanner.fail("a constant is a tensor")
        dtype, numbers = declared.dtype, list(value) if isinstance(value, tuple) else [value]
        if not all(isinstance(number, (bool, int, float)) for number in numbers):
            self.scanner.fail(f"expected a value of {dtype}")
        if len(numbers) != 1 + dtype.is_complex:
            self.scanner.fail(f"{len(numbers)} numbers for one {dtype}")
        try:
            if dtype.is_float or dtype.is_complex:
                one = _float_element([float(number) for number in numbers], dtype.numpy)[0]
            else:
                one = _integer_element(numbers[0], dtype)
            return np.broadcast_to(one, declared.shape)
        except (OverflowError, ValueError) as error:
            self.scanner.fail(f"{declared} cannot hold {numbers[0]}: {error}")

    def _value(self, values: Mapping[str, Node], depth: int) -> Any:
        self._check_depth(depth)
        token = self.scanner.peek()
        if token == "graph":
            return self.graph(depth + 1)
        if token == "(" or token in DTYPES:
            return self._type(depth)
        if token == "[":
            return self._list(values, depth + 1)
        if token.startswith('"'):
            return self._string()
        self.scanner.take()
        if token.startswith("%"):
            return self._lookup(values, token)
        if token.startswith("@"):
            if token[1:] not in self.constants:
                self.scanner.fail(f"no constant is named {token}")
            return self.constants[token[1:]]
        words = {"true": True, "false": False, "none": None}
        return words[token] if token in words else self._number(token)

    def _number(self, token: str) -> int | float:
        try:
            return int(token)
        except ValueError:
            pass
        try:
            return float(token)
        except ValueError:
            self.scanner.fail(f"{token!r} is no value")

    def _list(self, values: Mapping[str, Node], depth: int) -> tuple[Any, ...]:
        self.scanner.expect("[")
        elements: list[Any] = []
        while not self.scanner.accept("]"):
            if elements:
                self.scanner.expect(",")
            elements.append(self._value(values, depth))
        return tuple(elements)

    def _type(self, depth: int) -> Any:
        """A dtype, a tensor type or a tuple type."""
        self._check_depth(depth)
        if self.scanner.accept("("):
            elements: list[Any] = []
            while not self.scanner.accept(")"):
                if elements:
                    self.scanner.expect(",")
                elements.append(self._type(depth + 1))
            return TupleType(tuple(elements))
        token = self.scanner.take()
        if token not in DTYPES:
            self.scanner.fail(f"no dtype is named {token!r}")
        dtype: DType = DTYPES[token]
        if self.scanner.peek() != "[":
            return dtype
        shape = self._list({}, depth)
        if not has_declared_type(shape, tuple[int, ...]) or min(shape, default=0) < 0:
            self.scanner.fail("extents are integers that are not negative")
        return TensorType(dtype, shape)

    def _location(self) -> Loc:
        if not self.scanner.accept("loc"):
            return UNKNOWN
        self.scanner.expect("(")
        file = self._string()
        self.scanner.expect(",")
        line = self.scanner.integer()
        self.scanner.expect(",")
        name = self._string()
        self.scanner.expect(")")
        return Loc(file, line, name)

    def _string(self) -> str:
        token = self.scanner.take()
        if not token.startswith('"'):
            self.scanner.fail(f"expected a string before {token!r}")
        try:
            text: str = json.loads(token)
        except ValueError:
            self.scanner.fail(f"{token} is no string")
        return text

    def _keyword(self, word: str) -> bool:
        if not self.scanner.accept(word):
            return False
        self.scanner.expect("=")
        return True

    def _new_name(self, values: Mapping[str, Node]) -> str:
        name = self.scanner.take()
        self._check_new_name(name, values)
        self.scanner.expect(":")
        return name

    def _check_new_name(self, name: str, values: Mapping[str, Node]) -> None:
        if not name.startswith("%") or name in values:
            self.scanner.fail(f"{name!r} cannot name a new value")

    def _lookup(self, values: Mapping[str, Node], name: str) -> Node:
        if name not in values:
            self.scanner.fail(f"no value is named {name!r}")
        return values[name]

    def _check_depth(self, depth: int) -> None:
        if depth > MOST_NESTING:
            self.scanner.fail(f"nested more than {MOST_NESTING} deep")
