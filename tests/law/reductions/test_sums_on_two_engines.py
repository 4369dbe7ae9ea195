"""Sums of copies that nothing reads are divided between the Scalar and the Vector Engine."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import glia
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.vector import TensorReduce
from glia.machine.ir import Loop, walk
from glia.machine.passes.schedule import Scheduler
from glia.neff.package import Neff
from support.targets import CORES

ROWS, COLUMNS = 256, 32768


def variance(x: Any) -> Any:
    return jnp.var(x.astype(jnp.float32), axis=1)


def argument(dtype: Any) -> np.ndarray:
    values = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)) * 3 + 5
    return values.astype(dtype)


def compiled(x: np.ndarray, target: str, optlevel: int = 2) -> Neff:
    lowered = jax.jit(variance).lower(x)
    return glia.compile(lowered, target=target, optlevel=optlevel, no_cache=True)


def sums_in_loops(neff: Neff) -> Counter[str]:
    """How many sums of at least a thousand elements each engine has in loops."""
    loops = tuple(each for each in neff.programs[0].body if isinstance(each, Loop))
    found: Counter[str] = Counter()
    for instr in walk(loops):
        if isinstance(instr, TensorReduce) and instr.data.free >= 1000:
            found["vector"] += 1
        if isinstance(instr, Activation) and instr.reduced is not None:
            found["scalar"] += 1
    return found


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("optlevel", [2, 3])
def test_a_variance_is_right_and_never_slower(
    target: str, optlevel: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = argument(dtype)
    neff = compiled(x, target, optlevel)
    (found,) = glia.load(neff)(x)
    np.testing.assert_allclose(found, x.astype(np.float64).var(1), rtol=2e-5)
    monkeypatch.setattr(Scheduler, "has_sums", lambda *_: False)
    before = glia.load(compiled(x, target, optlevel)).profile().latency_us
    assert glia.load(neff).profile().latency_us <= before


@pytest.mark.parametrize("target", ["trn1", "trn2"])  # on trn3 the Vector Engine is the faster
def test_both_engines_sum_where_the_scalar_engine_had_all_to_do(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = argument(ml_dtypes.bfloat16)
    neff = compiled(x, target)
    assert min(sums_in_loops(neff)[engine] for engine in ("vector", "scalar")) > 0
    monkeypatch.setattr(Scheduler, "has_sums", lambda *_: False)
    before = compiled(x, target)
    assert not sums_in_loops(before)["vector"]
    times = [glia.load(each).profile().latency_us for each in (neff, before)]
    assert times[0] < 0.85 * times[1]
