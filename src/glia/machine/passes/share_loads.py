"""Loads that a loop repeats: what a kernel loads again stays in SBUF where all of it fits.

Loops are unrolled here, so a load that does not depend on a loop stands in the program once for
each of its turns, the same in all. What is loaded of an argument is kept, each part from its first
load on, all through the kernel or not at all; the argument that needs least of SBUF first.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from glia.arch import get_target
from glia.base.loc import Loc
from glia.isa.instructions.dma import Transfer
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Tile
from glia.isa.rendezvous import CrossCoreInstr
from glia.machine.columns.table import READS, Columns, columns_of
from glia.machine.ir import Program
from glia.machine.passes.lifetimes import find_lifetimes
from glia.machine.passes.on_chip_space import on_chip_capacities
from glia.machine.passes.share_results import (
    equal_results,
    owners_of_one_result,
    tiles_written_once,
    use_earlier,
)

Repeats = dict[str, tuple[int, Tile]]


def share_loads(program: Program) -> Program:
    """The program with repeated loads of what it does not write made once, as far as they fit.

    Each load that is kept is the first of its kind, where it stands.
    """
    columns = columns_of(program)
    if any(isinstance(each, CrossCoreInstr) for each in columns.instructions):
        return program
    repeats = _repeated_loads(program, columns)
    if not repeats:
        return program
    kept = _those_that_fit(program, columns, repeats)
    if not kept:
        return program
    shared = use_earlier(program, kept)
    return replace(shared, notes=(*shared.notes, *_notes(columns, kept)))


def _repeated_loads(program: Program, columns: Columns) -> Repeats:
    patterns = columns.patterns
    inputs = {each.tile.name for each in program.inputs}
    written = set(patterns.tile.number[patterns.access != READS].tolist())
    is_constant = np.array(
        [
            tile.name in inputs and number not in written
            for number, tile in enumerate(patterns.tile.distinct)
        ],
        bool,
    )
    reads = patterns.access == READS
    count = len(columns.instructions)
    others = np.bincount(
        patterns.owner[reads & ~is_constant[patterns.tile.number]], minlength=count
    )
    single = tiles_written_once(program, columns)
    single &= np.array([tile.memory is Memory.SBUF for tile in patterns.tile.distinct], bool)
    owners = [
        number
        for number in owners_of_one_result(program, columns, single)
        if not others[number] and isinstance(columns.instructions[number], Transfer)
    ]
    return equal_results(columns, single, owners)


def _those_that_fit(program: Program, columns: Columns, repeats: Repeats) -> Repeats:
    """The repeats of arguments all of whose tiles fit in SBUF, with what is live at any time."""
    by_argument: dict[str, Repeats] = defaultdict(dict)
    for name, (number, tile) in repeats.items():
        by_argument[_argument_of(columns.instructions[number])][name] = number, tile
    room = on_chip_capacities(get_target(program.target).arch)[Memory.SBUF]
    room -= _most_used(program, columns)
    kept: Repeats = {}
    for each in sorted(by_argument.values(), key=_bytes_kept):
        room -= _bytes_kept(each)
        if room < 0:
            break
        kept |= each
    return kept


def _argument_of(load: Instr) -> str:
    """The name of the tensor that a load of one operand reads."""
    return next(p.tile.name for name, _, p in load.operands() if load.access(name) == "reads")


def _bytes_kept(repeats: Repeats) -> int:
    """The bytes of a partition that the first loads of each kind fill."""
    tiles = {tile.name: tile for _, tile in repeats.values()}
    return sum(tile.bytes_per_partition for tile in tiles.values())


def _most_used(program: Program, columns: Columns) -> int:
    """The bytes of a partition of SBUF that are live together at most."""
    tiles = {tile.name: tile for tile in columns.patterns.tile.distinct}
    change = np.zeros(len(columns.instructions) + 1, np.int64)
    for name, life in find_lifetimes(program, {Memory.SBUF}).items():
        change[life.first] += tiles[name].bytes_per_partition
        change[life.last + 1] -= tiles[name].bytes_per_partition
    return int(np.cumsum(change).max())


def _notes(columns: Columns, kept: Repeats) -> list[str]:
    """What was loaded again at each line, and is not."""
    counts: dict[Loc, int] = defaultdict(int)
    for number, _ in kept.values():
        counts[columns.instructions[number].loc] += 1
    return [
        f"{loc}: {count} loads of what SBUF holds already are left out"
        for loc, count in counts.items()
    ]
