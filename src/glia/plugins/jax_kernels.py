"""A kernel called while JAX traces a function: it becomes a custom call of the model.

The custom call holds the kernel's own program, so that the model can be compiled anywhere; the
compiler puts the program where the call is.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from glia.neff.kernels import write_kernel
from glia.nki.errors import BadLaunch
from glia.nki.frameworks import framework_of
from glia.nki.kernel import Kernel
from glia.nki.launch import bind, like_returned
from glia.nki.targets import model_target
from glia.nki.trace import trace_launch

TARGET = "AwsNeuronCustomNativeKernel"
_RAW_CONFIG = 2  # the version of the custom-call interface whose config is the string itself


def call(kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results of a kernel, as values of the function being traced.

    All arrays among the arguments are operands, everything else is a constant of the kernel. What
    the kernel does to its arguments stays inside. BadLaunch for a kernel on a grid; raises what
    tracing the kernel raises.
    """
    if kernel.ranks > 1:
        problem = f"inside a model it runs on one core, not on a grid of {kernel.ranks}"
        raise BadLaunch(kernel=kernel.__name__, problem=problem)
    operands: dict[int, Any] = {}
    shaped_args, shaped = _shaped([list(args), kwargs], operands)
    launch = bind(kernel.function, tuple(shaped_args), shaped)
    traced = trace_launch(launch, model_target(), 0, synchronises=False)
    (program,) = traced.programs
    results = [jax.ShapeDtypeStruct(b.shape, b.dtype.numpy) for b in program.outputs]
    called = jax.ffi.ffi_call(
        TARGET,
        results,
        custom_call_api_version=_RAW_CONFIG,
        legacy_backend_config=write_kernel(program, traced.fixed),
    )
    values = called(*(operands[id(array)] for array in launch.given.values()))
    return like_returned(traced.structure, list(values[: len(traced.results)]))


def _shaped(value: Any, operands: dict[int, Any]) -> Any:
    """The arguments with an array of zeros for each of JAX's; `operands` are those by its id."""
    if isinstance(value, tuple | list):
        return type(value)(_shaped(each, operands) for each in value)
    if isinstance(value, dict):
        return {name: _shaped(each, operands) for name, each in value.items()}
    if not framework_of(value):
        return value
    stand_in = np.zeros(value.shape, value.dtype)
    operands[id(stand_in)] = value
    return stand_in
