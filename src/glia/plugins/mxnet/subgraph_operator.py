"""The operator `_neuron_subgraph_op`, with which compiled symbols run their NEFFs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet

from glia.base.dtype import U8
from glia.plugins.mxnet.errors import CompiledForInference
from glia.plugins.mxnet.subgraphs import NEFF, SUBGRAPH, Subgraph, parse_types


class _BoundSubgraph(mxnet.operator.CustomOp):  # type: ignore[misc]  # no types of MXNet
    """A node that is bound to arrays."""

    def __init__(self, subgraph: Subgraph) -> None:
        super().__init__()
        self.subgraph = subgraph

    def forward(
        self, is_train: bool, req: Sequence[str], in_data: Any, out_data: Any, aux: Any
    ) -> None:
        """Write the results of the NEFF, which is the last of `in_data`."""
        *given, neff = (each.asnumpy() for each in in_data)
        for place, array in enumerate(self.subgraph(given, neff)):
            self.assign(out_data[place], req[place], mxnet.nd.array(array, dtype=array.dtype))

    def backward(self, **_: Any) -> None:
        """CompiledForInference, which MXNet prints, and raises an MXNetError."""
        raise CompiledForInference(inputs=len(self.subgraph.inputs))


@mxnet.operator.register(SUBGRAPH)
class _SubgraphProperties(mxnet.operator.CustomOpProp):  # type: ignore[misc]  # no types of MXNet
    """What MXNet asks about a node."""

    def __init__(self, inputs: str, outputs: str, subgraphs: str = "") -> None:
        super().__init__(need_top_grad=False)
        self.subgraph = Subgraph(parse_types(inputs), parse_types(outputs))

    def list_arguments(self) -> list[str]:
        """The names of the inputs."""
        return [*(f"input{place}" for place in range(len(self.subgraph.inputs))), NEFF]

    def list_outputs(self) -> list[str]:
        """The names of the results."""
        return [f"output{place}" for place in range(len(self.subgraph.outputs))]

    def infer_shape(self, in_shape: Any) -> Any:
        """The shapes of inputs and results; UnusableSubgraph for others than were compiled."""
        self.subgraph.check_shapes(in_shape[:-1])
        return in_shape, [list(each.shape) for each in self.subgraph.outputs], []

    def infer_type(self, in_type: Any) -> Any:
        """The dtypes of inputs and results."""
        given, results = (
            [each.dtype.numpy.type for each in kinds]
            for kinds in (self.subgraph.inputs, self.subgraph.outputs)
        )
        return [*given, U8.numpy.type], results, []

    def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> _BoundSubgraph:
        """A node's operator."""
        return _BoundSubgraph(Subgraph(self.subgraph.inputs, self.subgraph.outputs))
