"""`nki.compiler.kernel_builder`: programs of functions that take their outputs as parameters.

Its functions are those of `nl` under kernel_builder's names and parameters. Pipeline buffers
(num_buffers=), profile scopes and the release of tiles are accepted and ignored: glia allocates
tiles by their live ranges.
"""

from __future__ import annotations

import builtins
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glia.nki import language as nl
from glia.nki.beta1.tensors.dtypes import to_numpy_dtype
from glia.nki.language import (
    bfloat16,
    ds,
    float8_e4m3,
    float8_e5m2,
    float16,
    float32,
    hbm,
    int8,
    int16,
    int32,
    psum,
    sbuf,
    shared_hbm,
    tfloat32,
    uint8,
    uint16,
    uint32,
)
from glia.nki.names.dtypes import dtype_name
from glia.nki.names.enums import MemoryRegion
from glia.nki.names.errors import BadLaunch
from glia.nki.names.targets import platform_target
from glia.nki.run.launch import definition_loc
from glia.nki.session.session import current, is_running
from glia.nki.tensors.nki_tensor import NkiTensor
from glia.nki.tensors.registers import VirtualRegister
from glia_dropin.nki import kernel_builder_isa as isa
from glia_dropin.nki.driver import CompiledKernel, _compile_bir_to_neff
from glia_dropin.nki.frontends import Lowered, lower, map_output_names
from glia_dropin.nki.options import CompileOptions

range = builtins.range


@dataclass(frozen=True)
class Tensor:
    """Shape, dtype and memory of a parameter; as an annotation, that it is a tensor."""

    shape: tuple[int, ...]
    dtype: str
    memspace: MemoryRegion = shared_hbm

    def example(self) -> np.ndarray:
        """An array of this shape and dtype."""
        return np.zeros(self.shape, to_numpy_dtype(self.dtype))


def ndarray(
    shape: tuple[int, ...],
    dtype: str,
    memspace: MemoryRegion = sbuf,
    name: str | None = None,
    num_buffers: int = 1,
) -> NkiTensor:
    """A tensor in SBUF, or where `memspace` says."""
    del num_buffers  # tiles are allocated by their live ranges
    known = dtype if isinstance(dtype, str) else dtype_name(np.dtype(dtype))
    return nl.ndarray(tuple(shape), known, buffer=memspace, name=name or "")


def ndarray_like(tensor: NkiTensor) -> NkiTensor:
    """A tensor like another one, in the same memory."""
    return nl.ndarray(tensor.shape, tensor.dtype, buffer=tensor.buffer)


def ts(index: int | VirtualRegister, size: int) -> Any:
    """The slice of the `index`-th `size` elements."""
    return ds(index * size, size)


def fori_loop(bound: int | VirtualRegister, body_fun: Callable[[Any], Any] | None = None) -> Any:
    """Call body_fun(i) for i from 0 below `bound`; without it, a decorator that does.

    Up to a register this is a loop on the device. Up to a number it is unrolled, since bodies
    compute with i, which registers of NKI do not let them.
    """
    if body_fun is None:
        return functools.partial(fori_loop, bound)
    if isinstance(bound, VirtualRegister):
        nl.fori_loop(0, bound, body_fun)
    else:
        for i in range(bound):
            body_fun(i)
    return None


class compiler:  # noqa: N801 - callers write it as a module
    """Manual allocation of tiles, and profile scopes."""

    @staticmethod
    def alloc(
        shape: tuple[int, ...], dtype: str, space: MemoryRegion = sbuf, num_buffers: int = 1
    ) -> NkiTensor:
        """The same as ndarray."""
        return ndarray(shape, dtype, space, num_buffers=num_buffers)

    @staticmethod
    def release(tile: NkiTensor) -> None:
        """Does nothing: the memory of a tile is free after its last use."""

    @staticmethod
    @contextmanager
    def perfetto_group(name: str, loop_vars: Mapping[str, int] | None = None) -> Iterator[None]:
        """A named profile scope; ignored, since glia's profiles show the kernel's lines."""
        yield


