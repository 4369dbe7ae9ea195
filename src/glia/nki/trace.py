"""Run a kernel once and keep what it does as a machine program for each core.

A kernel is a plain Python function. It is run, not parsed: Python's own loops, conditions and
helper functions work and leave only the instructions behind, in order, their loops unrolled. Loops
on the device (nl.fori_loop, nl.while_loop, nl.dynamic_range, `while register:`) stay loops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.arch import Target
from glia.base.dtype import from_numpy
from glia.machine.ir import Binding, Program
from glia.machine.legal import verify
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.machine.passes.place import place
from glia.nki.dtypes import dtype_name
from glia.nki.enums import MemoryRegion
from glia.nki.errors import NotAnOutput, NotInNki
from glia.nki.launch import Launch, bind, check_cores, check_output, outputs_of
from glia.nki.recorder import Recorder
from glia.nki.session import running
from glia.nki.targets import platform_target
from glia.nki.tensor import NkiTensor, new_tensor

Kernel = Callable[..., Any]


@dataclass(frozen=True)
class Traced:
    """A kernel compiled for arguments of certain shapes, dtypes and values.

    `programs` has one for each core. Their outputs are what the kernel returns, in order, named
    `results`; then the `updated` arguments, which it writes; then what it prints, each
    (prefix, name). `structure` is what it returned, with None for each tensor.
    """

    programs: tuple[Program, ...]
    structure: Any
    results: tuple[str, ...]
    updated: tuple[str, ...]
    printed: tuple[tuple[str, str], ...]


def trace(kernel: Kernel, *arrays: Any, target: str = "trn2", **constants: Any) -> Program:
    """The legal, placed program of a kernel for arguments of these shapes and dtypes.

    Arguments that are arrays become inputs named as the kernel's parameters, all others reach the
    kernel as they are. What it returns, a tensor or a tuple of tensors in shared_hbm, are the
    outputs. CompileErrors point at the kernel's line.
    """
    launch = bind(kernel, arrays, constants)
    return trace_launch(launch, platform_target(target), 0).programs[0]


def trace_launch(launch: Launch, target: Target, ranks: int) -> Traced:
    """The programs of a launch, one for each core."""
    check_cores(launch, target, ranks)
    traced = [_trace_core(launch, target, rank, ranks) for rank in range(max(1, ranks))]
    first = traced[0]
    programs = tuple(program for each in traced for program in each.programs)
    return Traced(programs, first.structure, first.results, first.updated, first.printed)


def _trace_core(launch: Launch, target: Target, rank: int, ranks: int) -> Traced:
    session = Recorder(target, rank, ranks)
    with running(session):
        tensors = {name: _input(name, array) for name, array in launch.arrays.items()}
        returned = launch.call(tensors)
        outputs = [_output(each, session, launch) for each in outputs_of(returned)]
    _check_loops(session, launch)
    written = {p.tile.name for i in _issued(session) for p in i.written_patterns()}
    results = tuple(_binding(tensor) for tensor in outputs)
    returned_tiles = {binding.tile.name for binding in results}
    updated = tuple(n for n, t in tensors.items() if t.name in written - returned_tiles)
    bindings = [*results, *(_binding(tensors[name]) for name in updated)]
    bindings += [
        Binding(each.tile.name, each.tile, each.shape, each.tile.dtype) for each in session.printed
    ]
    program = Program(
        name=launch.home.name,
        target=target.name,
        tiles=session.tiles,
        inputs=tuple(_binding(each) for each in tensors.values()),
        outputs=tuple(bindings),
        constants=session.constants,
        body=tuple(session.body),
        addresses=session.addresses,
    )
    program = insert_semaphores(place(program))
    verify(program)
    structure = tuple(outputs) if isinstance(returned, tuple) else returned
    return Traced(
        (program,),
        _shape_of(structure),
        tuple(binding.name for binding in results),
        updated,
        tuple((each.prefix, each.tile.name) for each in session.printed),
    )


def _shape_of(returned: Any) -> Any:
    """The structure of what a kernel returned, without the tensors."""
    if isinstance(returned, tuple | list):
        return type(returned)([None] * len(returned))
    return None


def _issued(session: Recorder) -> Any:
    from_body = Program("", session.target.name, {}, (), (), {}, tuple(session.body))
    return from_body.instructions()


def _input(name: str, array: np.ndarray) -> NkiTensor:
    dtype = dtype_name(array.dtype)
    assert dtype is not None
    return new_tensor(array.shape, dtype, MemoryRegion.shared_hbm, name)


def _output(value: Any, session: Recorder, launch: Launch) -> NkiTensor:
    """`value` when it is a whole tensor of this kernel in shared_hbm; NotAnOutput otherwise."""
    tensor = check_output(value, launch.home, is_eager=False)
    if session.tiles.get(tensor.name) is not tensor.tile:
        text = f"{tensor.name} of another kernel"
        raise NotAnOutput(kernel=launch.home.name, value=text, loc=launch.home)
    return tensor


def _check_loops(session: Recorder, launch: Launch) -> None:
    """NotInNki when Python left a loop on the device before its end."""
    if session.left_early:
        feature = "leaving a loop on the device by break or return"
        raise NotInNki(feature=feature, loc=session.left_early[0])
    if session.open_while() is not None:
        feature = "leaving a `while register` loop by break or return"
        raise NotInNki(feature=feature, loc=launch.home)


def _binding(tensor: NkiTensor) -> Binding:
    return Binding(tensor.name, tensor.tile, tensor.shape, from_numpy(tensor.tile.dtype.numpy))
