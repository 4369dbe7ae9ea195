"""Arguments that do not fit a function of nl are errors of NKI, not Python's own."""

from __future__ import annotations

import numpy as np
import pytest

from glia import nki
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.errors import MaskNotSupported, WrongArguments
from glia.nki.trace import trace

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
