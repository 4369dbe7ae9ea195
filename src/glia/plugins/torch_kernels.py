"""Kernels as operations of PyTorch, on tensors in host memory and on such as have no contents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from glia.nki.names.dtypes import DTYPES, dtype_name
from glia.nki.names.errors import NoDerivative
from glia.nki.names.targets import platform_target
from glia.nki.run.frameworks import framework_of, is_empty, leaves, map_leaves, torch_dtype
from glia.nki.run.launch import bind, flatten_outputs, restore_structure


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
    given = [each for each in leaves([args, kwargs]) if framework_of(each) == "torch"]
    if any(is_empty(each) for each in given):
        return _without_contents(kernel, args, kwargs, given[0].device)
    args, kwargs = _tensors_mapped([args, kwargs], torch.Tensor.detach)
    returned = kernel(*args, **kwargs)
    asking = [each for each in given if each.requires_grad]
    values = _Kernel.apply(kernel.__name__, flatten_outputs(returned, wrote=True), *asking)
    return restore_structure(returned, list(values or ()))


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


def _without_contents(
    kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
) -> Any:
    """Tensors of the shapes and dtypes of the results, on a device."""
    launch = bind(kernel.function, *_tensors_mapped([args, kwargs], _zeros))
    traced = kernel.traced_launch(launch, platform_target(), synchronises=False)
    outputs = {b.name: b for program in traced.programs for b in program.outputs}
    results = [outputs[name] for name in traced.results]
    dtypes = [torch_dtype(dtype_name(binding.dtype.numpy) or "") for binding in results]
    made = [
        torch.empty(binding.shape, dtype=dtype, device=device)
        for binding, dtype in zip(results, dtypes, strict=True)
    ]
    return restore_structure(traced.structure, made)


def _zeros(tensor: torch.Tensor) -> np.ndarray:
    """An array of the shape and dtype of a tensor."""
    name = dtype_name(str(tensor.dtype).removeprefix("torch."))
    dtype = DTYPES[name].numpy if name else np.dtype(str(tensor.dtype).removeprefix("torch."))
    return np.zeros(tuple(int(each) for each in tensor.shape), dtype)


def _tensors_mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The value with every tensor changed, those in tuples, lists and dicts too."""
    return map_leaves(value, lambda each: change(each) if framework_of(each) == "torch" else each)
