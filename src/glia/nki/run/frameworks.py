"""Arrays of NumPy, PyTorch and JAX as NumPy arrays and back, without importing a framework."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any, TypeVar, cast

import numpy as np

from glia.nki.names.dtypes import DTYPES, dtype_name
from glia.nki.names.errors import NotInNki

JAX_KERNELS, TORCH_KERNELS = "glia.plugins.jax.kernels", "glia.plugins.torch.kernels"
_TORCH_BITS = {2: "int16", 1: "uint8"}

Call = Callable[[], Any]
Function = TypeVar("Function", bound=Callable[..., Any])


def framework_of(value: Any) -> str | None:
    """ "numpy", "torch" or "jax" for their arrays, None for anything else."""
    if isinstance(value, np.ndarray):
        return "numpy"
    root = type(value).__module__.partition(".")[0]
    if root == "torch" and hasattr(value, "untyped_storage"):
        return "torch"
    is_array = hasattr(value, "dtype") and hasattr(value, "shape")
    return "jax" if root in ("jax", "jaxlib") and is_array else None


def framework_call(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """The framework's own way to call a kernel with these arguments; None for plain arrays.

    It applies where JAX traces a function, and to PyTorch tensors without contents, with
    gradients, on the device neuron or on one of torch_xla.
    """
    given = list(leaves([args, kwargs]))
    if any(_is_traced(each) for each in given):
        return partial(importlib.import_module(JAX_KERNELS).call, kernel, args, kwargs)
    if any(_needs_torch_operation(each) for each in given):
        return partial(importlib.import_module(TORCH_KERNELS).call, kernel, args, kwargs)
    return None


def _is_traced(value: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.core.Tracer)


def _needs_torch_operation(value: Any) -> bool:
    if framework_of(value) != "torch":
        return False
    asks = value.requires_grad and sys.modules["torch"].is_grad_enabled()
    return asks or is_empty(value) or is_on_neuron(value) or is_of_torch_xla(value)


def is_empty(tensor: Any) -> bool:
    """Whether a tensor of PyTorch is a meta or fake tensor, without contents."""
    return tensor.is_meta or type(tensor).__name__ == "FakeTensor"


def is_on_neuron(tensor: Any) -> bool:
    """Whether a tensor of PyTorch is on the device neuron."""
    return bool(tensor.device.type == "neuron")


def is_of_torch_xla(tensor: Any) -> bool:
    """Whether a tensor of PyTorch is on a device of torch_xla."""
    return bool(tensor.device.type == "xla")


def outside_torch_compile(function: Function) -> Function:
    """The function excluded from torch.compile, with everything it calls."""

    left: list[Any] = []

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        compiler = getattr(sys.modules.get("torch"), "compiler", None)
        if compiler is None:
            return function(*args, **kwargs)
        if not left:
            left.append(compiler.disable(function))
        return left[0](*args, **kwargs)

    return cast(Function, call)


def nki_op(name: str, function: Any = None, /, **options: Any) -> Any:
    """An operation of PyTorch that calls kernels: see `glia.plugins.torch.kernels.nki_op`."""
    return importlib.import_module(TORCH_KERNELS).nki_op(name, function, **options)


def leaves(value: Any) -> Iterator[Any]:
    """The leaves of nested tuples, lists and dicts."""
    if isinstance(value, tuple | list):
        for each in value:
            yield from leaves(each)
    elif isinstance(value, dict):
        yield from leaves([*value.values()])
    else:
        yield value


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with `change` applied to all its leaves."""
    if isinstance(value, tuple | list):
        return rebuild(value, [map_leaves(each, change) for each in value])
    if isinstance(value, dict):
        return {name: map_leaves(each, change) for name, each in value.items()}
    return change(value)


def rebuild(value: Any, elements: list[Any]) -> Any:
    """A tuple or list of the type of `value`, a named tuple too, with other elements."""
    return type(value)(*elements) if hasattr(value, "_fields") else type(value)(elements)


def to_numpy(value: Any) -> np.ndarray:
    """The contents as a NumPy array, that of a PyTorch tensor sharing its memory."""
    framework = framework_of(value)
    if framework == "torch":
        if is_on_neuron(value):
            value = importlib.import_module(TORCH_KERNELS).host_contents(value)
        return _from_torch(value.detach())
    if framework == "jax" and _is_traced(value):
        feature = (
            "an array that JAX traces (call the kernel itself there, not measured or simulated)"
        )
        raise NotInNki(feature=feature)
    return np.asarray(value)


def _from_torch(value: Any) -> np.ndarray:
    name = dtype_name(str(value.dtype).removeprefix("torch."))
    if name is None:
        feature = f"a tensor of {value.dtype} (convert it, integers to torch.int32)"
        raise NotInNki(feature=feature)
    if value.device.type not in ("cpu", "meta"):
        feature = f"a tensor on the device {value.device} (call the kernel with tensor.cpu())"
        raise NotInNki(feature=feature)
    try:
        if _is_extension_dtype(name):
            bits = getattr(sys.modules["torch"], _TORCH_BITS[value.element_size()])
            array: np.ndarray = value.view(bits).numpy().view(DTYPES[name].numpy)
        else:
            array = value.numpy()
    except RuntimeError as problem:
        feature = (
            "a wrapper tensor of a PyTorch transform (call the kernel in an operation of nki_op)"
        )
        raise NotInNki(feature=feature) from problem
    return array


def from_numpy(array: np.ndarray, framework: str) -> Any:
    """The array as one of the framework; NotInNki where that lacks its dtype."""
    if framework == "torch":
        return _as_torch(array)
    if framework == "jax":
        return sys.modules["jax"].numpy.asarray(array)
    return array


def _as_torch(array: np.ndarray) -> Any:
    torch = sys.modules["torch"]
    contents = np.ascontiguousarray(array)
    name = dtype_name(array.dtype)
    if name is None or not _is_extension_dtype(name):
        return torch.from_numpy(contents)
    return torch.from_numpy(contents.view(_TORCH_BITS[array.itemsize])).view(torch_dtype(name))


def torch_dtype(name: str) -> Any:
    """The dtype of PyTorch with a name of NKI; NotInNki where it has none."""
    found = getattr(sys.modules["torch"], name, None)
    if found is None:
        raise NotInNki(feature=f"a tensor of PyTorch of {name}, which PyTorch does not have,")
    return found


def _is_extension_dtype(name: str) -> bool:
    """Whether the dtype is one that NumPy itself lacks."""
    return name == "bfloat16" or name.startswith("float8")
