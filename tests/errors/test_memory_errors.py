"""Programs that no memory holds are refused when they are compiled."""

from __future__ import annotations

import pytest

import glia
from glia.base.dtype import F32
from glia.graph import ops
from glia.graph.ir import Graph, Parameter, TensorType
from glia.graph.passes.errors import DeviceMemoryFull


def test_tensors_larger_than_device_memory_are_refused_with_their_bytes() -> None:
    x = Parameter(0, TensorType(F32, ()), name="x")
    graph = Graph("huge", (x,), (ops.Broadcast(x, (80_000, 1_000_000), ()),))
    with pytest.raises(DeviceMemoryFull, match=r"NCC_EOOM001.*320000000\d+ bytes of HBM on trn2"):
        glia.compile(graph)


def test_a_model_may_fill_the_memory_of_its_logical_core() -> None:
    sixteen_gib = TensorType(F32, (4, 1 << 30))
    x = Parameter(0, TensorType(F32, ()), name="x")
    graph = Graph("large", (x,), (ops.Broadcast(x, sixteen_gib.shape, ()),))
    glia.compile(graph, target="trn2")
    for target, lnc in ("trn2", 1), ("trn1", 0):  # 12 and 16 GiB
        with pytest.raises(DeviceMemoryFull, match="logical core"):
            glia.compile(graph, target=target, logical_nc_config=lnc)


def test_the_verifier_leaves_what_no_memory_holds_to_the_placement() -> None:
    x = Parameter(0, TensorType(F32, ()), name="x")
    graph = Graph("huge", (x,), (ops.Broadcast(x, (80_000, 1_000_000), ()),))
    with pytest.raises(DeviceMemoryFull):
        glia.compile(graph, verify=True)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_a_sort_that_no_memory_holds_is_refused_before_its_network_is_made(target: str) -> None:
    a, b = (Parameter(n, TensorType(F32, ()), name="ab"[n]) for n in range(2))
    order = Graph("order", (a, b), (ops.Map("less", (a, b)),))
    x = Parameter(0, TensorType(F32, ()), name="x")
    wide = ops.Broadcast(x, (8, 1 << 31), ())
    first = ops.Slice(ops.Sort((wide,), 1, True, order), (0, 0), (8, 2), (1, 1))
    graph = Graph("sorted", (x,), (first,))
    with pytest.raises(DeviceMemoryFull, match=f"137438953472 bytes of HBM on {target}"):
        glia.compile(graph, target=target)
