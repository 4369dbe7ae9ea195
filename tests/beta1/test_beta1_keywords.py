"""Keywords of Beta 1: the documented ones, those of public kernels, no others."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from glia.nki import beta1 as nki
from glia.nki.beta1 import compiler as ncc
from glia.nki.beta1 import isa as nisa
from glia.nki.beta1 import language as nl
from glia.nki.beta1.errors import UnsupportedHere
from glia.nki.names.errors import BadLaunch, WrongArguments
from support.beta1_ways import both, on_device

X = np.arange(64, dtype=np.float32).reshape(8, 8)
FUNCTIONS = [
    (f"{stem}.{name}", getattr(module, name))
    for stem, module in (("nl", nl), ("nisa", nisa))
    for name in module.__all__
    if inspect.isfunction(getattr(module, name))
]


def _stored(value):
    out = nl.ndarray(value.shape, value.dtype, buffer=nl.shared_hbm)
    nl.store(out, value)
    return out


@pytest.mark.parametrize(("name", "function"), FUNCTIONS, ids=[name for name, _ in FUNCTIONS])
def test_a_keyword_that_there_is_not_is_refused(name, function) -> None:
    parameters = inspect.signature(function).parameters.values()
    given = [
        0 for each in parameters if each.default is each.empty and each.kind < each.VAR_POSITIONAL
    ]
    with pytest.raises(WrongArguments, match="there is no parameter 'no_such_keyword'"):
        function(*given, no_such_keyword=1)


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda x: nl.load(x, msk=None), "mask"),
        (lambda x: nl.exp(nl.load(x), dtyp=nl.bfloat16), "dtype"),
        (lambda x: nl.sum(nl.load(x), axis=1, keepdim=True), "keepdims"),
        (lambda x: nl.zeros((8, 8), nl.float32, bufer=nl.psum), "buffer"),
        (lambda x: nisa.nc_matmul(nl.load(x), nl.load(x), is_transposed=True), "is_transpose"),
        (lambda x: nisa.activation(op=nl.exp, data=nl.load(x), biass=None), "bias"),
        (lambda x: nl.sequential_range(2, directive=ncc.multi_buffer(2)), "directives"),
    ],
)
@pytest.mark.parametrize("run", [nki.simulate_kernel, on_device])
def test_the_keyword_that_was_meant_is_named(call, meant, run) -> None:
    with pytest.raises(WrongArguments, match=rf"did you mean {meant}\?") as caught:
        run(nki.jit(call), X)
    assert __file__.rpartition("/")[2] in str(caught.value)


def test_hints_of_public_kernels_change_nothing() -> None:
    def kernel(x):
        tile = nl.zeros((8, 8), nl.float32, buffer=nl.sbuf, lazy_initialization=True)
        for _ in nl.affine_range(1, precise_schedule=True):
            loaded = nl.load(x, name="first")
            tile[...] = nl.multiply(loaded, 2.0, max_free_vec_size=512, name="doubled")
        return _stored(nisa.tensor_copy(tile, name="copy"))

    np.testing.assert_array_equal(both(kernel, X), X * 2)


def test_a_result_of_activation_goes_to_the_buffer_that_is_named() -> None:
    def kernel(x):
        tile = nisa.activation(op=nl.copy, data=nl.load(x), buffer=nl.psum)
        assert tile.buffer is nl.psum
        return _stored(nl.copy(tile))

    np.testing.assert_array_equal(both(kernel, X), X)


def test_the_mode_of_transfers_leaves_out_rows_that_are_none() -> None:
    rows = np.array([[1], [0], [900], [2]], np.int32)

    def loads(x, rows):
        chosen = nl.load(rows)
        tile = nl.zeros((4, 8), nl.float32)
        columns = nl.arange(8)[None, :]
        tile[...] = nl.load(x[chosen[nl.arange(4)[:, None], 0], columns], mode=nisa.oob_mode.skip)
        return _stored(tile)

    def stores(x, rows):
        chosen = nl.load(rows)
        out = nl.ndarray((8, 8), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, 0.0)
        slots = out[chosen[nl.arange(4)[:, None], 0], nl.arange(8)[None, :]]
        nl.store(slots, nl.load(x[0:4]), mode=nisa.oob_mode.skip)
        return out

    np.testing.assert_array_equal(both(loads, X, rows), X[[1, 0, 2, 2]] * [[1], [1], [0], [1]])
    expected = np.zeros((8, 8))
    expected[[1, 0, 2]] = X[[0, 1, 3]]
    np.testing.assert_array_equal(both(stores, X, rows), expected)
    with pytest.raises(UnsupportedHere, match="mode='skip'"):
        both(lambda x, rows: nl.load(x, mode="skip"), X, rows)


@pytest.mark.parametrize(
    "options", [{"directives": ncc.no_reorder()}, {"body_no_reorder": True}], ids=["given", "named"]
)
def test_a_loop_that_keeps_its_order_keeps_that_of_the_kernel(options) -> None:
    def kernel(x, options):
        out = nl.ndarray((2, 8, 8), nl.float32, buffer=nl.shared_hbm)
        for i in nl.sequential_range(2, **options):
            nl.store(out[i], nl.exp(nl.load(x)))
        return out

    def order(given):
        decorated = nki.baremetal(lambda x: kernel(x, given))
        return [type(each) for each in decorated.compile_and_profile((X,), {})[0].programs[0].body]

    assert order(options) == order({"directives": ncc.no_reorder()}) != order({})


def test_a_directive_that_there_is_not_is_refused() -> None:
    with pytest.raises(UnsupportedHere, match="directives='fast'"):
        nki.simulate_kernel(lambda x: nl.affine_range(2, directives="fast"), X)


def test_a_mode_of_products_that_there_is_not_is_refused() -> None:
    with pytest.raises(UnsupportedHere, match="perf_mode='doubel_row'"):
        both(lambda x: nisa.nc_matmul(nl.load(x), nl.load(x), perf_mode="doubel_row"), X)


@pytest.mark.parametrize(
    ("decorate", "meant"),
    [
        (lambda k: nki.jit(k, platfrm_target="trn1"), "platform_target"),
        (lambda k: nki.jit(k, mode="simulaton"), "simulation"),
        (nki.benchmark(warm_up=5), "warmup"),
        (nki.baremetal(save_neff="k.neff"), "save_neff_name"),
        (nki.profile(working_dir="/tmp"), "working_directory"),
    ],
)
def test_an_option_of_a_decorator_that_there_is_not_is_refused(decorate, meant) -> None:
    with pytest.raises(BadLaunch, match=rf"did you mean {meant}\?"):
        decorate(lambda x: x)
