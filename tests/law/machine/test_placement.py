"""Tiles that are live together do not overlap; addresses are reused late where that fits.

Tiles with addresses lend theirs while they are not live, if nothing is passed on there.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from glia import nki
from glia.arch.instances import get_target
from glia.base.dtype import U8
from glia.isa.operand import Memory, Tile
from glia.machine.passes.lifetimes import Lifetime
from glia.machine.passes.on_chip_space import (
    FixedTile,
    OnChipMemoryFull,
    OnChipSpace,
    assign_addresses,
)
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.tensors.nki_tensor import NkiTensor
from support.nki_ways import normal, stored

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


def test_tiles_keep_off_those_with_addresses_while_they_are_live() -> None:
    shared = 0
    for seed in range(300):
        random = np.random.default_rng(seed)
        tiles = _draw(random, 0)
        fixed = [
            FixedTile(Tile(f"f{n}", Memory.SBUF, U8, 1, 2 * UNIT), UNIT * int(place), first, last)
            for n, place in enumerate(random.integers(0, UNITS - 1, 4))
            for first, last in [sorted(random.integers(0, 20, 2).tolist())]
        ]
        capacities = {Memory.SBUF: UNIT * UNITS, Memory.PSUM: UNIT}
        addresses, _ = assign_addresses(tiles, fixed, capacities, ARCH)
        for tile, its in tiles:
            if tile.name not in addresses:
                continue
            start = addresses[tile.name]
            for each in fixed:
                is_apart = (
                    start + tile.bytes_per_partition <= each.address
                    or each.address + each.tile.bytes_per_partition <= start
                )
                is_later = its.last < each.first or each.last < its.first
                assert is_apart or is_later, f"{tile.name} and {each.tile.name} of seed {seed}"
                shared += is_later and not is_apart
    assert shared > 100


def _banks(x: NkiTensor, w: NkiTensor, *, passes_on: bool) -> NkiTensor:
    """Sums in all banks of PSUM by address, and a transposition through a tile without one."""
    a, b = nl.load(x), nl.load(w)
    total = nl.zeros((128, 512), nl.float32)
    banks = [
        nl.ndarray((128, 512), nl.float32, nl.psum, address=(0, 2048 * bank), name=f"bank{bank}")
        for bank in range(8)
    ]
    for bank in banks:
        nisa.nc_matmul(bank, a, b)
        nisa.nc_matmul(bank, a, b)
    if not passes_on:
        for bank in banks:
            nisa.tensor_tensor(total, total, bank, nl.add)
    loose = nl.ndarray((128, 128), nl.float32, nl.psum)
    nisa.nc_transpose(loose, a)
    nisa.tensor_copy(total[:, 128:256], loose)
    if passes_on:
        for bank in range(8):
            name, place = f"other{bank}", (0, 2048 * bank)
            other = nl.ndarray((128, 512), nl.float32, nl.psum, address=place, name=name)
            nisa.tensor_tensor(total, total, other, nl.add)
    return stored(total)


def test_a_tile_takes_the_address_of_one_that_has_ended() -> None:
    x, w = normal(128, 128), normal(128, 512)
    expected = 16 * (x.T @ w)
    expected[:, 128:256] = x.T
    for run in (nki.simulate, nki.jit):
        found = run(lambda x, w: _banks(x, w, passes_on=False))(x, w)
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-2)


def test_no_tile_comes_between_two_of_which_one_passes_bytes_on_by_address() -> None:
    x, w = normal(128, 128), normal(128, 512)
    for run in (nki.simulate, nki.jit):
        with pytest.raises(OnChipMemoryFull):
            run(lambda x, w: _banks(x, w, passes_on=True))(x, w)


def _many_banks(x: NkiTensor, w: NkiTensor) -> NkiTensor:
    """More sums than PSUM has banks, before the first of them is read."""
    a, b = nl.load(x), nl.load(w)
    sums = [nl.ndarray((128, 512), nl.float32, nl.psum) for _ in range(12)]
    copies = [nl.ndarray((128, 512), nl.float32, nl.sbuf) for _ in range(12)]
    for each in sums:
        nisa.nc_matmul(each, a, b)
        nisa.nc_matmul(each, a, b)
    for each, copied in zip(sums, copies, strict=True):
        nisa.tensor_copy(copied, each)
    total = nl.zeros((128, 512), nl.float32)
    for copied in copies:
        nisa.tensor_tensor(total, total, copied, nl.add)
    return stored(total)


def test_a_kernel_that_fits_in_another_order_than_written_runs() -> None:
    x, w = normal(128, 128), normal(128, 512)
    for run in (nki.simulate, nki.jit):
        np.testing.assert_allclose(run(_many_banks)(x, w), 24 * (x.T @ w), rtol=2e-4, atol=2e-2)
    with pytest.raises(OnChipMemoryFull):
        nki.jit(_many_banks).compile(x, w, as_written=True)


def _too_many_sums(x: NkiTensor, w: NkiTensor) -> NkiTensor:
    """Sums that need all banks of PSUM, and one more, in any order."""
    a, b = nl.load(x), nl.load(w)
    sums = [nl.ndarray((128, 512), nl.float32, nl.psum) for _ in range(9)]
    for _ in range(2):
        for each in sums:
            nisa.nc_matmul(each, a, b)
    total = nl.zeros((128, 512), nl.float32)
    for each in sums:
        nisa.tensor_tensor(total, total, each, nl.add)
    b = nl.copy(total)
    for each in sums:
        nisa.nc_matmul(each, a, b)
    for each in sums:
        nisa.tensor_tensor(total, total, each, nl.add)
    return stored(total)


def test_a_kernel_that_fits_in_no_order_is_refused() -> None:
    x, w = normal(128, 128), normal(128, 512)
    for run in (nki.simulate, nki.jit):
        with pytest.raises(OnChipMemoryFull):
            run(_too_many_sums)(x, w)
