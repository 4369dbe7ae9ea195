"""Layers under the private names of Beta 1, as public models launch them."""

from __future__ import annotations

import numpy as np
import pytest

import glia.nki.beta1 as nki
import glia.nki.beta1.language as nl
from glia.nki.beta1.errors import UnsupportedHere
from glia_dropin.kernels.mlp import (
    allocated_fused_rms_norm_qkv,
    mlp_isa_kernel,
    rmsnorm_qkv_isa_kernel,
)
from support.kernel_checks import assert_close, normal


def _normalised(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6) * gain


@pytest.mark.parametrize("shape", [(1, 1), (2, 80)])
@pytest.mark.parametrize("norm", ["", "gamma", "no gamma"])
def test_a_gated_layer_on_two_cores(shape: tuple[int, int], norm: str) -> None:
    x, gain = normal(*shape, 128), normal(1, 128)
    gate, up, down = normal(128, 256) / 16, normal(128, 256) / 16, normal(256, 128)
    out = np.zeros_like(x)
    nki.trace(mlp_isa_kernel)[(nl.nc(2),)](
        x, gain, gate, up, down, out, kernel_name="MLP", fused_rmsnorm=bool(norm),
        skip_gamma=norm == "no gamma", eps=1e-6,
    )  # fmt: skip
    if norm:
        x = _normalised(x, gain if norm == "gamma" else np.ones_like(gain))
    opened = x @ gate
    assert_close(out, (opened / (1 + np.exp(-opened)) * (x @ up)) @ down, 1e-4)


@pytest.mark.parametrize("fused", [True, False])
def test_a_projection_to_queries_keys_and_values(fused: bool) -> None:
    x, gain, weight = normal(2, 40, 256), normal(1, 256), normal(256, 192)
    out = np.zeros((2, 40, 192), np.float32)
    nki.trace(rmsnorm_qkv_isa_kernel)[(nl.nc(2),)](
        x, weight, gain, out, kernel_name="QKV", eps=1e-6, fused_rmsnorm=fused, bias=None
    )
    assert_close(out, (_normalised(x, gain) if fused else x) @ weight, 1e-4)


@pytest.mark.parametrize("grid", [(), (2,)])
def test_a_projection_of_normed_rows_returns_its_result(grid: tuple[int, ...]) -> None:
    x, weight = normal(2, 40, 256), normal(256, 192)
    launched = allocated_fused_rms_norm_qkv[grid] if grid else allocated_fused_rms_norm_qkv
    found = launched(x, weight, nl.float32, eps=1e-3)
    expected = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-3) @ weight
    assert_close(found, expected, 1e-4)


def test_what_the_layers_do_not_compute_is_refused() -> None:
    x, gain = normal(1, 1, 128), normal(1, 128)
    with pytest.raises(UnsupportedHere, match="bias in rmsnorm_qkv_isa_kernel"):
        nki.trace(rmsnorm_qkv_isa_kernel)(x, normal(128, 128), gain, x.copy(), bias=gain)
