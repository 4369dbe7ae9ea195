"""Overlap loop iterations: unroll by two and give each copy its own tiles."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from glia.base.affine import Affine
from glia.isa.operand import Memory, Tile
from glia.machine.ir import Branch, Loop, Program, Statement, While, walk
from glia.machine.rewrite import substitute


def double_buffer(program: Program, options: object = None) -> Program:
    """Unroll innermost loops that move data by two, with separate tiles for the two halves.

    Loads of one iteration can then run while the other computes: no tile is shared by both.
    """
    uses = Counter(
        pattern.tile.name
        for instruction in program.instructions()
        for _, _, pattern in instruction.operands()
    )
    tiles = dict(program.tiles)
    body = _block(program.body, uses, tiles)
    return replace(program, body=body, tiles=tiles)


def _block(
    body: tuple[Statement, ...], uses: Counter, tiles: dict[str, Tile]
) -> tuple[Statement, ...]:
    result: list[Statement] = []
    for statement in body:
        if isinstance(statement, Loop):
            result += _loop(statement, uses, tiles)
        elif isinstance(statement, While):
            condition = _block(statement.condition, uses, tiles)
            inner = _block(statement.body, uses, tiles)
            result.append(While(condition, statement.register, inner))
        elif isinstance(statement, Branch):
            arms = tuple(_block(arm, uses, tiles) for arm in statement.arms)
            result.append(Branch(statement.register, arms))
        else:
            result.append(statement)
    return tuple(result)


def _loop(loop: Loop, uses: Counter, tiles: dict[str, Tile]) -> list[Statement]:
    body = _block(loop.body, uses, tiles)
    has_inner = any(isinstance(s, Loop | While | Branch) for s in loop.body)
    moves = any(s.queue for s in body if not isinstance(s, Loop | While | Branch))
    if has_inner or not moves or loop.trips < 2:
        return [Loop(loop.variable, loop.trips, body)]
    twins = _twins(body, uses, tiles)
    variable = Affine.of(loop.variable)
    even = [substitute(s, {}, {loop.variable: variable * 2}) for s in body]
    odd = [substitute(s, twins, {loop.variable: variable * 2 + 1}) for s in body]
    pairs = Loop(loop.variable, loop.trips // 2, (*even, *odd))
    if loop.trips == 2:
        at_zero = {loop.variable: Affine()}
        return [substitute(s, {}, at_zero) for s in pairs.body]
    rest = [substitute(s, {}, {loop.variable: Affine((), loop.trips - 1)}) for s in body]
    return [pairs, *(rest if loop.trips % 2 else ())]


def _twins(body: tuple[Statement, ...], uses: Counter, tiles: dict[str, Tile]) -> dict[str, Tile]:
    """A second tile for each on-chip tile that is used in this body only."""
    inside = Counter(
        pattern.tile.name for instruction in walk(body) for _, _, pattern in instruction.operands()
    )
    twins: dict[str, Tile] = {}
    for name, count in inside.items():
        tile = tiles[name]
        if tile.memory is not Memory.HBM and count == uses[name]:
            twin = replace(tile, name=f"{name}'")
            twins[name] = tiles[twin.name] = twin
    return twins
