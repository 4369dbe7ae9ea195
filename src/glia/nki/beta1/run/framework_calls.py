"""Kernels of either generation called with arrays of JAX or tensors of PyTorch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from glia.nki.beta1.api.creation import ndarray
from glia.nki.beta1.run.launch import Kernel, checked_grid
from glia.nki.beta1.tensors.buffers import shared_hbm
from glia.nki.run.frameworks import framework_of, from_numpy
from glia.nki.run.kernel import Kernel as CurrentKernel

KEPT_WRAPPERS = 256
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def nki_call(func: Any, *args: Any, grid: Any = (), out_shape: Any = None, **kwargs: Any) -> Any:
    """Call a kernel on arrays of JAX; while JAX traces a function, a call of its model.

    A kernel with more parameters than arguments gets new tensors like `out_shape` as its last
    arguments, and those are returned: the first release wrote its results to arguments. They hold
    nothing before. A kernel of the current generation returns its results.
    """
    if isinstance(func, CurrentKernel):
        return (func[grid] if grid else func)(*args, **kwargs)
    known = isinstance(func, Kernel)
    function = func.function if known else func
    options = func.options if known else {"mode": "trace"}
    dims = checked_grid(function, grid) if grid else func.grid if known else ()
    given = [from_numpy(each, "jax") if framework_of(each) == "numpy" else each for each in args]
    is_several = isinstance(out_shape, tuple | list)
    shapes = tuple(out_shape) if is_several else (out_shape,)
    if out_shape is None or _count_unbound_parameters(function, len(args), kwargs) < len(shapes):
        return Kernel(function, options, dims)(*given, **kwargs)
    results = tuple((tuple(each.shape), np.dtype(each.dtype)) for each in shapes)
    wrapper = _returning_results(function, results, is_several)
    return Kernel(wrapper, {**options, "mode": "trace"}, dims)(*given, **kwargs)


def _count_unbound_parameters(function: Any, count: int, kwargs: dict[str, Any]) -> int:
    """The number of positional parameters with neither an argument nor a default."""
    parameters = inspect.signature(function).parameters.values()
    positional = [p for p in parameters if p.kind in _POSITIONAL][count:]
    return sum(p.default is p.empty and p.name not in kwargs for p in positional)


@functools.lru_cache(maxsize=KEPT_WRAPPERS)
def _returning_results(
    function: Any, results: tuple[tuple[tuple[int, ...], np.dtype], ...], is_several: bool
) -> Any:
    """A kernel that creates the output tensors of `function`, passes and returns them."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        made = [ndarray(shape, dtype, buffer=shared_hbm) for shape, dtype in results]
        function(*args, *made, **kwargs)
        return tuple(made) if is_several else made[0]

    signature = inspect.signature(function)
    left = [p for p in signature.parameters.values() if p.kind in _POSITIONAL][: -len(results)]
    others = [p for p in signature.parameters.values() if p.kind not in _POSITIONAL]
    bound = signature.replace(parameters=[*left, *others])
    wrapper.__signature__ = bound  # type: ignore[attr-defined]  # which inspect reads
    return wrapper


def wrap_nki(kernel: Any) -> Callable[..., Any]:
    """A kernel as an operation on tensors of PyTorch in host memory, also as `wrapped[grid]`."""
    return kernel if hasattr(kernel, "function") else Kernel(kernel, {"mode": "auto"})
