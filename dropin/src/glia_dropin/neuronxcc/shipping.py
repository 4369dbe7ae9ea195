"""Shipped kernels: adapting kernels of the current NKI to Beta 1, reporting missing ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from glia.nki.beta1.errors import NotShipped
from glia.nki.beta1.run.frame import Frame, require_frame
from glia.nki.beta1.tensors.buffers import shared_hbm
from glia.nki.beta1.tensors.storage import Storage
from glia.nki.beta1.tensors.tensor import Tensor
from glia.nki.session.session import caller
from glia.nki.tensors.nki_tensor import NkiTensor


def missing_kernel(module: str) -> Callable[[str], object]:
    """A module `__getattr__` that raises NotShipped for kernels that glia does not have."""

    def lookup(name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotShipped(module=module, name=name, loc=caller())

    return lookup


def adapt_to_beta1(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the current NKI as one that Beta 1 kernels can call.

    Beta 1 tensors in HBM are passed as core tensors, writable unless they are constant parameters;
    core tensors that it returns become Beta 1 tensors.
    """

    @functools.wraps(function)
    def adapted(*args: Any, **kwargs: Any) -> Any:
        frame = require_frame(function.__name__)
        views: dict[str, Tensor] = {}
        positional = [_to_current(each, views) for each in args]
        named = {name: _to_current(each, views) for name, each in kwargs.items()}
        returned = function(*positional, **named)
        if isinstance(returned, tuple | list):
            return type(returned)(_to_beta1(frame, each, views) for each in returned)
        return _to_beta1(frame, returned, views)

    return adapted


def _to_current(value: Any, views: dict[str, Tensor]) -> Any:
    """The core tensor of a Beta 1 tensor, entered in `views` by name; lists element-wise."""
    if isinstance(value, list):
        return [_to_current(each, views) for each in value]
    if not isinstance(value, Tensor):
        return value
    is_read = value.storage.is_constant
    view = value.read_view() if is_read else value.write_view(is_partial=True)
    views[view.name] = value
    return view


def _to_beta1(frame: Frame, value: Any, views: dict[str, Tensor]) -> Any:
    """The Beta 1 tensor of a returned core tensor: the argument it is a view of, or a new one."""
    if not isinstance(value, NkiTensor):
        return value
    if value.name in views:
        return views[value.name]
    return Tensor.of_storage(
        Storage.wrap(frame, value, frame.unique_name("", "result"), shared_hbm)
    )
