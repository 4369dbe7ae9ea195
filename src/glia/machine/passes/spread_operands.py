"""Place operands that an engine reads together in different memories.

The Vector Engine reads two operands in SBUF one after the other, but one in SBUF and one in PSUM at
the same time. Engines can write their results to PSUM instead, where capacity allows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from glia.arch import Arch
from glia.arch.instances import get_target
from glia.base.dtype import F32
from glia.isa.cost import engine_cycles
from glia.isa.instructions.dma import Transfer
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Tile, usable_bytes_per_partition
from glia.machine.instruction_rewriting import substitute_instruction
from glia.machine.ir import Program
from glia.machine.legal_instruction import violations
from glia.machine.passes.lifetimes import find_lifetimes
from glia.machine.passes.schedule import RUN_SHARES, Scheduler

PSUM_SHARE = (
    1 - RUN_SHARES[Memory.PSUM]
)  # of PSUM, for tiles that are live together in program order


def use_both_memories(program: Program) -> Program:
    """Move float32 tiles to PSUM where that saves time of the engines that use them.

    Tiles with the fewest candidate engines and the shortest lifetimes are moved first: a result
    that another engine has ready early occupies PSUM for longer. Tiles with addresses stay, and so
    do those that a transfer, a loop or a branch accesses.
    """
    arch = get_target(program.target).arch
    body = [each for each in program.body if isinstance(each, Instr)]
    if len(body) < len(program.body):
        return program
    users: dict[str, list[int]] = defaultdict(list)
    for position, instruction in enumerate(program.instructions()):
        for name in dict.fromkeys(p.tile.name for p in instruction.patterns()):
            users[name].append(position)
    tiles, lifetimes = dict(program.tiles), find_lifetimes(program)
    live_bytes = np.zeros(len(body), np.int64)  # bytes per partition of PSUM
    for name, lifetime in lifetimes.items():
        if tiles[name].memory is Memory.PSUM:
            live_bytes[lifetime.first : lifetime.last + 1] += tiles[name].bytes_per_partition
    capacity = PSUM_SHARE * usable_bytes_per_partition(Memory.PSUM, arch)
    engines = [_engines(each, arch) for each in body]
    engine_choices = {
        name: len(set().union(*(engines[at] for at in users[name]))) for name in lifetimes
    }
    for name in sorted(
        lifetimes, key=lambda n: (engine_choices[n], lifetimes[n].last - lifetimes[n].first)
    ):
        tile, live_range = tiles[name], slice(lifetimes[name].first, lifetimes[name].last + 1)
        if name in program.addresses or not _is_movable(tile, arch):
            continue
        if live_bytes[live_range].max() + tile.bytes_per_partition > capacity:
            continue
        moved = replace(tile, memory=Memory.PSUM)
        changed = _move_to_psum([body[position] for position in users[name]], moved, arch)
        if changed is not None:
            tiles[name] = moved
            live_bytes[live_range] += tile.bytes_per_partition
            for position, instruction in zip(users[name], changed, strict=True):
                body[position] = instruction
    return replace(program, body=tuple(body), tiles=tiles)


def _is_movable(tile: Tile, arch: Arch) -> bool:
    is_small = tile.bytes_per_partition <= arch.psum_bank_bytes
    return tile.memory is Memory.SBUF and tile.dtype is F32 and is_small


def _move_to_psum(users: list[Instr], tile: Tile, arch: Arch) -> list[Instr] | None:
    """The users of a tile, with it in PSUM; None where that is illegal or saves no time."""
    if any(isinstance(each, Transfer) or each.arrives_by_dma for each in users):
        return None
    changed = [substitute_instruction(each, {tile.name: tile}, {}) for each in users]
    if sum(_nanoseconds(each, arch) for each in changed) >= sum(
        _nanoseconds(each, arch) for each in users
    ):
        return None
    return None if any(violations(each, arch) for each in changed) else changed


def _engines(instruction: Instr, arch: Arch) -> set[str]:
    """The engines that the scheduler can assign to an instruction."""
    return {each.runs_on for each in Scheduler(arch, 0).variants(instruction)}


def _nanoseconds(instruction: Instr, arch: Arch) -> float:
    engine = instruction.runs_on
    return engine_cycles(instruction, arch) / arch.clocks_ghz[engine]
