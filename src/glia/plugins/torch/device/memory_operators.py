"""Operators that make, view, move or set memory of the device, without a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from glia.plugins.torch.device.device_memory import (
    as_host,
    check_devices,
    checked_index,
    is_on_device,
    on_device,
)
from glia.plugins.torch.device.registration import enter

aten = torch.ops.aten

_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

# Kernels of PyTorch that look only at sizes, strides and storage
_METADATA = (
    aten.as_strided.default, aten.view.default, aten._reshape_alias.default, aten.unfold.default,
    aten.view_as_real.default, aten.view_as_complex.default,
    aten.set_.source_Storage, aten.set_.source_Storage_storage_offset, aten.set_.source_Tensor,
)  # fmt: skip

# What the runtime does by copying: no engine computes
_MOVES = (aten.clone.default, aten.cat.default, aten.fill_.Scalar, aten.zero_.default)


def _for_host(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_for_host(each) for each in value]
    return as_host(value) if is_on_device(value) else value


def _moving(operator: Any) -> Callable[..., Any]:
    """An operator that the host does in the device's memory."""
    is_written = bool(operator._schema.is_mutable)

    def moved(first: Any, *rest: Any, **kwargs: Any) -> Any:
        if isinstance(first, list):
            check_devices(str(operator), first)
        found = operator(_for_host(first), *map(_for_host, rest), **kwargs)
        if is_written:
            return first
        source = first if isinstance(first, torch.Tensor) else next(filter(is_on_device, first))
        return on_device(found, source.device.index)

    return moved


def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    _for_host(target).copy_(_for_host(source))
    return target


def _copy_from(
    source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    return _copy(target, source)


def _copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return _copy(target.resize_(source.shape), source)


def _empty(
    size: Sequence[int],
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    made = torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format)
    return on_device(made, checked_index(device))


def _empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    return on_device(torch.empty_strided(size, stride, dtype=dtype), checked_index(device))


def _resize(
    tensor: torch.Tensor, size: Sequence[int], memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    """A tensor with another size; elements keep their places in memory."""
    count = torch.Size(size).numel()
    held = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    if count <= held:
        strides = torch.empty(size, device="meta").stride()
        return tensor.set_(tensor.untyped_storage(), tensor.storage_offset(), size, strides)
    grown = torch.empty(count, dtype=tensor.dtype)
    as_seen = torch._conj(grown) if tensor.is_conj() else grown
    as_seen = torch._neg_view(as_seen) if tensor.is_neg() else as_seen
    as_seen[:held].copy_(as_host(tensor.as_strided((held,), (1,))))
    return tensor.set_(on_device(grown.view(size), tensor.device.index))


def _item(tensor: torch.Tensor) -> Any:
    return as_host(tensor).item()


def _pinned(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """A copy of a tensor of the host, whose memory the device reads wherever it lies."""
    return tensor.clone()


def register(library: torch.library.Library) -> None:
    """Enter these operators as those of the device."""
    enter(library, "_pin_memory", _pinned, "CPU")
    for operator in _METADATA:
        enter(library, operator, _redispatched(operator))
    for operator in _MOVES:
        enter(library, operator, _moving(operator))
    for name, function in _OTHERS.items():
        enter(library, name, function)


_OTHERS: dict[str, Callable[..., Any]] = {
    "copy_": _copy,
    "_copy_from": _copy_from,
    "_copy_from_and_resize": _copy_from_and_resize,
    "empty.memory_format": _empty,
    "empty_strided": _empty_strided,
    "resize_": _resize,
    "_local_scalar_dense": _item,
}


def _redispatched(operator: Any) -> Callable[..., Any]:
    """An operator's kernel for the host, which has no need of the elements."""
    return lambda *args, **kwargs: operator.redispatch(_CPU, *args, **kwargs)
