"""`FrameworkKernel`: the base of what passes a kernel to a framework as a custom call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from glia.neff.kernels import write_kernel
from glia.nki.beta1.launch import Kernel, checked_grid
from glia.nki.frameworks import framework_of
from glia.nki.launch import bind


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
