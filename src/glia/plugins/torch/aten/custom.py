"""Kernels of NKI in graphs: an operation that holds its program becomes a custom call."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from glia.graph.ops.control import KERNEL
from glia.plugins.hlo_module import HloValue
from glia.plugins.torch.aten.operator_table import OperatorCall, lowers
from glia.plugins.torch.kernels import LIBRARY


@lowers(getattr(torch.ops, LIBRARY.ns).nki_kernel.default)
def _kernel(
    at: OperatorCall, operands: Sequence[HloValue], config: str, results: str
) -> list[HloValue]:
    return list(at.call(KERNEL, operands, at.results, config.encode()))
