"""`FrameworkKernel`: base class of kernels that a framework embeds as custom calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from glia.custom_call.backend_config import write_kernel
from glia.nki.beta1.run.launch import Kernel, checked_grid
from glia.nki.run.frameworks import framework_of
from glia.nki.run.launch import bind


class FrameworkKernel:
    """A kernel for arrays of a framework. Subclasses say what its arrays and dtypes are."""

    def __init__(self, func_name: str = "", func: Callable[..., Any] | None = None,
                 grid: Any = (), **options: Any) -> None:  # fmt: skip
        self.func_name = func_name
        self.func = func
        self.grid = grid
        self.options = options

    def dump_config(self, *args: Any, **kwargs: Any) -> tuple[str, list[str], list[str]]:
        """(backend_config, input names, output names) of the kernel for these arguments.

        A model whose custom call of AwsNeuronCustomNativeKernel has that config compiles with the
        kernel in it.
        """
        assert self.func is not None
        grid = checked_grid(self.func, self.grid) if self.grid else ()
        arrays = [self._example(each) for each in args]
        named = {name: self._example(value) for name, value in kwargs.items()}
        kernel = Kernel(self.func, {"mode": "trace", **self.options}, grid)
        launch = bind(self.func, tuple(arrays), named)
        traced = kernel.traced_launch(launch, kernel.target(), synchronises=False)
        (program,) = traced.programs
        config = write_kernel([replace(program, name=self.func_name or program.name)], traced.fixed)
        return config, [b.name for b in program.inputs], [b.name for b in program.outputs]

    def _example(self, value: Any) -> Any:
        if not self.is_framework_tensor(value):
            return value
        shape, dtype = self.map_framework_tensor(value)
        return np.zeros(tuple(shape), self.translate_to_neuron_dtype(dtype))

    def is_framework_tensor(self, t: Any) -> bool:
        """Whether a value is a tensor; others are constants of the program."""
        return framework_of(t) is not None

    def map_framework_tensor(self, t: Any) -> tuple[Any, Any]:
        """(shape, dtype) of a tensor."""
        return t.shape, t.dtype

    def translate_to_neuron_dtype(self, _dtype: Any) -> Any:
        """A dtype of the framework as NumPy's."""
        return np.dtype(_dtype)


class UnifiedKernel(FrameworkKernel):
    """A kernel that a framework calls with arguments bound to its parameters."""

    @classmethod
    def trace(cls, func: Callable[..., Any], grid: Any = (), **options: Any) -> UnifiedKernel:
        """A function, or a kernel, as a kernel of this class."""
        plain = getattr(func, "function", func)
        return cls(plain.__name__, plain, grid or getattr(func, "grid", ()), **options)

    def __getitem__(self, grid: Any) -> UnifiedKernel:
        return type(self)(self.func_name, self.func, grid, **self.options)

    def dump_config_with_boundargs(
        self, boundargs: inspect.BoundArguments
    ) -> tuple[str, list[str], list[str]]:
        """`dump_config` of the arguments that a signature bound."""
        self._map_args(boundargs)
        return self.dump_config(*boundargs.args, **boundargs.kwargs)

    def _map_args(self, boundargs: inspect.BoundArguments) -> None:
        """Give parameters without an argument their defaults, which the program depends on too."""
        boundargs.apply_defaults()

    def _generate_hash_key(self, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        """The cache key of a program for these arguments: shapes and dtypes, other values."""
        return (self.grid, *((name, self._key(value)) for name, value in arguments.items()))

    def _key(self, value: Any) -> Any:
        if not self.is_framework_tensor(value):
            return value
        shape, dtype = self.map_framework_tensor(value)
        return tuple(shape), str(dtype)
