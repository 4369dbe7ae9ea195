"""Run a kernel on arrays: traced for their shapes, executed on the simulated core."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from glia.nki.trace import Kernel, trace
from glia.sim.run import run


def simulate(kernel: Kernel, *, target: str = "trn2") -> Callable[..., Any]:
    """A function that takes the kernel's arguments, with NumPy arrays for its tensors.

    It returns the array of the kernel's one output, or a tuple when it has several. Inputs are
    not changed. Raises what `glia.nki.trace.trace` does.
    """

    def simulated(*arguments: Any, **constants: Any) -> Any:
        program = trace(kernel, *arguments, target=target, **constants)
        given = inspect.signature(kernel).bind(*arguments, **constants).arguments
        inputs = {n: value for n, value in given.items() if isinstance(value, np.ndarray)}
        results = run(program, inputs)
        outputs = [results[binding.name] for binding in program.outputs]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return simulated
