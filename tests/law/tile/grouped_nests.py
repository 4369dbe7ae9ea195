"""Random nests in groups, legal and illegal, and an evaluator that runs groups block by block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from glia.base.affine import Affine
from glia.base.dtype import S32
from glia.tile.evaluate import memory_of, run_block, run_nest
from glia.tile.ir import (
    Apply,
    Axis,
    Buffer,
    Expr,
    Group,
    Literal,
    Load,
    Member,
    Nest,
    Program,
    Reduction,
    Schedule,
    SharedLoop,
    Store,
)
from glia.tile.nest_rewriting import substitute_axes

Array = np.ndarray[Any, Any]
Memory = dict[str, Array]

ROWS, COLUMNS = 6, 4
SHAPE = (2 * ROWS, COLUMNS + 1)  # of every buffer, so that indices have room to differ
INPUTS = ("x", "y")
POISON = 12345


def draw_program(random: np.random.Generator) -> Program:
    """A few nests over buffers of one shape, and a group of all of them that may be illegal."""
    names = (*INPUTS, *(f"t{i}" for i in range(3)))
    buffers = {name: Buffer(name, S32, SHAPE, "temporary") for name in names}
    buffers |= {name: replace(buffers[name], role="input") for name in INPUTS}
    nests, filled = [], list(INPUTS)
    for position in range(int(random.integers(2, 5))):
        target = str(random.choice(names[len(INPUTS) :]))
        nests.append(_draw_nest(random, position, target, filled))
        filled.append(target)
    written = [nest.target.buffer for nest in nests]
    outputs = tuple(dict.fromkeys(written))
    kept = {name: buffers[name] for name in names if name in (*INPUTS, *written)}
    kept |= {name: replace(kept[name], role="output") for name in outputs}
    group = _draw_group(random, nests, outputs)
    return Program("p", kept, tuple(nests), INPUTS, outputs, groups=(group,))


def _draw_nest(random: np.random.Generator, position: int, target: str, filled: list[str]) -> Nest:
    axes = (Axis("i", ROWS), Axis("j", COLUMNS), Axis("k", COLUMNS))
    is_reduced = bool(random.integers(3) == 0)
    is_product = is_reduced and bool(random.integers(2))
    count = 2 if is_product else int(random.integers(1, 3))
    column = "k" if is_reduced else "j"
    args = [
        Load(str(random.choice(filled[-3:])), S32, _draw_index(random, column, is_read=True))
        for _ in range(count)
    ]
    if is_product:  # of the block's rows and what all blocks read, or something else that moves
        index = Affine.of("k"), Affine.of("j")
        args[1] = replace(args[1], index=index) if random.integers(4) else args[1]
    function = "multiply" if is_product else "add"
    body: Expr = args[0] if count == 1 else Apply(function, tuple(args), S32)
    body = Apply("add", (body, Literal(position + 1, S32)), S32)
    index = _draw_index(random, "j", is_read=False)
    reduction = Reduction(("k",), "add", S32) if is_reduced else None
    own = axes if is_reduced else axes[:2]
    return Nest(f"n{position}", own, body, Store(target, index), reduction)


def _draw_index(
    random: np.random.Generator, column: str, *, is_read: bool
) -> tuple[Affine, Affine]:
    """An index that most often has step 1, and now and then another step, start or direction."""
    step = int(random.choice((1, 1, 1, 1, 2)))
    start = int(random.choice((0, 0, 0, 0, 1)))
    row = Affine.of("i") * step + start
    if random.integers(8) == 0:
        row = Affine.of("i") * -1 + (ROWS - 1)
    if is_read and random.integers(12) == 0:
        return Affine.of(column), Affine()
    shift = int(random.choice((0, 0, 0, 1)))
    return row, Affine.of(column) + shift


def _draw_group(random: np.random.Generator, nests: list[Nest], outputs: tuple[str, ...]) -> Group:
    """One loop over the rows, with, or without, one over the columns around some of the nests."""
    block = int(random.choice((1, 2, 4)))
    schedule = Schedule("vector", "i", {}, ())
    cut = int(random.integers(len(nests) + 1)) if random.integers(2) else len(nests)
    body: list[SharedLoop | Member] = [Member(n.name, ("i",), schedule) for n in nests[:cut]]
    if nests[cut:]:
        inner = tuple(Member(n.name, ("i", "j"), schedule) for n in nests[cut:])
        body.append(SharedLoop(COLUMNS, int(random.choice((1, 2))), inner))
    on_chip = tuple(name for name in outputs if random.integers(3) == 0)
    return Group("g", SharedLoop(ROWS, block, tuple(body)), on_chip)


def draw_pieces(random: np.random.Generator) -> Program:
    """Nests that write pieces of one buffer, which may overlap or leave gaps, and one that reads.

    The pieces lie side by side along the columns, or take turns.
    """
    takes_turns = bool(random.integers(2))
    step, count = (2, 2) if takes_turns else (1, int(random.integers(1, 4)))
    nests, low = [], 0
    for position in range(2):
        axes = Axis("i", ROWS), Axis("j", count)
        read = Load("x", S32, (Affine.of("i"), Affine.of("j") + int(random.integers(2))))
        body = Apply("add", (read, Literal(position + 1, S32)), S32)
        start = (position if takes_turns else low) + int(random.choice((0, 0, 0, 1)))
        row = Affine.of("i") + int(random.integers(8) == 0)
        index = row, Affine.of("j") * step + start
        nests.append(Nest(f"n{position}", axes, body, Store("t0", index)))
        low += count
        count = count if takes_turns else SHAPE[1] - 1 - low
    read = Load("t0", S32, (Affine.of("i"), Affine.of("j")))
    axes = Axis("i", ROWS), Axis("j", COLUMNS)
    nests.append(Nest("n2", axes, read, Store("t1", read.index)))
    outputs = ("t0", "t1")
    buffers = {"x": Buffer("x", S32, SHAPE, "input")}
    buffers |= {name: Buffer(name, S32, SHAPE, "output") for name in outputs}
    schedule = Schedule("vector", "i", {}, ())
    body_of_loop = tuple(Member(nest.name, ("i",), schedule) for nest in nests)
    group = Group("g", SharedLoop(ROWS, int(random.choice((1, 2, 4))), body_of_loop), ("t0",))
    return Program("p", buffers, tuple(nests), ("x",), outputs, groups=(group,))


def evaluate_by_blocks(program: Program, inputs: list[Array]) -> list[Array]:
    """The outputs of a program of which all nests are in one group, run block by block.

    Buffers on chip hold poison when an iteration of the loop around their writer begins.
    """
    memory = memory_of(program, inputs)
    (group,) = program.groups
    nests = {nest.name: nest for nest in program.nests()}
    chip: Memory = {name: np.full_like(memory[name], POISON) for name in group.on_chip}
    _run_loop(group.loop, nests, memory, chip, {})
    return [memory[name] for name in program.outputs]


def _run_loop(
    loop: SharedLoop,
    nests: Mapping[str, Nest],
    memory: Memory,
    chip: Memory,
    around: Mapping[int, tuple[int, int]],
) -> None:
    """Run a loop; `around` has (start, count) of the open loops, by depth."""
    inside = {m.nest for m in loop.body if isinstance(m, Member)}
    own = Counter(nests[name].target.buffer for name in inside)
    for start in range(0, loop.extent, loop.block):
        for name in own.keys() & set(chip):
            chip[name][...] = POISON
        ranges = {**around, len(around): (start, min(loop.block, loop.extent - start))}
        for each in loop.body:
            if isinstance(each, SharedLoop):
                _run_loop(each, nests, memory, chip, ranges)
            else:
                _run_part(_part(nests[each.nest], each, ranges), memory, chip)
        for name in own.keys() & set(chip):
            if own[name] > 1:
                _store_box(memory[name], chip[name])


def _store_box(memory: Array, chip: Array) -> None:
    """Store the box around what nests have written, as a group does that has it in pieces."""
    at = np.nonzero(chip != POISON)
    box = tuple(slice(values.min(), values.max() + 1) for values in at)
    memory[box] = chip[box]


def _run_part(nest: Nest, memory: Memory, chip: Memory) -> None:
    """Run what a nest does in one iteration, on what is on chip; HBM has all that is written."""
    visible = {**memory, **chip}
    run_nest(nest, visible)
    if nest.target.buffer in chip:
        before = memory[nest.target.buffer].copy()
        run_nest(nest, {**visible, nest.target.buffer: before})
        memory[nest.target.buffer][...] = before


def _part(nest: Nest, member: Member, ranges: Mapping[int, tuple[int, int]]) -> Nest:
    """The nest over one block of its shared axes."""
    at = {axis: ranges[depth] for depth, axis in enumerate(member.axes)}
    moved = substitute_axes(nest, {a: Affine.of(a) + start for a, (start, _) in at.items()}, {})
    axes = tuple(Axis(a.name, at[a.name][1]) if a.name in at else a for a in nest.axes)
    return replace(moved, axes=axes)


def evaluate_plain(program: Program, inputs: list[Array]) -> list[Array]:
    """The outputs of a program's nests, one after the other."""
    memory = memory_of(program, inputs)
    run_block(program.body, memory)
    return [memory[name] for name in program.outputs]
