"""Run a kernel or a machine program on arrays, on the simulated core."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from glia.machine.ir import Program
from glia.nki.trace import Kernel, trace
from glia.sim.run import run


def simulate(kernel: Kernel | Program, *, target: str = "trn2") -> Callable[..., Any]:
    """A function that takes the kernel's arguments, with NumPy arrays for its tensors.

    A machine program takes its inputs in order. What comes back is the array of the one output,
    or a tuple when there are several. Inputs are not changed. Raises what `glia.nki.trace.trace`
    does.
    """

    def simulated(*arguments: Any, **constants: Any) -> Any:
        if isinstance(kernel, Program):
            program = kernel
            inputs = {b.name: a for b, a in zip(program.inputs, arguments, strict=True)}
        else:
            program = trace(kernel, *arguments, target=target, **constants)
            given = inspect.signature(kernel).bind(*arguments, **constants).arguments
            inputs = {n: value for n, value in given.items() if isinstance(value, np.ndarray)}
        results = run(program, inputs)
        outputs = [results[binding.name] for binding in program.outputs]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return simulated
