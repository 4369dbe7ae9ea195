"""The search for blocks: every way to cut a contraction that may pay, and the fastest by the model.

Axes that both operands have loop around all others, as no block of them is used twice. The others
come in every order, each in blocks of one, two, four ... tiles, while PSUM holds the sums of a
block, and the contracted axis innermost, so that no sum leaves PSUM before it is complete. An
operand is loaded where all the loops over its axes are open, or further out, around loops that it
does not depend on, where it stays.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations, product

from glia.arch import Arch
from glia.arch.instances import get_target
from glia.tile.blocking.model import BlockedOperand, Blocking, BlockingModel, Contraction
from glia.tile.contraction import PARTITIONS
from glia.tile.ir import BlockLoop

MOST_ORDERED_AXES = 3  # of more, those with the fewest tiles loop around the others


@dataclass(frozen=True)
class Effort:
    """How far the search goes at one optimisation level.

    `copies` are the sets of tiles tried for the loop over the contracted axis; other loops have one
    or as many as `outer_copies`.
    """

    instructions: int  # most products in what is unrolled
    copies: tuple[int, ...]
    outer_copies: int


EFFORTS = {
    1: Effort(64, (1,), 1),
    2: Effort(640, (2, 4), 2),
    3: Effort(1280, (2, 3, 4, 6), 2),
}


def propose_blockings(
    facts: Contraction, target: str, optlevel: int, count: int
) -> tuple[Blocking, ...]:
    """Up to `count` blockings of a contraction that fit on chip, from the fastest on by the model.

    They are unlike each other: of those that differ in the copies of outer loops there is one.
    """
    ranked = _ranked(replace(facts, sbuf_bytes=0), target, optlevel)
    fitting = (each for size, each in ranked if size <= facts.sbuf_bytes)
    found: dict[Hashable, Blocking] = {}
    for each in fitting:
        found.setdefault(_shape(each), each)
        if len(found) == count:
            break
    return tuple(found.values())


def _shape(blocking: Blocking) -> Hashable:
    """What a blocking is but for the copies of its loops around the innermost."""
    loops = blocking.loops
    return tuple((each.axis, each.extent) for each in loops), blocking.depths, loops[-1:]


@lru_cache(maxsize=1024)
def _ranked(facts: Contraction, target: str, optlevel: int) -> tuple[tuple[int, Blocking], ...]:
    """(bytes of SBUF per partition, blocking), from the fastest on.

    Contractions that differ in the room they have share it: layers of a model.
    """
    arch = get_target(target).arch
    model, effort = BlockingModel(facts, arch), EFFORTS[optlevel]
    tried = ((model.estimate(each), each) for each in blockings(facts, arch, effort))
    fitting = [
        (found, each)
        for found, each in tried
        if found.banks <= arch.psum_banks and found.instructions <= effort.instructions
    ]
    fitting.sort(key=lambda each: (each[0].ns, each[0].instructions))
    return tuple((found.sbuf_bytes, blocking) for found, blocking in fitting)


def blockings(facts: Contraction, arch: Arch, effort: Effort) -> Iterator[Blocking]:
    """Every order of loops, cut of the axes, place of the loads and number of copies tried."""
    for loops in _loops(facts, arch, effort):
        first, second = (_depths(operand, loops) for operand in facts.operands)
        for depths in product(first, second):
            yield Blocking(loops, depths)


def _loops(facts: Contraction, arch: Arch, effort: Effort) -> Iterator[tuple[BlockLoop, ...]]:
    extents, tiles = facts.extent_of, facts.tile_of
    looped = [a for a in extents if extents[a] > tiles[a] and a != facts.contract]
    shared = [a for a in looped if all(a in each.axes for each in facts.operands)]
    free = sorted((a for a in looped if a not in shared), key=lambda a: extents[a] // tiles[a])
    around = [*shared, *free[:-MOST_ORDERED_AXES]]
    outer = tuple(BlockLoop(a, tiles[a], effort.outer_copies) for a in around)
    ordered = free[-MOST_ORDERED_AXES:]
    inner = list(_contracted(facts, effort))
    for order in permutations(ordered):
        for counts in product(*(_counts(extents[a], tiles[a]) for a in order)):
            if math.prod(counts) > arch.psum_banks * max(1, arch.moving_columns // facts.columns):
                continue
            cut = [(a, n * tiles[a]) for a, n in zip(order, counts, strict=True)]
            cut = [(axis, extent) for axis, extent in cut if extent < extents[axis]]
            for copies in product(range(effort.outer_copies, 0, -1), repeat=len(cut)):
                loops = [BlockLoop(*each, n) for each, n in zip(cut, copies, strict=True)]
                for last in inner:
                    yield (*outer, *loops, *last)


def _counts(extent: int, tile: int) -> Iterator[int]:
    """Tiles in a block: powers of two, and all of them."""
    most = -(-extent // tile)
    count = 1
    while count < most:
        yield count
        count *= 2
    yield most


def _contracted(facts: Contraction, effort: Effort) -> Iterator[tuple[BlockLoop, ...]]:
    """The loop over blocks of the contracted axis: none, or blocks of ever fewer tiles."""
    extent = facts.extent_of[facts.contract]
    yield ()
    blocks = set()
    parts = 2
    while extent > PARTITIONS and parts <= 2 * extent // PARTITIONS:
        blocks.add(-(-extent // (PARTITIONS * parts)) * PARTITIONS)
        parts *= 2
    for block in sorted(blocks, reverse=True):
        for copies in effort.copies:
            yield (BlockLoop(facts.contract, block, copies),)


def _depths(operand: BlockedOperand, loops: Sequence[BlockLoop]) -> list[int]:
    """In how many of the loops an operand may be loaded."""
    own = (at for at, loop in enumerate(loops, 1) if loop.axis in operand.axes)
    deepest = max(own, default=0)
    return [at for at in range(deepest + 1) if at == deepest or loops[at].axis not in operand.axes]


def with_loads(blocking: Blocking, names: tuple[str, str]) -> tuple[BlockLoop, ...]:
    """The loops, each with the operands that its iterations load; `names` are the operands'."""
    found = list(blocking.loops)
    for name, depth in zip(names, blocking.depths, strict=True):
        if depth:
            loop = found[depth - 1]
            found[depth - 1] = replace(loop, loads=(*loop.loads, name))
    return tuple(found)
