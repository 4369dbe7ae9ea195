"""Kernels as operations of PyTorch, on tensors with contents and on fake and meta tensors."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from glia.custom_call.backend_config import RAW_CONFIG, write_kernel
from glia.graph.ops.control import KERNEL
from glia.machine.ir import Binding
from glia.neff.package import Neff
from glia.nki.names.dtypes import DTYPES, dtype_name
from glia.nki.names.errors import NoDerivative
from glia.nki.names.targets import model_target, platform_target
from glia.nki.run.frameworks import (
    framework_of,
    is_empty,
    is_of_torch_xla,
    leaves,
    map_leaves,
    torch_dtype,
)
from glia.nki.run.launch import bind, flatten_outputs, restore_structure
from glia.plugins.torch.device.device_memory import (
    as_host,
    check_devices,
    is_on_device,
    on_device,
)

OPERATORS: dict[Any, Callable[..., Any]] = {}
"""The function of each operation that `nki_op` has made: what it computes, kernels and all."""

LIBRARY = torch.library.Library("glia", "FRAGMENT")
LIBRARY.define("nki_kernel(Tensor[] operands, str config, str results) -> Tensor[]")


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
    OPERATORS[made._opoverload] = function
    return made


def call(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results of a kernel; without contents where an argument has none.

    They are on the device of the arguments, whose memory the kernel reads and writes; with
    arguments of torch_xla the kernel becomes part of the program. They join the autograd graph of
    the arguments, so that a gradient through the kernel raises NoDerivative. MixedDevices for
    arguments on several devices.
    """
    given = [each for each in leaves([args, kwargs]) if framework_of(each) == "torch"]
    if any(is_empty(each) for each in given):
        return _without_contents(kernel, args, kwargs, given[0].device)
    check_devices(kernel.__name__, given)
    if any(is_of_torch_xla(each) for each in given):
        detached = _tensors_mapped([args, kwargs], torch.Tensor.detach)
        returned = _in_a_graph(kernel, *detached)
    else:
        args, kwargs = _tensors_mapped([args, kwargs], host_contents)
        returned = kernel(*args, **kwargs)
    core = next((each.device.index or 0 for each in given if is_on_device(each)), None)
    results = flatten_outputs(returned, wrote=True)
    if core is not None:
        results = [on_device(each, core) for each in results]
    differentiated = [each for each in given if each.requires_grad]
    values = _KernelFunction.apply(kernel.__name__, results, *differentiated)
    return restore_structure(returned, list(values or ()))


def host_contents(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its gradient, in the host's view of its memory."""
    return as_host(tensor.detach()) if is_on_device(tensor) else tensor.detach()


class _KernelFunction(torch.autograd.Function):  # type: ignore[misc]  # no types of torch
    """An autograd function around a kernel's results; its gradient raises NoDerivative."""

    @staticmethod
    def forward(ctx: Any, name: str, results: list[Any], *_: Any) -> tuple[Any, ...]:
        """Return the results unchanged."""
        ctx.name = name
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Raise NoDerivative: the kernel declares no gradient."""
        raise NoDerivative(kernel=ctx.name)


def _without_contents(
    kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
) -> Any:
    """Empty tensors of the results' shapes and dtypes, on a device."""
    if get_proxy_mode() is not None:
        return _in_a_graph(kernel, args, kwargs)
    launch = bind(kernel.function, *_tensors_mapped([args, kwargs], _zeros))
    traced = kernel.traced_launch(launch, platform_target(), synchronises=False)
    outputs = {b.name: b for program in traced.programs for b in program.outputs}
    made = [_empty(outputs[name], device) for name in traced.results]
    return restore_structure(traced.structure, made)


def _empty(binding: Binding, device: torch.device) -> torch.Tensor:
    """A tensor without contents for a result of a kernel."""
    dtype = torch_dtype(dtype_name(binding.dtype.numpy) or "")
    return torch.empty(binding.shape, dtype=dtype, device=device)


def _in_a_graph(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results of a kernel in a graph that is made: of an operation that holds its program."""
    tensors: dict[int, torch.Tensor] = {}

    def stand_in(tensor: torch.Tensor) -> np.ndarray:
        zeros = _zeros(tensor)
        tensors[id(zeros)] = tensor
        return zeros

    launch = bind(kernel.function, *_tensors_mapped([args, kwargs], stand_in))
    traced = kernel.traced_launch(launch, model_target(), synchronises=False)
    outputs = Neff(traced.programs).outputs
    kinds = [[list(b.shape), dtype_name(b.dtype.numpy)] for b in outputs]
    values = torch.ops.glia.nki_kernel(
        [tensors[id(each)] for each in launch.given.values()],
        write_kernel(traced.programs, traced.fixed),
        json.dumps(kinds),
    )
    return restore_structure(traced.structure, list(values[: len(traced.results)]))


def _described(operands: list[torch.Tensor], config: str, results: str) -> list[torch.Tensor]:
    """Tensors without contents for the results of a kernel in a graph."""
    kinds = json.loads(results)
    device = operands[0].device if operands else None
    return [torch.empty(s, dtype=torch_dtype(name), device=device) for s, name in kinds]


torch.library.register_fake("glia::nki_kernel", _described, lib=LIBRARY)


def _by_torch_xla(operands: list[torch.Tensor], config: str, results: str) -> list[torch.Tensor]:
    """The results of a kernel in the program that torch_xla collects, as a call of the kernel."""
    library = importlib.import_module("_XLAC")
    kinds = json.loads(results)
    shapes, dtypes = [shape for shape, _ in kinds], [torch_dtype(name) for _, name in kinds]
    made: list[torch.Tensor] = library._xla_custom_call(
        operands, KERNEL, shapes, dtypes, False, config, RAW_CONFIG, {}
    )
    return made


LIBRARY.impl("nki_kernel", _by_torch_xla, "XLA")


def _zeros(tensor: torch.Tensor) -> np.ndarray:
    """An array of the shape and dtype of a tensor."""
    name = dtype_name(str(tensor.dtype).removeprefix("torch."))
    dtype = DTYPES[name].numpy if name else np.dtype(str(tensor.dtype).removeprefix("torch."))
    return np.zeros(tuple(int(each) for each in tensor.shape), dtype)


def _tensors_mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The value with `change` applied to every tensor in tuples, lists and dicts."""
    return map_leaves(value, lambda each: change(each) if framework_of(each) == "torch" else each)
