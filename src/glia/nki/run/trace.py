"""Trace a kernel: run it once and record a machine program for each core.

A kernel is a plain Python function. It is run, not parsed: Python's own loops, conditions and
helper functions work and leave only the instructions behind, in order, their loops unrolled. Loops
on the device (nl.fori_loop, nl.while_loop, nl.dynamic_range, `while register:`) stay loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from glia.arch import Target
from glia.base.garbage_collection import collector_paused
from glia.cache.kernel_module import kernel_module
from glia.cache.store import cache_of
from glia.cc_flags import kernel_options
from glia.isa.operand import Memory, Tile
from glia.machine.columns.update import share_columns
from glia.machine.ir import Binding, Program
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.machine.passes.place import place
from glia.neff.package import Neff
from glia.nki.back_end.back_end import run_back_end
from glia.nki.back_end.changes import BackEndChanges, changes_between
from glia.nki.names.dtypes import dtype_name
from glia.nki.names.errors import NotAnOutput
from glia.nki.names.targets import platform_target
from glia.nki.run.fit_on_chip import fit_on_chip, scheduler_of
from glia.nki.run.launch import (
    Launch,
    argument_region,
    bind,
    check_cores,
    check_loops,
    check_output,
    flatten_outputs,
)
from glia.nki.run.recorded_text import recorded_text
from glia.nki.session.ordering import Edit, edit_recorded, order_statements, producers_of
from glia.nki.session.program_checks import require_legal
from glia.nki.session.recorder import Recorder
from glia.nki.session.session import current, running
from glia.nki.source.subset import check_language
from glia.nki.tensors.nki_tensor import NkiTensor, ndarray


@dataclass(frozen=True)
class PrintedOutput:
    """An output printed by nl.device_print under a prefix; `trips` are its leading dimensions."""

    prefix: str
    output: str
    core: int
    trips: tuple[int, ...]


@dataclass(frozen=True)
class Traced:
    """A kernel compiled for arguments of certain shapes, dtypes and values.

    `programs` has one for each core. Their outputs are the kernel's results, in order, named
    `results`; then the arguments it writes, (argument, output) in `updated`; then those it prints.
    `structure` is the return value with None for each tensor; `fixed` names each program's tiles
    with addresses chosen by the kernel; `changes` is what the back end changed in each program,
    empty where it was not run, as for programs of the compile cache.
    """

    programs: tuple[Program, ...]
    structure: Any
    results: tuple[str, ...]
    updated: tuple[tuple[str, str], ...]
    printed: tuple[PrintedOutput, ...]
    fixed: tuple[tuple[str, ...], ...] = ()
    changes: tuple[BackEndChanges, ...] = ()


def trace(
    kernel: Callable[..., Any],
    *arrays: Any,
    target: str = "trn2",
    as_written: bool = False,
    **constants: Any,
) -> Program:
    """The legal, placed program of a kernel for arguments of these shapes and dtypes.

    Arguments that are arrays become inputs named as the kernel's parameters, all others reach the
    kernel as they are. What it returns, a tensor or a tuple of tensors in shared_hbm, are the
    outputs. With `as_written` the back end changes nothing. CompileErrors point at the kernel's
    line.
    """
    launch = bind(kernel, arrays, constants)
    traced = trace_launch(launch, platform_target(target), 0, as_written=as_written)
    return traced.programs[0]


@collector_paused()
def trace_launch(
    launch: Launch,
    target: Target,
    ranks: int,
    *,
    synchronises: bool = True,
    reorders: bool = False,
    spills: bool = False,
    as_written: bool = False,
    edit: Edit | None = None,
) -> Traced:
    """The programs of a launch, one for each core; without semaphores unless it synchronises.

    `reorders` lets instructions that do not depend on each other change places, `spills` lets tiles
    that do not fit on chip leave it and return. With `as_written` the back end changes nothing.
    `edit` says what becomes of instructions of the program that each core records.
    """
    check_cores(launch, target, ranks)
    check_language(launch.kernel, launch.bound)
    cores = []
    for rank in range(max(1, ranks)):
        session = Recorder(target, rank, ranks)
        session.merges_iterations = not as_written
        each = _record(launch, session)
        if edit is not None:
            (program,) = each.programs
            program = edit_recorded(program, edit(program, rank), session)
            each = replace(each, programs=(program,))
        cores.append(_Core(session, each))
    options = _Options(reorders=reorders, spills=spills, as_written=as_written)
    if synchronises and edit is None:
        return _from_cache(cores, options)
    return _compile(cores, options, synchronises=synchronises)


@dataclass(frozen=True)
class _Core:
    """What one core recorded: its program is in `traced`, as it was before the back end."""

    session: Recorder
    traced: Traced

    @property
    def program(self) -> Program:
        return self.traced.programs[0]


@dataclass(frozen=True)
class _Options:
    """What the back end may do; see `trace_launch`."""

    reorders: bool
    spills: bool
    as_written: bool


def _from_cache(cores: Sequence[_Core], options: _Options) -> Traced:
    """The compiled kernel, from the compile cache where the environment names one."""
    chosen = kernel_options(cores[0].session.target.name)
    cache = cache_of(chosen)
    if cache is None:
        return _compile(cores, options)
    compiled: list[Traced] = []

    def build() -> Neff:
        compiled.append(_compile(cores, options))
        return Neff(compiled[0].programs)

    first = cores[0].program
    text = recorded_text(
        [(each.session, each.program) for each in cores], [*asdict(options).items()]
    )
    neff = cache.compiled(
        kernel_module(first.name, first.inputs, first.outputs, text), chosen, build
    )
    return compiled[0] if compiled else _joined(cores, neff.programs)


def _compile(cores: Sequence[_Core], options: _Options, *, synchronises: bool = True) -> Traced:
    """The programs of all cores, legal and placed."""
    shared: dict[str, int] = {}  # where the first core has the tensors that all cores share
    programs: list[Program] = []
    changes: list[BackEndChanges] = []
    for core in cores:
        session, program = core.session, core.program
        place_program = partial(_place, session=session, shared=shared, others=programs)
        is_fixed = options.as_written or session.keeps_order or bool(session.orders)
        fit = partial(
            fit_on_chip, place=place_program, spills=options.spills and not options.as_written,
            moves_fills=not session.fixes_order,
        )  # fmt: skip
        if options.reorders or is_fixed:
            is_free = options.reorders and not is_fixed
            program = fit(program, scheduler_of(program, session) if is_free else None)
            if is_free:
                changed = changes_between(core.program, program)
                noted = (*program.notes, changed.text) if changed.text else program.notes
                program = replace(program, notes=noted)
                changes.append(changed)
            after = producers_of(session.orders)
            synchronised = insert_semaphores(program, after=after) if synchronises else program
        else:
            compiled = run_back_end(program, session, partial(fit, schedule=None))
            program = compiled.placed
            synchronised = compiled.synchronised if synchronises else program
            changes.append(compiled.changes)
        programs.append(synchronised)
        require_legal(programs[-1], session.target)
        if not shared:
            shared = {name: program.addresses[name] for name in session.shared}
    return _joined(cores, programs, changes)


def _joined(
    cores: Sequence[_Core], programs: Iterable[Program], changes: Iterable[BackEndChanges] = ()
) -> Traced:
    """What all cores recorded, with their compiled programs."""
    traced = [core.traced for core in cores]
    return replace(
        traced[0],
        programs=tuple(programs),
        updated=tuple(dict.fromkeys(pair for each in traced for pair in each.updated)),
        printed=tuple(output for each in traced for output in each.printed),
        fixed=tuple(names for each in traced for names in each.fixed),
        changes=tuple(changes),
    )


def _record(launch: Launch, session: Recorder) -> Traced:
    """One core's program before placement."""
    with running(session):
        tensors = {name: _input(name, array) for name, array in launch.arrays.items()}
        returned = launch.call(tensors)
        updated = {n: t for n, t in tensors.items() if t.name in session.written}
        given = flatten_outputs(returned, wrote=bool(updated))
        outputs = [_output(each, session, launch) for each in given]
    check_loops(session, launch)
    results = [_binding(tensor) for tensor in outputs]
    returned_tiles = {binding.tile.name for binding in results}
    unnamed = [_binding(t) for t in updated.values() if t.name not in returned_tiles]
    printed = [Binding(p.tile.name, p.tile, p.shape, p.tile.dtype) for p in session.printed]
    program = Program(
        name=launch.home.name,
        target=session.target.name,
        tiles=session.tiles,
        inputs=tuple(_binding(each) for each in tensors.values()),
        outputs=(*results, *unnamed, *printed),
        constants=session.constants,
        body=order_statements(session.body, session.orders, frozenset(session.addresses)),
        addresses=session.addresses,
        notes=session.notes(),
    )
    return Traced(
        (program,),
        _structure_of(returned),
        tuple(binding.name for binding in results),
        tuple((name, tensor.name) for name, tensor in updated.items()),
        tuple(PrintedOutput(p.prefix, p.tile.name, session.rank, p.trips) for p in session.printed),
        (tuple(session.addresses),),
    )


