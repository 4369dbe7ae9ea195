"""Compiled parts of symbols: what a node says of its types, and its NEFF once it is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import glia
from glia.base.dtype import DType
from glia.graph.ir import TensorType
from glia.neff.package import Neff
from glia.plugins.mxnet.errors import UnusableSubgraph
from glia.plugins.mxnet.operators.attributes import DTYPES

SUBGRAPH = "_neuron_subgraph_op"
NEFF = "neff"  # what the last input of such a node is called, and its variable ends in

_NAMES: Mapping[DType, str] = {dtype: name for name, dtype in DTYPES.items()}


def types_text(types: Sequence[TensorType]) -> str:
    """Types as JSON: the dtype by its name in MXNet, and the extents."""
    return json.dumps([[_NAMES[each.dtype], list(each.shape)] for each in types])


def parse_types(text: str) -> list[TensorType]:
    """The types that `types_text` has written; UnusableSubgraph for another text."""
    try:
        found = json.loads(text)
        kinds = [TensorType(DTYPES[name], tuple(shape)) for name, shape in found]
    except (ValueError, TypeError, KeyError, RecursionError) as problem:
        raise UnusableSubgraph(name=SUBGRAPH, reason=f"{text!r:.60} lists no types") from problem
    if any(type(n) is not int or not 0 < n < 1 << 40 for kind in kinds for n in kind.shape):
        raise UnusableSubgraph(name=SUBGRAPH, reason=f"{text!r:.60} has extents of no tensor")
    return kinds


class Subgraph:
    """A node's NEFF on the device, loaded at the first call and when it has become another."""

    def __init__(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
        self.inputs = list(inputs)
        self.outputs = list(outputs)
        self._data: np.ndarray | None = None
        self._model: Any = None

    def check_shapes(self, given: Sequence[Sequence[int]]) -> None:
        """Raise UnusableSubgraph for inputs of other shapes than were compiled."""
        expected = [list(each.shape) for each in self.inputs]
        found = [list(each) for each in given]
        if found != expected:
            reason = f"it was compiled for {expected} and is given {found}"
            raise UnusableSubgraph(name=SUBGRAPH, reason=reason)

    def __call__(self, inputs: Sequence[np.ndarray], neff: np.ndarray) -> list[np.ndarray]:
        """The results; UnusableSubgraph where the NEFF is not this node's."""
        if self._data is None or not np.array_equal(self._data, neff):
            self._load(neff)
        found: list[np.ndarray] = self._model(*inputs)
        return found

    def _load(self, data: np.ndarray) -> None:
        model = glia.load(Neff.from_bytes(data.tobytes()))
        held = [
            [TensorType(each.dtype, tuple(each.shape)) for each in bindings]
            for bindings in (model.inputs, model.outputs)
        ]
        if held != [self.inputs, self.outputs]:
            kinds = ", ".join(str(each) for each in held[0][:8])
            raise UnusableSubgraph(name=SUBGRAPH, reason=f"its NEFF takes {kinds}")
        self._model, self._data = model, data
