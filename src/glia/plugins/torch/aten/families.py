"""All families of ATen operators, which enter their lowerings in `TABLE` when they load."""

from glia.plugins.torch.aten import (
    contraction,
    custom,
    indexing,
    normalization,
    pointwise,
    pooling,
    randomness,
    reduce_scan_sort,
    resizing,
    sampling,
    shapes,
)
from glia.plugins.torch.aten.operator_table import TABLE

FAMILIES = (
    contraction, custom, indexing, normalization, pointwise, pooling, randomness,
    reduce_scan_sort, resizing, sampling, shapes,
)  # fmt: skip

__all__ = ["FAMILIES", "TABLE"]