def _place(
    program: Program, session: Recorder, shared: dict[str, int], others: list[Program]
) -> Program:
    """Place a program; shared tensors at the other cores' addresses, other HBM tiles disjoint."""
    end = max((other.addresses[t.name] + t.bytes for other in others for t in _in_hbm(other)),
              default=0)  # fmt: skip
    addresses = dict(program.addresses)
    addresses |= {name: at for name, at in shared.items() if name in session.shared}
    located = share_columns(replace(program, addresses=addresses), program)
    return place(located, shared=session.shared, hbm_start=end)


def _in_hbm(program: Program) -> list[Tile]:
    return [tile for tile in program.tiles.values() if tile.memory is Memory.HBM]


def _structure_of(returned: Any) -> Any:
    """The structure of a kernel's return value, with None for each tensor."""
    if isinstance(returned, tuple | list):
        return type(returned)([None] * len(returned))
    return None


def _input(name: str, array: np.ndarray) -> NkiTensor:
    dtype = dtype_name(array.dtype)
    assert dtype is not None
    return ndarray(array.shape, dtype, argument_region(current("a kernel")), name)


def _output(value: Any, session: Recorder, launch: Launch) -> NkiTensor:
    """`value` when it is a whole tensor of this kernel in shared_hbm; NotAnOutput otherwise."""
    tensor = check_output(value, launch, is_eager=False)
    if session.tiles.get(tensor.name) is not tensor.tile:
        text = f"{tensor.name} of another kernel"
        raise NotAnOutput(kernel=launch.home.name, value=text, loc=launch.home)
    return tensor


def _binding(tensor: NkiTensor) -> Binding:
    return Binding(tensor.name, tensor.tile, tensor.shape, tensor.stored)
