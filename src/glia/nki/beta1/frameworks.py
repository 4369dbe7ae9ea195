"""Kernels of either generation called with arrays of JAX or tensors of PyTorch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from glia.nki.beta1.launch import Kernel, checked_grid
from glia.nki.frameworks import from_numpy, to_numpy


def nki_call(func: Any, *args: Any, grid: Any = (), out_shape: Any = None, **kwargs: Any) -> Any:
    """Call a kernel on arrays of JAX that have values.

    A kernel that returns nothing gets new arrays like `out_shape` as its last arguments, and those
    are returned: the first release wrote its results to arguments.
    """
    known = isinstance(func, Kernel)
    function = func.function if known else func
    options = func.options if known else {"mode": "trace"}
    dims = checked_grid(function, grid) if grid else func.grid if known else ()
    kernel = Kernel(function, options, dims)
    shapes = out_shape if isinstance(out_shape, tuple | list) else (out_shape,)
    count = len(inspect.signature(function).parameters) - len(args) - len(kwargs)
    if out_shape is None or count < len(shapes):
        return kernel(*args, **kwargs)
    inputs = [to_numpy(each) if hasattr(each, "dtype") else each for each in args]
    outputs = [np.zeros(each.shape, np.dtype(each.dtype)) for each in shapes]
    Kernel(function, {**options, "mode": "trace"}, dims)(*inputs, *outputs, **kwargs)
    found = [from_numpy(each, "jax") for each in outputs]
    return tuple(found) if isinstance(out_shape, tuple | list) else found[0]


def wrap_nki(kernel: Any) -> Callable[..., Any]:
    """A kernel as an operation on tensors of PyTorch in host memory, also as `wrapped[grid]`."""
    return kernel if hasattr(kernel, "function") else Kernel(kernel, {"mode": "auto"})
