"""Tiles that are live together do not overlap; addresses are reused late where that fits."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from glia.arch.instances import get_target
from glia.base.dtype import U8
from glia.isa.operand import Memory, Tile
from glia.machine.passes.lifetimes import Lifetime
from glia.machine.passes.on_chip_space import OnChipSpace, assign_addresses

UNIT, UNITS = 32, 12
ARCH = get_target("trn2").arch
Placed = list[tuple[Tile, Lifetime]]


def _tile(name: str, units: int, first: int, last: int) -> tuple[Tile, Lifetime]:
    return Tile(name, Memory.SBUF, U8, 1, UNIT * units), Lifetime(first, last)


def _draw(random: np.random.Generator, start: int) -> Placed:
    """Tiles of different sizes that are live for different times, from `start` on."""
    firsts = sorted(random.integers(0, 12, 10))
    return [
        _tile(f"b{n:02}", int(random.integers(1, 5)), start + first, start + first + length)
        for n, (first, length) in enumerate(zip(firsts, random.integers(0, 6, 10), strict=True))
    ]


def _fits(tiles: Placed, first_fit: set[str]) -> bool:
    space = OnChipSpace(Memory.SBUF, UNIT * UNITS, first_fit=first_fit)
    return all(isinstance(space.place(tile, lifetime), int) for tile, lifetime in tiles)


def test_only_what_does_not_fit_with_the_rest_reuses_addresses_soon() -> None:
    loose = [_tile(f"a{n:02}", 1, n, n) for n in range(2 * UNITS)]
    tight = 0
    for seed in range(300):
        tiles = _draw(np.random.default_rng(seed), 1000)
        names = {tile.name for tile, _ in tiles}
        if _fits(tiles, set()) or not _fits(tiles, names):
            continue
        tight += 1
        capacities = {Memory.SBUF: UNIT * UNITS, Memory.PSUM: UNIT}
        addresses, overflows = assign_addresses([*loose, *tiles], (), capacities, ARCH)
        assert not overflows
        rotated = [addresses[tile.name] for tile, _ in loose]
        assert rotated == [UNIT * (n % UNITS) for n in range(2 * UNITS)]
        for (one, its), (other, others) in combinations(tiles, 2):
            if its.last < others.first or others.last < its.first:
                continue
            low, high = sorted((one, other), key=lambda tile: addresses[tile.name])
            end = addresses[low.name] + low.bytes_per_partition
            assert end <= addresses[high.name], f"{low.name} and {high.name} of seed {seed}"
    assert tight >= 5
