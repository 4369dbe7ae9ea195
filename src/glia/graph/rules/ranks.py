"""Constructors for nodes that depend on which rank runs the program."""

from __future__ import annotations

from collections.abc import Sequence

from glia.base.dtype import S32, U32
from glia.graph.ir import Node, TensorType
from glia.graph.ops import Collective
from glia.graph.rules.constructors import apply, broadcast, constant, convert, reduce


def rank_id() -> Node:
    """The number of the rank that runs the program."""
    return Collective((), "rank-id", TensorType(U32), -1, (), (), ())


def is_one_of(ranks: Sequence[int], like: Node) -> Node:
    """Whether this rank is one of several, for every element of a tensor."""
    listed = constant(list(ranks), U32)
    same = apply("equal", listed, broadcast(rank_id(), listed.shape))
    found = reduce("maximum", convert(same, S32), 0, (0,))
    return broadcast(apply("not_equal", found, constant(0, S32)), like.shape)
