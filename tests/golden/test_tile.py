"""The worked example of the tile level: a dense layer with softmax, pass by pass, as text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from glia.base.dtype import F32
from glia.graph import ops
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.tile.build.lower import build
from glia.tile.expand.expand_scalars import expand_scalars
from glia.tile.text import print_program


def dense_softmax() -> Graph:
    """softmax(x @ w + b) over the last dimension of [4, 128, 768]."""
    shape = (4, 128, 768)
    x = Parameter(0, TensorType(F32, shape), "x")
    w = Parameter(1, TensorType(F32, (768, 768)), "w")
    b = Parameter(2, TensorType(F32, (768,)), "b")
    product = ops.Dot(x, w, (), (), (2,), (0,), F32)
    logits = ops.Map("add", (product, ops.Broadcast(b, shape, (2,))))
    highest = _reduced("maximum", -np.inf, logits)
    grown = ops.Map("exp", (ops.Map("subtract", (logits, highest)),))
    total = _reduced("add", 0.0, grown)
    result = ops.Map("divide", (grown, total))
    return Graph("dense_softmax", (x, w, b), (result,), ("y",))


def _reduced(function: str, start: float, x: Node) -> Node:
    """x reduced along its last dimension and spread over it again."""
    neutral = ops.Constant(np.asarray(start, np.float32))
    reduced = ops.Reduce((x,), (neutral,), (2,), ops.combiner(function, F32))
    return ops.Broadcast(reduced, x.shape, (0, 1))


def test_text_after_each_pass_is_the_worked_example(golden: Callable[[str, str], None]) -> None:
    built = build(dense_softmax())
    steps = {"build": built, "expand_scalars": expand_scalars(built)}
    found = "\n".join(f"# {name}\n{print_program(p)}" for name, p in steps.items())
    golden("tile_softmax", found)
