"""Kernels as operations of PyTorch, on tensors in host memory and on such as have no contents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from glia.nki.dtypes import DTYPES, dtype_name
from glia.nki.errors import NoDerivative
from glia.nki.frameworks import framework_of, torch_dtype
from glia.nki.launch import bind, like_returned, outputs_of
from glia.nki.targets import platform_target


def nki_op(name: str, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Register a function that calls kernels as the operation `name` ("library::operation").

    Usable as a decorator; `mutates_args` and all other options are those of
    torch.library.custom_op, which it returns. torch.compile keeps such an operation whole; the
    shapes of its results are those that the function has for tensors without contents, unless
    `register_fake` says otherwise. `register_autograd` gives it a gradient.
    """
    if function is None:
        return lambda decorated: nki_op(name, decorated, **options)
    made = torch.library.custom_op(name, function, **options)
    made.register_fake(function)
    return made


def call(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results of a kernel, without contents where its arguments have none.

    They belong to the graph of gradients as the arguments do, so that NoDerivative says where a
    gradient would be lost.
    """
    given = _tensors([*args, kwargs])
    if any(_is_empty(each) for each in given):
        return _without_contents(kernel, args, kwargs, given[0].device)
    returned = kernel(*_mapped(list(args), _detached), **_mapped(kwargs, _detached))
    asking = [each for each in given if each.requires_grad]
    values = _Kernel.apply(kernel.__name__, outputs_of(returned, wrote=True), *asking)
    return like_returned(returned, list(values or ()))


class _Kernel(torch.autograd.Function):
    """Results of a kernel, whose gradient is refused."""

    @staticmethod
    def forward(ctx: Any, name: str, results: list[Any], *_: Any) -> tuple[Any, ...]:
        """The results as they are."""
        ctx.name = name
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Nobody said what it is."""
        raise NoDerivative(kernel=ctx.name)


def _is_empty(tensor: torch.Tensor) -> bool:
    """Whether it has a shape and no contents."""
    return tensor.is_meta or type(tensor).__name__ == "FakeTensor"


def _without_contents(
    kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
) -> Any:
    """Tensors of the shapes and dtypes of the results, on a device."""
    launch = bind(kernel.function, tuple(_mapped(list(args), _zeros)), _mapped(kwargs, _zeros))
    traced = kernel.traced_launch(launch, platform_target(), synchronises=False)
    outputs = {b.name: b for program in traced.programs for b in program.outputs}
    results = [outputs[name] for name in traced.results]
    dtypes = [torch_dtype(dtype_name(binding.dtype.numpy) or "") for binding in results]
    made = [
        torch.empty(binding.shape, dtype=dtype, device=device)
        for binding, dtype in zip(results, dtypes, strict=True)
    ]
    return like_returned(traced.structure, made)


def _zeros(tensor: torch.Tensor) -> np.ndarray:
    """An array of the shape and dtype of a tensor."""
    name = dtype_name(str(tensor.dtype).removeprefix("torch."))
    dtype = DTYPES[name].numpy if name else np.dtype(str(tensor.dtype).removeprefix("torch."))
    return np.zeros(tuple(int(each) for each in tensor.shape), dtype)


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach()


def _mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The value with every tensor changed, those in tuples, lists and dicts too."""
    if isinstance(value, tuple | list):
        return type(value)(_mapped(each, change) for each in value)
    if isinstance(value, dict):
        return {name: _mapped(each, change) for name, each in value.items()}
    return change(value) if framework_of(value) == "torch" else value


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of a value, also those in tuples, lists and dicts."""
    found: list[torch.Tensor] = []
    _mapped(value, found.append)
    return found
