"""Kernels that the vendor ships inside neuronxcc: those that glia has, and that the others miss."""

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
    """A `__getattr__` for the module of this name, whose other kernels glia does not have."""

    def lookup(name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotShipped(module=module, name=name, loc=caller())

    return lookup


def from_current(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the current generation for kernels of this one to call.

    It takes their tensors of HBM, and writes those that are no parameters; tensors that it makes
    come back as tensors of this generation.
    """

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        frame = require_frame(function.__name__)
        given: dict[str, Tensor] = {}
        positional = [_to_current(each, given) for each in args]
        named = {name: _to_current(each, given) for name, each in kwargs.items()}
        returned = function(*positional, **named)
        if isinstance(returned, tuple | list):
            return type(returned)(_to_beta1(frame, each, given) for each in returned)
        return _to_beta1(frame, returned, given)

    return called


def _to_current(value: Any, given: dict[str, Tensor]) -> Any:
    """A tensor, or tensors, as the current generation has them; anything else as it is."""
    if isinstance(value, list):
        return [_to_current(each, given) for each in value]
    if not isinstance(value, Tensor):
        return value
    is_read = value.storage.is_constant
    view = value.read_view() if is_read else value.write_view(is_partial=True)
    given[view.name] = value
    return view


def _to_beta1(frame: Frame, value: Any, given: dict[str, Tensor]) -> Any:
    """What a function returns, a tensor that it was given as that tensor."""
    if not isinstance(value, NkiTensor):
        return value
    if value.name in given:
        return given[value.name]
    return Tensor.whole(Storage.of(frame, value, frame.unique_name("", "result"), shared_hbm))
