"""Arguments that do not fit a function of nl are errors of NKI, not Python's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glia import nki
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.names.errors import MaskNotSupported, NotInNki, WrongArguments
from glia.nki.run.trace import trace
from glia.nki.tensors.nki_tensor import NkiTensor

X = np.ones((8, 8), np.float32)
RUNS = [lambda kernel: nki.simulate(kernel)(X), lambda kernel: trace(kernel, X)]


@pytest.mark.parametrize("run", RUNS, ids=["simulated", "compiled"])
@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda x: nl.load(x, dtyp=nl.float32), r"'dtyp'; did you mean dtype\?"),
        (lambda x: nl.zeros((8, 8), nl.float32, bufer=nl.sbuf), r"'bufer'; did you mean buffer\?"),
        (lambda x: nl.load(), "missing a required argument: 'src'"),
        (lambda x: nl.ds(0, 8, 1), "too many positional arguments"),
        (lambda x: nisa.register_alloc(y=1), "there is no parameter 'y'"),
    ],
)
def test_wrong_arguments_name_what_was_meant(run, call, problem) -> None:
    with pytest.raises(WrongArguments, match=problem) as caught:
        run(call)
    assert __file__.rpartition("/")[2] in str(caught.value)


@pytest.mark.parametrize("run", RUNS, ids=["simulated", "compiled"])
@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("nl.load", lambda x: nl.load(x, mask=X < 4)),
        ("nl.exp", lambda x: nl.exp(nl.load(x), mask=X < 4)),
        ("nki.isa.tensor_copy", lambda x: nisa.tensor_copy(dst=x, src=x, mask=X < 4)),
    ],
)
def test_a_mask_is_refused_with_the_slice_to_write(run, function, call) -> None:
    with pytest.raises(MaskNotSupported, match="mask parameter is not supported") as caught:
        run(call)
    assert f"{function}(x[0:n, :], ...) for mask=rows < n" in str(caught.value)


def test_a_mask_that_is_none_is_taken() -> None:
    def kernel(x):
        out = nl.ndarray((8, 8), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x, mask=None))
        return out

    np.testing.assert_array_equal(nki.simulate(kernel)(X), X)


def test_an_operator_of_nl_is_still_one_of_the_engines() -> None:
    def kernel(x):
        out = nl.ndarray((8, 8), nl.float32, buffer=nl.shared_hbm)
        tile = nl.load(x)
        nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, op=nl.add)
        nl.store(out, tile)
        return out

    np.testing.assert_array_equal(nki.simulate(kernel)(X), 2 * X)


WRONG: dict[str, Callable[[NkiTensor], Any]] = {
    "memset with value='x'": lambda t: nisa.memset(t, "x"),
    "memset with value=None": lambda t: nisa.memset(t, None),
    "memset with value=a NkiTensor": lambda t: nisa.memset(t, t),
    "iota with offset='x'": lambda t: nisa.iota(t, [[1, 8]], "x"),
    "iota with pattern a NkiTensor": lambda t: nisa.iota(t, t),
    "a product with accumulate=an array": lambda t: nisa.nc_matmul(t, t, t, accumulate=np.ones(2)),
    "a product with is_transpose=a NkiTensor": lambda t: nisa.nc_matmul(t, t, t, is_transpose=t),
    "activation with reduce_cmd=7": lambda t: nisa.activation(t, nl.exp, t, reduce_cmd=7),
    "tensor_scalar with reverse0='no'": lambda t: nisa.tensor_scalar(
        t, t, nl.add, 1.0, reverse0="no"
    ),
    "dma_transpose with axes=1.5": lambda t: nisa.dma_transpose(t, t, axes=1.5),
    "dma_compute with scales=2.0": lambda t: nisa.dma_compute(t, [t, t], nl.add, scales=2.0),
    "dma_compute with srcs of": lambda t: nisa.dma_compute(t, [t, 1], nl.add),
    "nc_match_replace8 with imm=": lambda t: nisa.nc_match_replace8(t, t, t, [1, 2]),
}


@pytest.mark.parametrize("said", WRONG)
def test_an_argument_of_the_wrong_type_is_named(said: str) -> None:
    def kernel(x: NkiTensor) -> None:
        WRONG[said](nl.load(x))

    told = []
    for way in (nki.simulate(kernel), nki.jit(kernel)):
        with pytest.raises(NotInNki, match=said) as caught:
            way(np.zeros((8, 8), np.float32))
        told.append(str(caught.value))
    assert told[0] == told[1]


def test_the_order_of_the_first_release_is_taken() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        tile = nl.load(x)
        nisa.affine_select(tile, [[1, 8]], 0, -1, tile, 0.0, nl.less_equal)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, tile)
        return out

    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    np.testing.assert_array_equal(nki.simulate(kernel)(x), np.tril(x))


WRONG_OF_NL: dict[str, Callable[[NkiTensor], Any]] = {
    "nl.load with src=None": lambda t: nl.load(None),
    "nl.store with value=None": lambda t: nl.store(t, None),
    "nl.zeros_like with x=None": lambda t: nl.zeros_like(None),
    "nl.ds with start='x'": lambda t: nl.ds("x", 4),
    "nl.broadcast_to with shape=None": lambda t: nl.broadcast_to(t, None),
    "nl.matmul with x=None": lambda t: nl.matmul(None, t),
    "nl.fori_loop with body_fun=None": lambda t: nl.fori_loop(0, 2, None),
    "filling a tensor with 'x'": lambda t: nl.full((4, 4), "x", nl.float32),
}


@pytest.mark.parametrize("said", WRONG_OF_NL)
def test_an_argument_of_nl_of_the_wrong_type_is_named(said: str) -> None:
    def kernel(x: NkiTensor) -> None:
        WRONG_OF_NL[said](nl.load(x))

    for run in RUNS:
        with pytest.raises(NotInNki, match=said):
            run(kernel)


def test_an_error_of_a_loops_body_stays_what_it_is() -> None:
    def body(i: nisa.VirtualRegister) -> None:
        raise ValueError("the body's own")

    for run in RUNS:
        with pytest.raises(ValueError, match="the body's own"):
            run(lambda x: nl.fori_loop(0, 2, body))
