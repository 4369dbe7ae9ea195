"""Running a kernel in both ways: simulated step by step, and compiled for the device."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from glia import nki
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.tensors.nki_tensor import NkiTensor
from glia.sim.policy import DEVICE_VARIABLE


def both(kernel: Callable[..., Any], *arrays: Any, **constants: Any) -> Any:
    """What a kernel returns, which is the same in both ways, bit by bit.

    Compiled, it runs by the declared meanings, as it is simulated.
    """
    simulated = nki.simulate(kernel)(*arrays, **constants)
    with mock.patch.dict(os.environ, {DEVICE_VARIABLE: "reference"}):
        compiled = nki.jit(kernel)(*arrays, **constants)
    pairs = zip(_listed(simulated), _listed(compiled), strict=True)
    for first, second in pairs:
        assert first.dtype == second.dtype
        np.testing.assert_array_equal(first, second)
    return simulated


def _listed(outputs: Any) -> list[np.ndarray]:
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]


def stored(tile: NkiTensor) -> NkiTensor:
    """A tensor in shared HBM with the contents of a tile."""
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    if tile.buffer is nl.psum:
        tile = nl.copy(tile)
    nisa.dma_copy(out, tile)
    return out


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal random numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
