"""Run a kernel once and keep what it does as a machine program.

A kernel is a plain Python function in the current style of NKI. It is run, not parsed: Python's
own loops, conditions and helper functions work and leave only the instructions behind, in order,
every loop unrolled. What a kernel can use, all else being refused by name with GLIA604:

* tensors: nl.ndarray in sbuf, psum, shared_hbm, private_hbm (= hbm); indexing by integers, slices
  with positive step and `...`, nl.ds; reshape. Dtypes are those of `glia.nki.tensor.DTYPES`.
* loops: range, nl.affine_range, nl.sequential_range, nl.static_range, all the same.
* nl.tile_size, and the operators and activation functions as names (nl.add, nl.exp, ...).
* nki.isa: nc_matmul, nc_transpose, activation (without its reduce registers), tensor_tensor,
  tensor_scalar, scalar_tensor_tensor, tensor_reduce over the last axes, tensor_copy,
  tensor_copy_predicated, reciprocal, memset, iota, tensor_tensor_scan, bn_stats, bn_aggr, max8,
  dma_copy (whole patterns, no indirection), nc_stream_shuffle, tensor_partition_reduce. Masks,
  tile positions, performance modes, transfer modes and priorities can only be left out.

Not covered: the earlier style with values returned by instructions, nl's computing functions,
registers and loops at run time, several programs of one kernel, collectives, random numbers,
access patterns by hand (`ap`, `view`), packed dtypes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from glia.arch import get_target
from glia.base.dtype import from_numpy
from glia.base.loc import Loc
from glia.machine.ir import Binding, Program
from glia.machine.legal import verify
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.machine.passes.place import place
from glia.nki.errors import NotAnOutput, NotInNki
from glia.nki.recorder import Recorder, recording
from glia.nki.tensor import DTYPES, MemoryRegion, NkiTensor, new_tensor

Kernel = Callable[..., Any]


def trace(kernel: Kernel, *arrays: Any, target: str = "trn2", **constants: Any) -> Program:
    """The legal, placed program of a kernel for arguments of these shapes and dtypes.

    Arguments that are NumPy arrays become inputs named as the kernel's parameters, all others
    reach the kernel as they are. What it returns, a tensor or a tuple of tensors in shared_hbm,
    are the outputs. CompileErrors GLIA601 to GLIA606 point at the kernel's line.
    """
    loc = _home(kernel)
    bound = inspect.signature(kernel).bind(*arrays, **constants)
    with recording(get_target(target)) as recorder:
        inputs = {
            name: _input(name, value, loc)
            for name, value in bound.arguments.items()
            if isinstance(value, np.ndarray)
        }
        bound.arguments.update(inputs)
        returned = kernel(*bound.args, **bound.kwargs)
    outputs = returned if isinstance(returned, tuple | list) else (returned,)
    if not outputs:
        raise NotAnOutput(kernel=loc.name, value="nothing", loc=loc)
    program = Program(
        name=loc.name,
        target=target,
        tiles=recorder.tiles,
        inputs=tuple(_binding(each) for each in inputs.values()),
        outputs=tuple(_binding(_output(each, recorder, loc)) for each in outputs),
        constants={},
        body=tuple(recorder.body),
    )
    program = insert_semaphores(place(program))
    verify(program)
    return program


def _home(kernel: Kernel) -> Loc:
    """Where a kernel is defined, and its name."""
    function = inspect.unwrap(kernel)
    while hasattr(function, "func"):
        function = function.func
    code = function.__code__
    return Loc(code.co_filename, code.co_firstlineno, code.co_name)


def _input(name: str, array: np.ndarray, loc: Loc) -> NkiTensor:
    names = {dtype.numpy: each for each, dtype in DTYPES.items()}
    if array.dtype not in names:
        raise NotInNki(feature=f"input {name} of dtype {array.dtype}", loc=loc)
    return new_tensor(array.shape, names[array.dtype], MemoryRegion.shared_hbm, name)


def _output(value: Any, recorder: Recorder, loc: Loc) -> NkiTensor:
    """`value` when it is a whole tensor of this kernel in shared_hbm; NotAnOutput otherwise."""
    if not isinstance(value, NkiTensor):
        raise NotAnOutput(kernel=loc.name, value=f"a {type(value).__name__}", loc=loc)
    is_ours = recorder.tiles.get(value.name) is value.tile
    if not (is_ours and value.buffer is MemoryRegion.shared_hbm and value.is_whole):
        text = f"{value.name} of shape {value.shape} in {value.buffer.value}"
        raise NotAnOutput(kernel=loc.name, value=text, loc=loc)
    return value


def _binding(tensor: NkiTensor) -> Binding:
    return Binding(tensor.name, tensor.tile, tensor.shape, from_numpy(tensor.tile.dtype.numpy))
