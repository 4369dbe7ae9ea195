"""Option enumerations of the kernels that AWS ships inside neuronxcc.

Models import them from `neuronxcc.nki._pre_prod_kernels` beside the kernels. Members and values are
those of the NKI Library, which has the kernels now.
"""

from __future__ import annotations

from enum import Enum


class QKVOutputLayout(Enum):
    """The order of batch, heads, sequence and head dimension in a projection's result."""

    BSD = 0
    NBSd = 1
    NBdS = 2


class NormType(Enum):
    """The normalisation before a layer."""

    NO_NORM = 0
    RMS_NORM = 1
    LAYER_NORM = 2
    RMS_NORM_SKIP_GAMMA = 3


class ActFnType(Enum):
    """The activation function of a feed-forward layer."""

    SiLU = 0
    GELU = 1
    GELU_Tanh_Approx = 2
    Swish = 3


class RouterActFnType(Enum):
    """The function from a router's logits to expert affinities."""

    SIGMOID = 0
    SOFTMAX = 1

    def __str__(self) -> str:
        return self.name.lower()


class ExpertAffinityScaleMode(Enum):
    """Where expert affinities scale the experts' computation."""

    NO_SCALE = 0
    POST_SCALE = 1
    PRE_SCALE = 2
    PRE_SCALE_DELAYED = 3


class QuantizationType(Enum):
    """How weights are quantised."""

    NONE = 0
    STATIC = 1
    ROW = 2
    MX = 3
    STATIC_MX = 4
    ROW_MX = 5


__all__ = [
    "ActFnType", "ExpertAffinityScaleMode", "NormType", "QKVOutputLayout", "QuantizationType",
    "RouterActFnType",
]  # fmt: skip
