"""Tensors of the device `neuron`, and the same memory as tensors of the host.

Device memory is simulated, and lies in that of the host. A tensor changes sides without a copy by
DLPack: what PyTorch exports from one device it imports for the other, with the header changed.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from glia.plugins.pjrt.visible_cores import visible_cores
from glia.plugins.torch.errors import MixedDevices, NoSuchCore, SparseOnDevice
from glia.runtime.borrowed import rename_device

NAME = "neuron"

_HOST, _EXTENSION = 1, 12  # kDLCPU and kDLExtDev (source: dlpack.h)


def _moved(tensor: torch.Tensor, kind: int, index: int) -> torch.Tensor:
    """A tensor of another device in the same memory, which it keeps.

    DLPack does not say that elements are the conjugates or negatives of what lies in memory.
    """
    capsule = torch._C._to_dlpack(tensor)
    rename_device(capsule, kind, index)
    moved = torch._C._from_dlpack(capsule)
    if tensor.is_conj():
        moved = torch._conj(moved)
    return torch._neg_view(moved) if tensor.is_neg() else moved


def on_device(host: torch.Tensor, index: int = 0) -> torch.Tensor:
    """A tensor on core `index` that has the memory of one of the host.

    SparseOnDevice where that is not dense.
    """
    if host.layout is not torch.strided:
        raise SparseOnDevice(problem=f"a tensor would be of layout {host.layout}")
    if index:
        # PyTorch gives backward threads to core 0 only; the others' gradients are for the caller
        torch._C._set_multithreading_enabled(False)
    return _moved(host, _EXTENSION, index)


def as_host(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the host that has the memory of one on the device."""
    return _moved(tensor, _HOST, 0)


def is_on_device(value: object) -> bool:
    """Whether a value is a tensor on the device."""
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def core_count() -> int:
    """How many logical NeuronCores the process sees."""
    return visible_cores().count


def checked_index(device: torch.device | str | int | None) -> int:
    """The number of the core that a device names; 0 for none. NoSuchCore if there is none such."""
    if device is None:
        return 0
    index = device if isinstance(device, int) else torch.device(device).index or 0
    if index and not 0 <= index < core_count():
        raise NoSuchCore(index=index, count=core_count(), last=core_count() - 1)
    return index


def check_devices(operator: str, tensors: Iterable[torch.Tensor]) -> None:
    """Raise MixedDevices unless all tensors but numbers are on one core."""
    devices = {str(t.device) for t in tensors if t.dim() or is_on_device(t)}
    if len(devices) > 1:
        raise MixedDevices(operator=operator, devices=" and ".join(sorted(devices)))
