"""What a kernel may not do is refused in the same words simulated and compiled, in loops too."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glia import nki
from glia.machine.passes.on_chip_space import OnChipMemoryFull
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.names.errors import (
    BrokenRule,
    ImpossibleTensor,
    IndexNotInTable,
    NotInNki,
    UnknownWhenTraced,
)
from glia.nki.names.targets import VARIABLE
from glia.nki.tensors.nki_tensor import NkiTensor
from support.nki_ways import both, normal, stored

Kernel = Callable[..., Any]


def refusal(kernel: Kernel, kind: type[Exception], *arrays: np.ndarray) -> str:
    """The message of the simulated kernel, which is that of the compiled one."""

    def returning(*tensors: NkiTensor) -> Any:
        returned = kernel(*tensors)
        return stored(nl.zeros((1, 1), nl.float32)) if returned is None else returned

    said = []
    for way in (nki.simulate(returning), nki.jit(returning)):
        with pytest.raises(kind) as caught:
            way(*arrays)
        said.append(str(caught.value))
    assert said[0] == said[1]
    return said[0]


@pytest.fixture
def trn2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "trn2")


def _columns_of_a_loop(x: NkiTensor) -> None:
    tile, total = nl.load(x), nl.zeros((128, 1), nl.float32)
    nl.fori_loop(0, 17, lambda i: _add(total, tile[:, nl.ds(i, 1)]))


def _add(total: NkiTensor, part: NkiTensor) -> None:
    nisa.tensor_tensor(total, total, part, nl.add)


def _rows_of_nested_loops(x: NkiTensor) -> None:
    tile = nl.ndarray((64, 16), nl.float32)

    def outer(i: nisa.VirtualRegister) -> None:
        def inner(j: nisa.VirtualRegister) -> None:
            nisa.dma_copy(tile, x[nl.ds(j, 64)])
            nisa.dma_copy(tile[:, nl.ds(i, 1)], x[nl.ds(j, 64), 0:1])

        nl.fori_loop(0, 70, inner, step=23)

    nl.fori_loop(0, 4, outer)


def _clear(part: NkiTensor) -> None:
    nisa.memset(part, 0.0)


def _partitions_of_a_loop(x: NkiTensor) -> None:
    nl.fori_loop(32, 160, lambda i: _clear(nl.load(x)[nl.ds(i, 32)]), step=32)


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (_columns_of_a_loop, "index 16 is out of bounds for axis 0 with size 16"),
        (_rows_of_nested_loops, "index 2127 is out of bounds for axis 0 with size 2048"),
        (_partitions_of_a_loop, "index 128 is out of bounds for axis 0 with size 128"),
    ],
)
def test_indices_of_loops_that_leave_a_tensor(kernel: Kernel, said: str) -> None:
    assert said in refusal(kernel, IndexNotInTable, normal(128, 16))


def test_partitions_that_a_loop_steps_over_are_those_of_the_law() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        tile, moved = nl.load(x), nl.zeros((128, 16), nl.float32)
        rows = 32

        def body(i: nisa.VirtualRegister) -> None:
            nisa.tensor_copy(moved[nl.ds(i, rows)], tile[nl.ds(i, rows)])

        nl.fori_loop(0, 128, body, step=rows)
        return stored(moved)

    np.testing.assert_array_equal(both(kernel, normal(128, 16)), normal(128, 16))


def test_partitions_that_a_loop_steps_over_wrongly() -> None:
    def kernel(x: NkiTensor) -> None:
        tile = nl.load(x)
        nl.fori_loop(0, 97, lambda i: _clear(tile[nl.ds(i, 32)]), step=16)

    said = refusal(kernel, BrokenRule, normal(128, 16))
    assert "dst is f32[32, 16] in SBUF from partition 16*i" in said


def _read_before_set(x: NkiTensor) -> None:
    nisa.dma_copy(nl.ndarray((1, 16), nl.float32), x[nl.ds(nisa.register_alloc(), 1)])


def _stored_before_set(x: NkiTensor) -> None:
    nisa.register_store(nl.ndarray((1, 1), nl.int32), nisa.register_alloc())


def _looped_before_set(x: NkiTensor) -> None:
    nl.fori_loop(0, nisa.register_alloc(), lambda i: _clear(nl.load(x)))


def _constant(x: NkiTensor) -> None:
    nisa.dma_copy(nl.shared_constant(np.zeros((128, 16), np.float32)), x)


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (_read_before_set, "a register that was never set"),
        (_stored_before_set, "a register that was never set"),
        (_looped_before_set, "a register that was never set"),
        (_constant, "writing to nl.shared_constant"),
    ],
)
def test_registers_without_a_value_and_constants(kernel: Kernel, said: str) -> None:
    assert said in refusal(kernel, NotInNki, normal(128, 16))


def test_a_register_is_not_compared() -> None:
    def kernel(x: NkiTensor) -> None:
        def body(i: nisa.VirtualRegister) -> None:
            if i == 0:
                nl.load(x)

        nl.fori_loop(0, 4, body)

    assert "a comparison by == or !=" in refusal(kernel, UnknownWhenTraced, normal(4, 4))


def _across_banks(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    whole = nl.ndarray((128, 1024), nl.float32, nl.psum)
    nisa.nc_matmul(whole[:, 256:768], nl.load(x), nl.load(y))
    return stored(whole[:, 256:768])


def _across_banks_in_a_loop(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    whole = nl.ndarray((128, 4, 384), nl.float32, nl.psum)
    left, right = nl.load(x), nl.load(y)

    def body(i: nisa.VirtualRegister) -> None:
        nisa.nc_matmul(whole.select(1, i), left, right[:, :384], accumulate=False)

    nl.fori_loop(0, 4, body)
    return stored(nl.copy(whole))


def _across_banks_at_an_address(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    part = nl.ndarray((128, 512), nl.float32, nl.psum, address=(0, 1024))
    nisa.nc_matmul(part, nl.load(x), nl.load(y))
    return stored(part)


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (_across_banks, "covers bytes 1024 to 3071"),
        (_across_banks_in_a_loop, "covers bytes 1536 to 3071"),
        (_across_banks_at_an_address, "covers bytes 1024 to 3071"),
    ],
)
def test_products_in_several_banks(kernel: Kernel, said: str, trn2: None) -> None:
    assert said in refusal(kernel, BrokenRule, normal(128, 128), normal(128, 512))


@pytest.mark.parametrize("kernel", [_across_banks, _across_banks_in_a_loop])
def test_products_of_generation_4_lie_in_several_banks(kernel: Kernel) -> None:
    x, y = normal(128, 128), normal(128, 512)
    expected = x.T @ y
    if kernel is _across_banks_in_a_loop:
        expected = np.broadcast_to(expected[:, None, :384], (128, 4, 384))
    np.testing.assert_allclose(both(kernel, x, y), expected, atol=1e-3)


def _barrier(x: NkiTensor) -> None:
    nisa.core_barrier(x, (0, 1))


def _exchange(x: NkiTensor) -> None:
    tile = nl.load(x)
    nisa.sendrecv(tile, nl.ndarray((128, 16), nl.float32), 1, 1, 0)


@pytest.mark.parametrize("kernel", [_barrier, _exchange])
def test_one_core_cannot_synchronise(kernel: Kernel) -> None:
    assert "launch the kernel on them, as kernel[2]" in refusal(kernel, BrokenRule, normal(128, 16))


def test_elements_gathered_on_chip_that_do_not_exist() -> None:
    def kernel(x: NkiTensor, places: NkiTensor) -> NkiTensor:
        found = nl.ndarray((4, 2), nl.float32)
        nisa.nc_n_gather(found, nl.load(x), nl.load(places))
        return stored(found)

    places = np.array([[0, 1], [2, 16], [0, 0], [0, 0]], np.uint32)
    with pytest.raises(IndexNotInTable, match="index 16 is out of bounds for 16 elements\n"):
        nki.simulate(kernel)(normal(4, 16), places)


def _wrong_accumulator(x: NkiTensor) -> None:
    tile = nl.load(x)
    nisa.tensor_scalar_reduce(
        tile, tile, nl.add, 0.0, nl.add, nl.ndarray((128, 1), nl.float32), reduce_init=1.0
    )


def _wrong_column(x: NkiTensor) -> None:
    tile, bound = nl.load(x), nl.zeros((128, 2), nl.float32)
    nisa.range_select(tile, tile, nl.less, nl.less, bound, bound)


def _wrong_seed(x: NkiTensor) -> None:
    nisa.set_rng_seed(nl.load(x))


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (_wrong_accumulator, "reduce_init must be given with load_reduce"),
        (_wrong_accumulator, "reduce_cmd is 'reset_reduce', reduce_res_negate is False"),
        (_wrong_column, "bound0 must hold one element for each partition of on_true_tile"),
        (_wrong_seed, "src_seeds must be one element; here src_seeds is f32[128, 16]"),
    ],
)
def test_rules_name_the_parameters_as_documented(kernel: Kernel, said: str) -> None:
    assert said in refusal(kernel, BrokenRule, normal(128, 16))


def _keeps(count: int, columns: int, buffer: nl.MemoryRegion) -> Kernel:
    """All tiles are used before, and again after, something is made of all of them."""

    def kernel(x: NkiTensor) -> None:
        tiles = [nl.ndarray((128, columns), nl.float32, buffer) for _ in range(count)]
        column = nl.ndarray((128, 1), nl.float32, nl.sbuf)
        nisa.memset(column, 0.0)
        for tile in tiles:
            nisa.memset(tile, 1.0)
            nisa.tensor_tensor(column, column, tile[:, 0:1], nl.add)
        for tile in tiles:
            nisa.tensor_tensor(tile[:, 0:1], tile[:, 0:1], column, nl.add)

    return kernel


@pytest.mark.parametrize("is_strict", [False, True])
def test_fills_wait_for_the_first_use_of_their_tiles(is_strict: bool, trn2: None) -> None:
    """All tiles are filled, then used one by one: they fit where the author leaves order open."""

    def fill_all(tiles: list[NkiTensor]) -> None:
        for number, tile in enumerate(tiles):
            nisa.memset(tile, number + 1.0)

    def kernel(x: NkiTensor) -> NkiTensor:
        out = nl.ndarray((4, 128, 16384), nl.float32, buffer=nl.shared_hbm)
        tiles = [nl.ndarray((128, 16384), nl.float32, buffer=nl.sbuf) for _ in range(4)]
        if is_strict:
            with nl.no_reorder():
                fill_all(tiles)
        else:
            fill_all(tiles)
        for number, tile in enumerate(tiles):
            nisa.reciprocal(tile, tile)
            nisa.dma_copy(out[number], tile)
        return out

    x = normal(128, 16)
    if is_strict:
        refusal(kernel, OnChipMemoryFull, x)
        return
    wanted = np.broadcast_to(1 / np.arange(1, 5, dtype=np.float32)[:, None, None], (4, 128, 16384))
    np.testing.assert_array_equal(both(kernel, x), wanted)
    notes = nki.jit(kernel).compile(x).programs[0].notes
    assert any("memsets wait for the first use of their tiles" in note for note in notes)


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (_keeps(4, 16384, nl.sbuf), "SBUF is full: tile sbuf.3 needs 65536 bytes"),
        (_keeps(9, 512, nl.psum), "PSUM is full: tile psum.8 needs 2048 bytes"),
        (_keeps(7, 700, nl.psum), "PSUM is full: tile psum.4 needs 2800 bytes"),
    ],
)
def test_tiles_that_do_not_fit_at_one_time(kernel: Kernel, said: str, trn2: None) -> None:
    assert said in refusal(kernel, OnChipMemoryFull, normal(128, 16))


def test_a_full_memory_lists_the_largest_live_tiles_and_their_lines(trn2: None) -> None:
    told = refusal(_keeps(4, 16384, nl.sbuf), OnChipMemoryFull, normal(128, 16))
    here = "bytes, from .*test_nki_refusals.py:[0-9]+ "
    assert len(re.findall(f"  live: sbuf(?:.[12])?, 65536 {here}", told)) == 3
    told = refusal(_keeps(9, 512, nl.psum), OnChipMemoryFull, normal(128, 16))
    assert len(re.findall(f"  live: psum.*, 2048 {here}", told)) == 5


def test_tiles_that_are_used_one_after_the_other_fit(trn2: None) -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        out = nl.ndarray((12, 128, 4), nl.float32, buffer=nl.shared_hbm)
        for row in range(12):
            tile = nl.zeros((128, 16384), nl.float32)
            nisa.dma_copy(tile[:, :4], x[:, :4])
            nisa.dma_copy(out[row], tile[:, :4])
        return out

    x = normal(128, 16)
    np.testing.assert_array_equal(both(kernel, x), np.broadcast_to(x[:, :4], (12, 128, 4)))


def _adds(first: bool | None) -> Kernel:
    def kernel(x: NkiTensor, y: NkiTensor) -> NkiTensor:
        total = nl.zeros((128, 512), nl.float32, nl.psum)
        for accumulate in (first, True):
            nisa.nc_matmul(total, nl.load(x), nl.load(y), accumulate=accumulate)
        return stored(total)

    return kernel


@pytest.mark.parametrize("name", ["trn2", "trn3"])
@pytest.mark.parametrize("first", [True, False, None])
def test_accumulating_into_unwritten_psum_warns_before_generation_4(
    first: bool | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, name)
    x, y = normal(128, 128), normal(128, 512)
    for make in (nki.simulate, nki.jit):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            make(_adds(first))(x, y)
        told = [each for each in caught if "that no product has written" in str(each.message)]
        assert len(told) == (1 if first and name == "trn2" else 0)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ((0, 2), "byte 2 is not a multiple of its 4 bytes"),
        ((0, 1 << 20), "bytes 1048576 to 1048639 do not fit its memory"),
        ((120, 0), "it does not fit at partition 120"),
    ],
)
def test_addresses_that_no_tensor_has(address: tuple[int, int], said: str) -> None:
    def kernel(x: NkiTensor) -> None:
        nl.ndarray((16, 16), nl.float32, address=address)

    assert said in refusal(kernel, ImpossibleTensor, normal(4, 4))
