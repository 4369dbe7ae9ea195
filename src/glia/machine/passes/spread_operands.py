"""Keep operands that an engine reads together in different memories.

The Vector Engine reads two operands in SBUF one after the other, but one in SBUF and one in PSUM at
the same time. What an engine computes can as well be left in PSUM, where that has room.
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
from glia.machine.passes.lifetimes import find_lives
from glia.machine.passes.schedule import RUN_SHARES, Scheduler

ROOM = 1 - RUN_SHARES[Memory.PSUM]  # of PSUM, for tiles that are live together in program order


def use_both_memories(program: Program) -> Program:
    """The program with tiles of float32 in PSUM where that saves time of the engines that use them.

    Those come first that only one engine can use, and for the shortest time: what another engine
    has ready early takes room for longer.
    Tiles with addresses stay, and those that a transfer, a loop or a branch accesses.
    """
    arch = get_target(program.target).arch
    body = [*program.body]
    if not all(isinstance(each, Instr) for each in body):
        return program
    users: dict[str, list[int]] = defaultdict(list)
    for position, instruction in enumerate(program.instructions()):
        for name in dict.fromkeys(p.tile.name for p in instruction.patterns()):
            users[name].append(position)
    tiles, lives = dict(program.tiles), find_lives(program)
    held = np.zeros(len(body), np.int64)  # bytes per partition of PSUM
    for name, life in lives.items():
        if tiles[name].memory is Memory.PSUM:
            held[life.first : life.last + 1] += tiles[name].bytes_per_partition
    room = ROOM * usable_bytes_per_partition(Memory.PSUM, arch)
    engines = [_engines(each, arch) for each in body]
    among = {name: len(set().union(*(engines[at] for at in users[name]))) for name in lives}
    for name in sorted(lives, key=lambda n: (among[n], lives[n].last - lives[n].first)):
        tile, here = tiles[name], slice(lives[name].first, lives[name].last + 1)
        if name in program.addresses or not _may_move(tile, arch):
            continue
        if held[here].max() + tile.bytes_per_partition > room:
            continue
        moved = replace(tile, memory=Memory.PSUM)
        changed = _moved([body[position] for position in users[name]], moved, arch)
        if changed is not None:
            tiles[name] = moved
            held[here] += tile.bytes_per_partition
            for position, instruction in zip(users[name], changed, strict=True):
                body[position] = instruction
    return replace(program, body=tuple(body), tiles=tiles)


def _may_move(tile: Tile, arch: Arch) -> bool:
    is_small = tile.bytes_per_partition <= arch.psum_bank_bytes
    return tile.memory is Memory.SBUF and tile.dtype is F32 and is_small


def _moved(users: list[Instr], tile: Tile, arch: Arch) -> list[Instr] | None:
    """The users of a tile with it in PSUM; None where one may not be, or no time is saved."""
    if any(isinstance(each, Transfer) or each.arrives_by_dma for each in users):
        return None
    changed = [substitute_instruction(each, {tile.name: tile}, {}) for each in users]
    if sum(_ns(each, arch) for each in changed) >= sum(_ns(each, arch) for each in users):
        return None
    return None if any(violations(each, arch) for each in changed) else changed


def _engines(instruction: Instr, arch: Arch) -> set[str]:
    """The engines that the scheduler may choose among."""
    return {each.runs_on for each in Scheduler(arch, 0).variants(instruction)}


def _ns(instruction: Instr, arch: Arch) -> float:
    engine = instruction.runs_on
    return engine_cycles(instruction, arch) / arch.clocks_ghz[engine]
