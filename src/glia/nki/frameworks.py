"""Arrays of NumPy, PyTorch and JAX as NumPy arrays and back, without importing a framework."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from glia.nki.dtypes import dtype_name

CALL_IN_MODEL = "glia.plugins.jax_kernels"  # what tells JAX of a call
_TORCH_BITS = {2: "int16", 1: "uint8", 4: "int32"}


def framework_of(value: Any) -> str | None:
    """ "numpy", "torch" or "jax" for their arrays, None for anything else."""
    if isinstance(value, np.ndarray):
        return "numpy"
    root = type(value).__module__.partition(".")[0]
    if root == "torch" and hasattr(value, "untyped_storage"):
        return "torch"
    is_array = hasattr(value, "dtype") and hasattr(value, "shape")
    return "jax" if root in ("jax", "jaxlib") and is_array else None


def are_traced(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an argument is one of JAX's that stand for arrays while a function is traced."""
    jax = sys.modules.get("jax")
    if jax is None:
        return False
    return any(isinstance(each, jax.core.Tracer) for each in _leaves((*args, *kwargs.values())))


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    """The values, those in tuples, lists and dicts one by one."""
    for each in values:
        if isinstance(each, tuple | list):
            yield from _leaves(each)
        elif isinstance(each, dict):
            yield from _leaves(each.values())
        else:
            yield each


def to_numpy(value: Any) -> np.ndarray:
    """The contents as a NumPy array, that of a PyTorch tensor sharing its memory."""
    framework = framework_of(value)
    if framework == "torch":
        return _from_torch(value.detach())
    return np.asarray(value)


def _from_torch(value: Any) -> np.ndarray:
    name = str(value.dtype).removeprefix("torch.")
    known = dtype_name(name)
    if name in ("bfloat16",) or name.startswith("float8"):
        torch = sys.modules["torch"]
        bits = value.view(getattr(torch, _TORCH_BITS[value.element_size()])).numpy()
        dtype = np.dtype(known) if known else bits.dtype
        return bits.view(dtype)
    return value.numpy()


def from_numpy(array: np.ndarray, framework: str) -> Any:
    """The array as one of the framework."""
    if framework == "torch":
        torch = sys.modules["torch"]
        name = dtype_name(array.dtype)
        if name == "bfloat16" or (name or "").startswith("float8"):
            bits = np.ascontiguousarray(array).view(_TORCH_BITS[array.itemsize])
            return torch.from_numpy(bits).view(getattr(torch, name or ""))
        return torch.from_numpy(np.ascontiguousarray(array))
    if framework == "jax":
        return sys.modules["jax"].numpy.asarray(array)
    return array
