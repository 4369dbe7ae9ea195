"""What only a run shows of a kernel's language: scopes, loops, generations, and what is advised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glia import nki
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.beta1 import language as beta1
from glia.nki.names.errors import NotInNki
from glia.nki.names.language_errors import Beta1InKernel, ExpiredTensor, KernelAdvice
from glia.nki.tensors.nki_tensor import NkiTensor
from support.nki_ways import both, normal, stored

Kernel = Callable[..., Any]
X = normal(4, 8)


def both_raise(kernel: Kernel, error: type[Exception], match: str) -> None:
    for way in (nki.simulate(kernel), nki.jit(kernel)):
        with pytest.raises(error, match=match):
            way(X)


def _keeps_a_tile(loop: Callable[[Callable[..., Any]], None]) -> Kernel:
    def kernel(x: NkiTensor) -> NkiTensor:
        kept: list[NkiTensor] = []

        def body(register: Any) -> None:
            kept.append(nl.load(x))

        loop(body)
        return stored(kept[0])

    return kernel


def _counted(body: Callable[..., Any]) -> None:
    nl.fori_loop(0, 2, body)


def _conditional(body: Callable[..., Any]) -> None:
    def once(register: Any) -> Any:
        body(register)
        nisa.register_move(register, 0)
        return register

    nl.while_loop(nisa.register_alloc(1), once)


@pytest.mark.parametrize("loop", [_counted, _conditional])
def test_a_tensor_allocated_in_a_loop_expires_with_it(loop: Any) -> None:
    both_raise(_keeps_a_tile(loop), ExpiredTensor, "load was allocated in the body")


def test_a_tensor_allocated_before_a_loop_is_written_in_it_and_used_after_it() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        kept = nl.ndarray(x.shape, x.dtype)

        def body(i: Any) -> None:
            tile = nl.load(x)
            nisa.tensor_copy(kept, tile)

        nl.fori_loop(0, 2, body)
        return stored(kept)

    np.testing.assert_array_equal(both(kernel, X), X)


def test_a_tensor_allocated_in_a_loop_is_no_result() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        made: list[NkiTensor] = []

        def body(i: Any) -> None:
            made.append(stored(nl.load(x)))

        nl.fori_loop(0, 1, body)
        return made[0]

    both_raise(kernel, ExpiredTensor, "shared_hbm was allocated")


def test_the_body_of_a_counted_loop_returns_nothing() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        nl.fori_loop(0, 2, lambda i: nl.load(x))
        return stored(nl.load(x))

    both_raise(kernel, NotInNki, "returns a value")


@pytest.mark.filterwarnings("ignore::glia.nki.names.language_errors.KernelAdvice")
def test_no_loop_on_the_device_is_left_by_break() -> None:
    def counted(x: NkiTensor) -> NkiTensor:
        for _ in nl.dynamic_range(4):
            break
        return stored(nl.load(x))

    def conditional(x: NkiTensor) -> NkiTensor:
        register = nisa.register_alloc(2)
        while register:
            nisa.register_move(register, 0)
            break
        return stored(nl.load(x))

    both_raise(counted, NotInNki, "break")
    both_raise(conditional, NotInNki, "break")


def test_functions_of_beta1_are_refused_in_kernels_of_the_current() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        beta1.load(x)
        return stored(nl.load(x))

    both_raise(kernel, Beta1InKernel, r"nl\.load of neuronxcc")


def _warned(kernel: Kernel) -> list[str]:
    with pytest.warns(KernelAdvice) as caught:
        nki.simulate(kernel)(X)
    assert {each.filename for each in caught} == {__file__}
    return [str(each.message) for each in caught]


def test_loops_that_the_next_release_has_no_more_warn() -> None:
    def counted(x: NkiTensor) -> NkiTensor:
        for _ in nl.dynamic_range(2):
            nl.load(x)
        return stored(nl.load(x))

    def conditional(x: NkiTensor) -> NkiTensor:
        register = nisa.register_alloc(1)
        while register:
            nisa.register_move(register, 0)
        return stored(nl.load(x))

    (text,) = _warned(counted)
    assert "nl.fori_loop" in text
    (text,) = set(_warned(conditional))
    assert "nl.while_loop" in text


def test_what_only_a_simulated_kernel_can_do_warns() -> None:
    def private(x: NkiTensor) -> NkiTensor:
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.private_hbm)
        nisa.dma_copy(out, x)
        return out

    def branches(x: NkiTensor) -> NkiTensor:
        assert nl.equal(nl.load(x), nl.load(x))
        return stored(nl.load(x))

    (text,) = _warned(private)
    assert "shared_hbm" in text
    (text,) = _warned(branches)
    assert "only while simulated" in text
