"""Graphs of operators in parts, for the device and for the host, that run one after the other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_Node = TypeVar("_Node", bound=Hashable)


@dataclass
class Part(Generic[_Node]):
    """Nodes that run together, in their order, on the device or on the host."""

    is_on_device: bool
    nodes: list[_Node] = field(default_factory=list)


def parts_of(
    order: Iterable[_Node],
    operands: Callable[[_Node], Iterable[_Node]],
    is_on_device: Callable[[_Node], bool],
) -> list[Part[_Node]]:
    """The parts of a graph, each of which depends on those before it only.

    `order` has operands before their users. Nodes are in the first part of their place that all
    of their operands allow, so that places alternate as seldom as the longest chain demands.
    Operands that are not in `order` belong to no part.
    """
    levels: dict[_Node, int] = {}  # even ones are the device's
    parts: dict[int, Part[_Node]] = {}
    for node in order:
        on_device = is_on_device(node)
        level = max((levels[each] for each in operands(node) if each in levels), default=0)
        level += level % 2 == on_device
        levels[node] = level
        parts.setdefault(level, Part(on_device)).nodes.append(node)
    return [parts[level] for level in sorted(parts)]
