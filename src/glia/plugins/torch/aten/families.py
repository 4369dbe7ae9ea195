"""All families of ATen operators, complete when this is loaded.

They enter their lowerings in `TABLE`, or what they are made of in `DERIVED`.
"""

from glia.plugins.torch.aten import (
    contraction,
    custom,
    indexing,
    lists,
    normalization,
    optimizer_steps,
    pointwise,
    pooling,
    randomness,
    recurrent,
    reduce_scan_sort,
    resizing,
    sampling,
    shapes,
)
from glia.plugins.torch.aten.derived import DERIVED
from glia.plugins.torch.aten.operator_table import TABLE

FAMILIES = (
    contraction, custom, indexing, lists, normalization, optimizer_steps, pointwise, pooling,
    randomness, recurrent, reduce_scan_sort, resizing, sampling, shapes,
)  # fmt: skip

__all__ = ["DERIVED", "FAMILIES", "TABLE"]
