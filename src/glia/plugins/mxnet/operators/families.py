"""The table with the operators of all families."""

from glia.plugins.mxnet.operators import layers, normalization, pointwise, reductions, shapes
from glia.plugins.mxnet.operators.operator_table import TABLE

__all__ = ["TABLE", "layers", "normalization", "pointwise", "reductions", "shapes"]
