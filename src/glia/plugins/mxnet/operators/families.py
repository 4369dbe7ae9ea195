"""All families of operators, which enter their lowerings in `TABLE` when they load."""

from glia.plugins.mxnet.operators import (
    layer_operators,
    normalization_operators,
    pointwise_operators,
    reduction_operators,
    shape_operators,
)
from glia.plugins.mxnet.operators.operator_table import TABLE

FAMILIES = (
    layer_operators, normalization_operators, pointwise_operators, reduction_operators,
    shape_operators,
)  # fmt: skip

__all__ = ["FAMILIES", "TABLE"]