@dataclass(frozen=True)
class TargetInfo:
    """The target that a kernel is for."""

    name: str


def get_target_info() -> TargetInfo:
    """The target that the running kernel is for, else that of the environment."""
    target = current("get_target_info").target if is_running() else platform_target()
    return TargetInfo(target.name)


def build_kernel(
    kernel: Any,
    input_specs: Mapping[str, Tensor],
    output_specs: Mapping[str, Tensor] | None = None,
    compile_opts: CompileOptions | None = None,
    **constants: Any,
) -> Lowered:
    """The program of a function whose parameters are tensors, read or written, and constants.

    Written ones, `output_specs`, are the outputs of the program, under their names.
    """
    given = {name: each.example() for name, each in input_specs.items()}
    written = {name: each.example() for name, each in (output_specs or {}).items()}
    return _lower_with_outputs(kernel, given, written, compile_opts or CompileOptions(), constants)


def compile_kernel(
    kernel: Any,
    inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray] | None = None,
    compile_opts: CompileOptions | None = None,
    return_outputs: bool = False,
    **constants: Any,
) -> CompiledKernel:
    """The NEFF of a function whose parameters `outputs` it writes, for arrays like these.

    With `return_outputs` the kernel returns its outputs in place of that.
    """
    if return_outputs and outputs:
        problem = "return_outputs=True with outputs that it writes"
        raise BadLaunch(kernel=definition_loc(kernel).name, problem=problem)
    options = compile_opts or CompileOptions()
    built = _lower_with_outputs(kernel, dict(inputs), dict(outputs or {}), options, constants)
    return _compile_bir_to_neff(built, options)


def compile_and_execute(
    kernel: Any,
    inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    compile_opts: CompileOptions | None = None,
    **constants: Any,
) -> CompiledKernel:
    """Compile, run on these arrays and overwrite `outputs`."""
    compiled = compile_kernel(kernel, inputs, outputs, compile_opts, **constants)
    compiled.execute(inputs, outputs)
    return compiled


def _lower_with_outputs(
    kernel: Any,
    inputs: dict[str, Any],
    outputs: dict[str, Any],
    options: CompileOptions,
    constants: dict[str, Any],
) -> Lowered:
    given = {**inputs, **outputs, **constants}
    lowered = lower(_declare_parameters(kernel, given), given, options)
    traced = lowered.traced
    written = dict(traced.updated)
    unwritten = [name for name in outputs if name not in written]
    if unwritten:
        problem = f"it does not write its output {unwritten[0]}"
        raise BadLaunch(kernel=lowered.function_name, problem=problem)
    traced = map_output_names(traced, {written[name]: name for name in outputs})
    programs = tuple(
        replace(each, inputs=tuple(b for b in each.inputs if b.name not in outputs))
        for each in traced.programs
    )
    return replace(lowered, traced=replace(traced, programs=programs))


def _declare_parameters(kernel: Any, names: Mapping[str, Any]) -> Any:
    """The function; one of **kwargs alone gets a signature with these parameter names."""
    kinds = [each.kind for each in inspect.signature(kernel).parameters.values()]
    if kinds != [inspect.Parameter.VAR_KEYWORD]:
        return kernel

    @functools.wraps(kernel)
    def called(**arguments: Any) -> Any:
        return kernel(**arguments)

    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return called


__all__ = [
    "CompileOptions",
    "CompiledKernel",
    "Tensor",
    "bfloat16",
    "build_kernel",
    "compile_and_execute",
    "compile_kernel",
    "compiler",
    "ds",
    "float8_e4m3",
    "float8_e5m2",
    "float16",
    "float32",
    "fori_loop",
    "get_target_info",
    "hbm",
    "int8",
    "int16",
    "int32",
    "isa",
    "ndarray",
    "ndarray_like",
    "psum",
    "range",
    "sbuf",
    "shared_hbm",
    "tfloat32",
    "ts",
    "uint8",
    "uint16",
    "uint32",
]
