"""Running a kernel of Beta 1 in both ways: step by step, and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from glia.nki import beta1 as nki
from glia.nki.beta1.run.launch import Kernel, trace_call
from glia.sim.policy import Policy
from glia.sim.run import run

Array = np.ndarray[Any, Any]


def both(kernel: Any, *arrays: Array) -> Array:
    """What a kernel returns, which is the same in both ways, bit by bit."""
    known = kernel if isinstance(kernel, Kernel) else nki.jit(kernel)
    simulated = nki.simulate_kernel(known, *arrays)
    np.testing.assert_array_equal(simulated, on_device(known, *arrays))
    return simulated


def on_device(kernel: Kernel, *arrays: Array) -> Array:
    """The one result of the program that a kernel is compiled to."""
    traced = trace_call(kernel, arrays, {})
    (program,), (result,) = traced.programs, traced.results
    inputs = dict(zip((each.name for each in program.inputs), arrays, strict=True))
    return run(program, inputs, policy=Policy(check_initialized=True))[result]
