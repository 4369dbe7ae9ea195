"""Small models in the layout of MXNet's files."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping

import numpy as np

from glia.base.dtype import F32, from_numpy
from glia.graph.ir import TensorType
from glia.plugins.mxnet.parameter_file import ARRAY_V1, ARRAY_V2, DTYPES, LIST_MAGIC
from glia.plugins.mxnet.symbol_file import VARIABLE, NodeResult, Symbol, SymbolNode


def parameter_file(arrays: Mapping[str, np.ndarray], magic: int = ARRAY_V2) -> bytes:
    """A `.params` file of arrays by name."""
    parts = [struct.pack("<QQQ", LIST_MAGIC, 0, len(arrays))]
    for array in arrays.values():
        storage = b"" if magic == ARRAY_V1 else struct.pack("<i", 0)
        extents = struct.pack(f"<i{array.ndim}q", array.ndim, *array.shape)
        kind = struct.pack("<iii", 1, 0, DTYPES.index(from_numpy(array.dtype)))
        parts.append(struct.pack("<I", magic) + storage + extents + kind + array.tobytes())
    parts.append(struct.pack("<Q", len(arrays)))
    for name in arrays:
        parts.append(struct.pack("<Q", len(name)) + name.encode())
    return b"".join(parts)


SYMBOL_INPUTS = {"data": TensorType(F32, (1, 2, 6, 6))}


def symbol_arrays() -> dict[str, np.ndarray]:
    """The parameters of the network of `symbol_samples`."""
    shapes = {
        "conv_weight": (4, 2, 3, 3), "norm_gamma": (4,), "norm_beta": (4,), "norm_mean": (4,),
        "norm_var": (4,), "fc_weight": (3, 16), "fc_bias": (3,),
    }  # fmt: skip
    return {
        name: np.linspace(0.1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
        for name, shape in shapes.items()
    }


def symbol_samples() -> dict[str, bytes]:
    """A small network of images, and a chain of operators whose attributes are shapes."""
    chained = _Chain("data")
    chained.add("Reshape", shape="(0, -1, 4)")
    chained.add("slice", begin="(0, 1)", end="(None, 15)", step="(1, 2)")
    chained.add("Pad", mode="edge", pad_width="(0, 0, 1, 1, 2, 0)")
    chained.add("tile", reps="(2, 1, 1)")
    chained.add("topk", k="2", axis="1", ret_typ="value")
    chained.add("_plus_scalar", scalar="1.5")
    network = _Chain("data")
    network.add("Convolution", "conv_weight", kernel="(3, 3)", num_filter="4", no_bias="True")
    network.add("BatchNorm", "norm_gamma", "norm_beta", "norm_mean", "norm_var", axis="1")
    network.add("Activation", act_type="relu")
    network.add("Pooling", kernel="(2, 2)", stride="(2, 2)", pool_type="avg")
    network.add("FullyConnected", "fc_weight", "fc_bias", num_hidden="3")
    network.add("softmax", axis="-1")
    return {"network": network.text(), "shapes": chained.text()}


class _Chain:
    """A symbol that grows by operators on its last result."""

    def __init__(self, data: str) -> None:
        self.nodes = [SymbolNode(VARIABLE, data)]
        self.last = NodeResult(0)

    def add(self, operator: str, *parameters: str, **attributes: str) -> None:
        """An operator of the last result and parameters."""
        inputs = [self.last]
        for name in parameters:
            self.nodes.append(SymbolNode(VARIABLE, name))
            inputs.append(NodeResult(len(self.nodes) - 1))
        self.nodes.append(SymbolNode(operator, f"n{len(self.nodes)}", attributes, tuple(inputs)))
        self.last = NodeResult(len(self.nodes) - 1)

    def text(self) -> bytes:
        """The symbol's JSON, a line for each item, as MXNet writes it."""
        record = json.loads(Symbol(tuple(self.nodes), (self.last,)).text())
        return json.dumps(record, indent=1).encode()
