"""What kernels inside a model compute, for the evaluators of graphs and nests.

Both levels treat a kernel as opaque, since what it computes is its machine program's to say. Where
values are followed from pass to pass, the simulator runs that program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from glia.custom_call.read_kernels import decode_kernel
from glia.graph.ir import Graph, Node, TensorType
from glia.graph.ops.control import KERNEL, CustomCall
from glia.graph.rules.driver import map_regions
from glia.machine.ir import Program
from glia.sim.run import run
from glia.tile.ir import Call

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False, repr=False)
class _EvaluatedCall(CustomCall):
    """A call of a kernel whose value is that of the kernel's program."""

    def compute(self, *arrays: Array) -> Any:
        call = Call(KERNEL, self.target, self.config, (), (), self.loc)
        found = run_kernel(call, arrays)
        return found[0] if isinstance(self.type, TensorType) else tuple(found)


def with_kernels(graph: Graph) -> Graph:
    """The graph, to be evaluated: calls of kernels have values, in regions too."""
    return graph.rewrite(_evaluated)


def _evaluated(node: Node) -> Node:
    if type(node) is CustomCall and node.target == KERNEL:
        return _EvaluatedCall(**{each.name: getattr(node, each.name) for each in fields(node)})
    return map_regions(node, with_kernels)


def run_kernel(call: Call, arrays: Sequence[Array]) -> list[Array]:
    """The outputs of a call's kernel; BadCustomCall when it holds none that runs on one core."""
    kernel = call.kernel if isinstance(call.kernel, Program) else decode_kernel(call)
    inputs = {b.name: np.asarray(a) for b, a in zip(kernel.inputs, arrays, strict=True)}
    found = run(kernel, inputs)
    return [found[binding.name] for binding in kernel.outputs]
