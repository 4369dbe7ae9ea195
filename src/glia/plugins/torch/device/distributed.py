"""The process group `neuron`: collectives of tensors on the device, among processes of this host.

Device memory is the host's, so Gloo exchanges it where it lies; nothing is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.utils._pytree import tree_map

from glia.plugins.torch.device.device_memory import NAME, as_host, is_on_device

COLLECTIVES = (
    "allreduce", "allreduce_coalesced", "broadcast", "allgather", "_allgather_base",
    "allgather_into_tensor_coalesced", "reduce", "reduce_scatter", "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced", "gather", "scatter", "alltoall", "alltoall_base", "send",
    "recv", "barrier",
)  # fmt: skip


class NeuronGroup(dist.ProcessGroup):  # type: ignore[misc]  # no types of torch
    """A process group that hands tensors of the device to Gloo as tensors of the host."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:  # noqa: N802  # PyTorch's name
        """The name under which the group is registered."""
        return NAME


def _collective(name: str) -> Callable[..., Any]:
    def call(self: NeuronGroup, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(_for_host, (args, kwargs))
        return getattr(self._gloo, name)(*args, **kwargs)

    call.__name__ = name
    return call


for _name in COLLECTIVES:
    setattr(NeuronGroup, _name, _collective(_name))


def _for_host(value: Any) -> Any:
    return as_host(value.detach()) if is_on_device(value) else value


def register() -> None:
    """Let torch.distributed.init_process_group("neuron") make such groups."""
    dist.Backend.register_backend(NAME, NeuronGroup, devices=[NAME, "cpu"])
