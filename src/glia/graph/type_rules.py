"""Checks that several operations' type rules share; each raises TypeError with the numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import UnionType
from typing import Any, get_args, get_origin

from glia.base.dtype import DType
from glia.graph.ir import Graph, Node, TensorType


def require(holds: bool, message: str) -> None:
    """Raise TypeError(message) unless `holds`."""
    if not holds:
        raise TypeError(message)


def tensor(node: Node) -> TensorType:
    """The node's type, which must not be a tuple."""
    found = node.type
    if not isinstance(found, TensorType):
        raise TypeError(f"{node!r} has the tuple type {found} where a tensor is needed")
    return found


def require_dimensions(dimensions: Sequence[int], rank: int, what: str) -> None:
    """Dimensions are distinct and within the rank."""
    inside = all(0 <= d < rank for d in dimensions) and len(set(dimensions)) == len(dimensions)
    require(inside, f"{what} {list(dimensions)} must be distinct and below the rank {rank}")


def require_length(values: Sequence[object], count: int, what: str) -> None:
    """A per-dimension attribute has one entry per dimension."""
    require(len(values) == count, f"{what} {list(values)} must have {count} entries")


def require_one_shape(nodes: Iterable[Node], what: str) -> tuple[int, ...]:
    """All nodes have one shape, which is returned; there is at least one."""
    shapes = [tensor(node).shape for node in nodes]
    require(bool(shapes), f"{what} needs at least one tensor")
    require(len(set(shapes)) == 1, f"{what} needs tensors of one shape, not {shapes}")
    return shapes[0]


def require_scalar(node: Node, dtype: DType, what: str) -> None:
    """The node is a scalar of this dtype."""
    expected = TensorType(dtype)
    require(tensor(node) == expected, f"{what} must be {expected}, not {node.type}")


def require_signature(
    region: Graph, takes: Sequence[TensorType], gives: Sequence[TensorType], what: str
) -> None:
    """The region's parameters and results have these types."""
    taken = [tensor(parameter) for parameter in region.parameters]
    given = [tensor(result) for result in region.results]
    require(taken == list(takes), f"{what} must take {_listing(takes)}, not {_listing(taken)}")
    require(given == list(gives), f"{what} must return {_listing(gives)}, not {_listing(given)}")


def require_combiner(region: Graph, dtypes: Sequence[DType], what: str) -> None:
    """The region takes (accumulators..., elements...) scalars and returns accumulators."""
    scalars = [TensorType(dtype) for dtype in dtypes]
    require_signature(region, scalars + scalars, scalars, what)


def window_positions(
    extent: int, window: int, stride: int, low: int, high: int, dilation: int, window_dilation: int
) -> int:
    """How many windows fit in one dimension; TypeError for non-positive steps."""  # fmt: skip
    steps = (window, stride, dilation, window_dilation)
    require(min(steps) > 0, f"window, stride and dilations {steps} must be positive")
    padded = low + max(0, (extent - 1) * dilation + 1 if extent else 0) + high
    reach = (window - 1) * window_dilation + 1
    return max(0, (padded - reach) // stride + 1) if padded >= 0 else 0


def has_declared_type(value: object, hint: Any) -> bool:
    """Whether a value conforms to a field's declared type; a bool does not conform to int."""
    if isinstance(hint, UnionType):
        return any(has_declared_type(value, choice) for choice in get_args(hint))
    if get_origin(hint) is not tuple:
        return type(value) is hint if hint in (int, bool, str) else isinstance(value, hint)
    if not isinstance(value, tuple):
        return False
    parts = get_args(hint)
    if len(parts) == 2 and parts[1] is Ellipsis:
        return all(has_declared_type(element, parts[0]) for element in value)
    return len(value) == len(parts) and all(map(has_declared_type, value, parts))


def _listing(types: Sequence[TensorType]) -> str:
    return f"({', '.join(map(str, types))})"
