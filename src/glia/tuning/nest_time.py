"""How long one nest takes by itself: compiled alone and timed on the machine model."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from glia.base.compilation_memo import memoise
from glia.base.loc import UNKNOWN
from glia.options import CompileOptions
from glia.tile.ir import Nest, Program, Schedule, Statement, accessed_buffers
from glia.tile.nest_rewriting import rename_buffer
from glia.tuning.rest_of_pipeline import timed_ns

NAME = "nest"


def nest_ns(
    program: Program, nest: Nest, schedule: Schedule, options: CompileOptions, after: str
) -> float | None:
    """The simulated nanoseconds of a nest under a schedule; None where it does not fit on chip.

    It runs the passes behind `after`, without recoveries. What the nest reads and does not find in
    SBUF is an input. Nests of one compilation that differ in names and locations are timed once.
    """
    alone = isolated(program, nest, schedule)
    return memoise((nest_ns, _key(alone), options, after), lambda: timed_ns(alone, options, after))


def isolated(program: Program, nest: Nest, schedule: Schedule) -> Program:
    """A program of one nest, its buffers named by the order in which the nest accesses them."""
    own: Statement = replace(nest, name=NAME, loc=UNKNOWN)
    old = nest.target.buffer
    names = list(dict.fromkeys((old, *(load.buffer for load in nest.loads))))
    assert set(names) == accessed_buffers(nest)
    renamed = {name: f"buffer{number}" for number, name in enumerate(names)}
    for name in names:
        own = rename_buffer(own, name, f"{renamed[name]}.")
    for name in names:
        own = rename_buffer(own, f"{renamed[name]}.", renamed[name])
    layouts = {renamed[name]: program.layouts[name] for name in names if name in program.layouts}
    roles = {
        new: "temporary" if new in layouts else "output" if name == old else "input"
        for name, new in renamed.items()
    }
    buffers = {
        renamed[name]: replace(program.buffers[name], name=renamed[name], role=roles[renamed[name]])
        for name in names
    }
    return Program(
        NAME,
        buffers,
        (own,),
        tuple(name for name, role in roles.items() if role == "input"),
        tuple(name for name, role in roles.items() if role == "output"),
        layouts=layouts,
        schedules={NAME: schedule},
    )


def _key(alone: Program) -> Hashable:
    (nest,), (schedule,) = alone.body, alone.schedules.values()
    return (
        nest,
        tuple(alone.buffers.values()),
        tuple(alone.layouts.items()),
        repr(schedule),
    )
