"""Level 1: a tensor program as a directed acyclic graph of operations with HLO semantics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, TypeVar, dataclass_transform, get_type_hints

from glia.base.dtype import DType
from glia.base.loc import UNKNOWN, Loc


@dataclass(frozen=True)
class TensorType:
    """A dense tensor: element type and static shape."""

    dtype: DType
    shape: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def bytes(self) -> int:
        return self.elements * self.dtype.bytes

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class TupleType:
    """The type of an operation with several results; projected with `Get`."""

    elements: tuple[TensorType | TupleType, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.elements))})"


Type = TensorType | TupleType

OPS: dict[str, type[Node]] = {}


@dataclass(frozen=True, eq=False, repr=False)
class Node:
    """One operation and its result; identity is object identity.

    A subclass declares operands as fields of type `Node` or `tuple[Node, ...]`, regions as fields
    of type `Graph`, and attributes as every other field; `infer` gives its type (raising TypeError
    with the numbers that break the rule) and `compute` its value on NumPy arrays.
    """

    opcode: ClassVar[str] = ""
    operand_fields: ClassVar[tuple[str, ...]] = ()
    region_fields: ClassVar[tuple[str, ...]] = ()
    attribute_fields: ClassVar[tuple[str, ...]] = ()
    field_hints: ClassVar[Mapping[str, Any]] = {}
    is_pure: ClassVar[bool] = True  # nodes with equal attributes and operands have equal results
    keeps_float32: ClassVar[bool] = False  # under `--auto-cast all`, as its values or bits need it

    loc: Loc = field(default=UNKNOWN, kw_only=True)

    def infer(self) -> Type:
        """The type of the result."""
        raise TypeError(f"{type(self).__name__} declares no type rule")

    def compute(self, *arrays: Any, **_: Any) -> Any:
        """The value of the result on one array per operand: an array, or a tuple for a TupleType.

        An operation of fixed arity names its operands instead.
        """
        raise TypeError(f"{type(self).__name__} declares no meaning")

    @cached_property
    def type(self) -> Type:
        _infer_operands(self)
        return self.infer()

    def __repr__(self) -> str:
        attributes = ", ".join(f"{name}={getattr(self, name)}" for name in self.attribute_fields)
        return f"<{self.opcode} {attributes}>" if attributes else f"<{self.opcode}>"

    @property
    def shape(self) -> tuple[int, ...]:
        assert isinstance(self.type, TensorType)
        return self.type.shape

    @property
    def dtype(self) -> DType:
        assert isinstance(self.type, TensorType)
        return self.type.dtype

    @cached_property
    def operands(self) -> tuple[Node, ...]:
        """Every operand in field order, tuples flattened."""
        found: list[Node] = []
        for name in self.operand_fields:
            value = getattr(self, name)
            if isinstance(value, Node):
                found.append(value)
            else:
                found.extend(value)
        return tuple(found)

    def with_operands(self, operands: Iterable[Node]) -> Node:
        """The same operation on other operands, given in the order of `operands`."""
        supply = iter(operands)
        changes: dict[str, Any] = {}
        for name in self.operand_fields:
            value = getattr(self, name)
            is_one = isinstance(value, Node)
            changes[name] = next(supply) if is_one else tuple(next(supply) for _ in value)
        return dataclasses.replace(self, **changes)


_Op = TypeVar("_Op", bound=Node)


@dataclass_transform(frozen_default=True, eq_default=False)
def op(cls: type[_Op]) -> type[_Op]:
    """Register a Node subclass: make it a frozen dataclass and sort its fields by role."""
    cls = dataclass(frozen=True, eq=False, repr=False)(cls)
    hints = get_type_hints(cls)
    roles: dict[str, list[str]] = {"operand": [], "region": [], "attribute": []}
    for declared in dataclasses.fields(cls):
        hint = str(hints[declared.name])
        role = "region" if "Graph" in hint else "operand" if "Node" in hint else "attribute"
        if declared.name != "loc":
            roles[role].append(declared.name)
    cls.operand_fields = tuple(roles["operand"])
    cls.region_fields = tuple(roles["region"])
    cls.attribute_fields = tuple(roles["attribute"])
    cls.field_hints = hints
    OPS[cls.opcode] = cls
    return cls


@dataclass(frozen=True, eq=False, repr=False)
class Parameter(Node):
    """The index-th input of the enclosing graph."""

    index: int = 0
    declared: TensorType | None = None
    name: str = ""

    opcode: ClassVar[str] = "parameter"
    attribute_fields: ClassVar[tuple[str, ...]] = ("index", "declared", "name")
    field_hints: ClassVar[Mapping[str, Any]] = {"index": int, "declared": TensorType, "name": str}

    def infer(self) -> Type:
        assert self.declared is not None
        return self.declared


OPS["parameter"] = Parameter


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """A function: parameters in order, results in order; every node is reachable from a result.

    It runs on `replicas` times `partitions` ranks; 0 stands for what is not said.
    """

    name: str
    parameters: tuple[Parameter, ...]
    results: tuple[Node, ...]
    result_names: tuple[str, ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()  # (result, parameter) pairs that share one buffer
    replicas: int = 0
    partitions: int = 0

    def __repr__(self) -> str:
        return f"<graph {self.name}>"

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every node reachable from the results, operands before users; parameters first."""
        order: dict[Node, None] = dict.fromkeys(self.parameters)
        for result in self.results:
            _visit(result, order)
        return tuple(order)

    @cached_property
    def users(self) -> Mapping[Node, tuple[Node, ...]]:
        """The nodes that read each node (a result is not a user)."""
        found: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for operand in dict.fromkeys(node.operands):
                found[operand].append(node)
        return {node: tuple(readers) for node, readers in found.items()}

    def rewrite(self, change: Callable[[Node], Node | None]) -> Graph:
        """Rebuild bottom-up; `change` sees each node with rewritten operands, None keeps it."""
        image: dict[Node, Node] = {}
        for node in self.nodes:
            operands = [image[o] for o in node.operands]
            same = all(new is old for new, old in zip(operands, node.operands, strict=True))
            rebuilt = node if same else node.with_operands(operands)
            image[node] = change(rebuilt) or rebuilt
        results = tuple(image[result] for result in self.results)
        return dataclasses.replace(self, results=results)


def result_type(types: Iterable[TensorType]) -> Type:
    """The type of an operation with these results: a tensor for one, a tuple otherwise."""
    found = tuple(types)
    return found[0] if len(found) == 1 else TupleType(found)


def one_or_tuple(results: Sequence[Any]) -> Any:
    """What an operation with these results computes: its one result, or a tuple of them."""
    return results[0] if len(results) == 1 else tuple(results)


def _infer_operands(root: Node) -> None:
    """Infer what `root` depends on, operands first, so that no chain is too long for the stack."""
    stack = [operand for operand in root.operands if "type" not in vars(operand)]
    while stack:
        node = stack[-1]
        waiting = [operand for operand in node.operands if "type" not in vars(operand)]
        stack.extend(waiting)
        if not waiting:
            stack.pop().type  # noqa: B018 - computes the cached property


def _visit(root: Node, order: dict[Node, None]) -> None:
    stack: list[tuple[Node, Iterator[Node]]] = []
    if root not in order:
        stack.append((root, iter(root.operands)))
    while stack:
        node, rest = stack[-1]
        following = next((o for o in rest if o not in order), None)
        if following is None:
            order.setdefault(node)
            stack.pop()
        else:
            stack.append((following, iter(following.operands)))
