"""Removal of dead fills: a memset whose elements are overwritten before anything reads them.

Kernels clear a tile of PSUM before products whose first overwrites it. The fill takes time, and
those products wait for it, and so for what the filling engine does before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from glia.isa.instructions.vector import Memset
from glia.isa.kit import Instr
from glia.machine.columns.table import columns_of
from glia.machine.ir import Program
from glia.machine.passes.tile_liveness import find_liveness, replace_instructions


def remove_dead_fills(
    program: Program, may_remove: Callable[[Instr], bool] = lambda _: True
) -> Program:
    """The program without memsets whose elements no instruction reads before they are overwritten.

    Only those that `may_remove` accepts go, and none of a tile that has an address, that several
    blocks access or whose contents an iteration may leave to the next.
    """
    columns = columns_of(program)
    examples = [columns.instructions[row] for row in columns.form.first.tolist()]
    fills = [isinstance(example, Memset) for example in examples]
    if not any(fills):
        return program
    positions = [at for at, form in enumerate(columns.form.number.tolist()) if fills[form]]
    candidates = {at: each for at in positions if may_remove(each := columns.instructions[at])}
    names = {pattern.tile.name for each in candidates.values() for pattern in each.patterns()}
    removed: dict[int, Instr | None] = {
        at: None
        for liveness in find_liveness(program, names).values()
        for at in liveness.dead_writes & candidates.keys()
    }
    if not removed:
        return program
    return replace(program, body=replace_instructions(program.body, removed))
