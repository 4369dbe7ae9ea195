"""Iterations of device loops: the body is compiled once, so that all must do the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import cycle

import numpy as np
import pytest

from glia import nki
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.names.language_errors import KernelAdvice
from glia.nki.tensors.nki_tensor import NkiTensor
from support.nki_ways import both, normal, stored

Body = Callable[[nisa.VirtualRegister], None]


def _repeating(
    make_body: Callable[[NkiTensor], Body], iterations: int = 3
) -> Callable[..., NkiTensor]:
    def kernel(x: NkiTensor) -> NkiTensor:
        tile = nl.load(x)
        nl.fori_loop(0, iterations, make_body(tile))
        return stored(tile)

    return kernel


def _counts(tile: NkiTensor) -> Body:
    numbers = iter([1.0, 2.0, 3.0])

    def body(i: nisa.VirtualRegister) -> None:
        nisa.tensor_scalar(tile, tile, nl.add, next(numbers))

    return body


def _takes_another_tile(tile: NkiTensor) -> Body:
    tiles = iter([nl.zeros((4, 6), nl.float32) for _ in range(3)])

    def body(i: nisa.VirtualRegister) -> None:
        nisa.tensor_tensor(tile, tile, next(tiles), nl.add)

    return body


def _slices_further(tile: NkiTensor) -> Body:
    places = iter(range(3))

    def body(i: nisa.VirtualRegister) -> None:
        nisa.memset(tile[:, next(places) :], 0.0)

    return body


@pytest.mark.parametrize(
    ("make_body", "said"),
    [
        (_counts, "has operand0 2.0 in tensor_scalar, the first has 1.0"),
        (
            _takes_another_tile,
            r"has data2 sbuf.1\[4, 6\] at 0 in tensor_tensor, the first has sbuf",
        ),
        (_slices_further, r"has dst load\[4, 5\] at 1 in memset, the first has load\[4, 6\] at 0"),
    ],
)
def test_an_iteration_with_other_operands_than_the_first_is_reported(
    make_body: Callable[[NkiTensor], Body], said: str
) -> None:
    with pytest.warns(KernelAdvice, match=f"iteration 2 of a loop on the device {said}"):
        nki.simulate(_repeating(make_body))(normal(4, 6))


def test_a_while_has_iterations_too() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        tile, left = nl.load(x), nl.full((1, 1), 3, nl.int32)
        register, numbers = nisa.register_alloc(3), iter([1.0, 2.0, 3.0])
        while register:
            nisa.tensor_scalar(tile, tile, nl.add, next(numbers))
            nisa.tensor_scalar(left, left, nl.subtract, 1.0)
            nisa.register_load(register, left)
        return stored(tile)

    with pytest.warns(KernelAdvice, match="iteration 2 of a loop on the device has operand0 2.0"):
        nki.simulate(kernel)(normal(4, 6))


def _silent(kernel: Callable[..., NkiTensor], x: np.ndarray) -> np.ndarray:
    """The result, the same in both ways, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result: np.ndarray = both(kernel, x)
    return result


def test_tiles_and_engines_may_alternate() -> None:
    def make_body(tile: NkiTensor) -> Body:
        tiles = cycle([nl.ndarray((4, 6), nl.float32) for _ in range(2)])
        engines = cycle([nisa.engine.vector, nisa.engine.gpsimd])

        def body(i: nisa.VirtualRegister) -> None:
            held = next(tiles)
            nisa.tensor_copy(held, tile, engine=next(engines))
            nisa.tensor_tensor(tile, tile, held, nl.add)

        return body

    np.testing.assert_array_equal(_silent(_repeating(make_body), np.ones((4, 6), np.float32)), 8)


def test_iterations_may_have_tiles_sums_and_registers_of_their_own() -> None:
    def make_body(tile: NkiTensor) -> Body:
        index, ones = nl.zeros((1, 1), nl.int32), nl.ones((4, 4), nl.float32)

        def inner(j: nisa.VirtualRegister) -> None:
            nisa.tensor_scalar(tile, tile, nl.add, 1.0)

        def body(i: nisa.VirtualRegister) -> None:
            total, copied = nl.ndarray((4, 6), nl.float32, nl.psum), nl.ndarray((4, 6), nl.float32)
            for _ in range(2):
                nisa.nc_matmul(total, ones, tile)
            nisa.tensor_scalar(index, index, nl.add, 1.0)
            times = nisa.register_alloc()
            nisa.register_load(times, index)
            nisa.tensor_copy(copied, total)
            nisa.tensor_copy(tile[:, nl.ds(i, 1)], copied[:, nl.ds(i, 1)])
            nl.fori_loop(0, times, inner)

        return body

    x = np.ones((4, 6), np.float32)
    expected = x.copy()
    for step in range(3):
        expected[:, step] = 8 * expected[0, step]
        expected += step + 1
    np.testing.assert_array_equal(_silent(_repeating(make_body), x), expected)
