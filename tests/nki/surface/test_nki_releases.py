"""Kernels of every release of the current generation run on this one, and get its words for it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from glia import nki
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.names.errors import BrokenRule
from glia.nki.names.language_errors import KernelAdvice
from support.nki_releases import RELEASES, Row, X, Y

# The table of changes between releases 0.2 and 0.6 that kernels rely on.
CHANGED = (
    "dma_copy", "affine_select", "iota", "dma_compute", "range_select", "register_move",
    "nc_matmul", "nc_matmul_mx", "sendrecv", "tensor_scalar_reduce",
    "rng, rand_set_state, rand_get_state", "core_barrier", "comparisons", "buffers",
    "ndarray, zeros", "num_programs, program_id", "shared_constant", "sequential_range",
    "NkiTensor.ap", "tensor_copy_dynamic_src, tensor_copy_dynamic_dst",
)  # fmt: skip


def outputs(found: Any) -> list[np.ndarray]:
    return list(found) if isinstance(found, tuple | list) else [found]


@pytest.mark.parametrize("each", RELEASES, ids=[f"{r.symbol} {r.release}" for r in RELEASES])
def test_a_call_of_a_release_gives_what_it_gave(each: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIA_DEVICE", "reference")
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", each.target)
    kernel: Any = nki.jit(each.kernel)
    simulated: Any = nki.simulate(each.kernel)
    if each.ranks:
        kernel, simulated = kernel[each.ranks], simulated[each.ranks]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        compiled, stepped = outputs(kernel(X, Y)), outputs(simulated(X, Y))
    for one, other in zip(compiled, stepped, strict=True):
        np.testing.assert_array_equal(one, other)
    expected = each.expected(X, Y)
    if expected is not None:
        assert compiled[0].shape == expected.shape
        np.testing.assert_allclose(
            compiled[0].astype(np.float64), expected.astype(np.float64), rtol=1e-5, atol=1e-5
        )
    advice = [w for w in told if w.category is KernelAdvice]
    assert bool(advice) is each.is_old, [str(w.message) for w in advice]
    assert all(w.filename.endswith("nki_releases.py") for w in advice)


def test_every_change_has_a_row_of_its_first_and_of_its_last_form() -> None:
    rows = {(each.symbol, each.release) for each in RELEASES}
    assert {(name, release) for name in CHANGED for release in ("0.2", "0.6")} <= rows


def test_what_the_engine_cannot_write_was_no_default_that_worked() -> None:
    """Release 0.2 said 0.0 for `on_false_value`, and that it must be the least float32."""

    def kernel(x: Any) -> None:
        tile, bound = nl.load(x), nl.zeros((8, 1), nl.float32)
        nisa.range_select(tile, tile, nl.less, nl.less, bound, bound, on_false_value=0.0)

    with pytest.raises(BrokenRule, match="least float32"):
        nki.simulate(kernel)(X)
