"""Programs that no memory holds are refused when they are compiled."""

from __future__ import annotations

import pytest

import glia
from glia.base.dtype import F32
from glia.graph import ops
from glia.graph.ir import Graph, Parameter, TensorType
from glia.machine.passes.place import DeviceMemoryFull


def test_tensors_larger_than_device_memory_are_refused_with_their_bytes() -> None:
    x = Parameter(0, TensorType(F32, ()), name="x")
    graph = Graph("huge", (x,), (ops.Broadcast(x, (80_000, 1_000_000), ()),))
    with pytest.raises(DeviceMemoryFull, match=r"NCC_EOOM001.*320000000\d+ bytes of HBM on trn2"):
        glia.compile(graph)
