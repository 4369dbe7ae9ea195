"""The selective scan kernel."""

from __future__ import annotations

import numpy as np
import pytest

from glia.kernels.mamba import mamba
from support.kernel_checks import (
    assert_close,
    assert_reaches,
    engine_ns,
    normal,
    run_both,
    span_ns,
    transfer_ns,
)


def arguments(batch: int, channels: int, time: int, states: int) -> list[np.ndarray]:
    """delta, u, a, b and c as a trained layer has them: steps positive, rates negative."""
    delta, u = np.abs(normal(batch, channels, time)) / 10, normal(batch, channels, time)
    rates = -np.abs(normal(channels, states))
    return [delta, u, rates, normal(batch, states, time), normal(batch, states, time)]


def step_by_step(
    delta: np.ndarray, u: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray
) -> np.ndarray:
    state = np.zeros((*delta.shape[:2], a.shape[1]))
    out = np.zeros(delta.shape)
    for t in range(delta.shape[2]):
        inflow = (delta * u)[:, :, t, None] * b[:, None, :, t]
        state = np.exp(delta[:, :, t, None] * a) * state + inflow
        out[:, :, t] = (state * c[:, None, :, t]).sum(-1)
    return out


@pytest.mark.parametrize("shape", [(2, 5, 7, 3), (1, 130, 600, 4), (1, 300, 4, 16)])
def test_the_scan_is_the_recurrence_step_by_step(shape: tuple[int, int, int, int]) -> None:
    given = arguments(*shape)
    assert_close(run_both(mamba, *given)[0], step_by_step(*given), 1e-5)


@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_it_scans_near_the_rate_of_vector(target: str) -> None:
    given = arguments(1, 256, 512, 16)
    bytes_moved = 4 * (3 * 256 * 512 + 2 * 16 * 512)
    bounds = transfer_ns(bytes_moved, target), engine_ns("vector", 2 * 16 * 4 * 512, target)
    assert_reaches(0.7, span_ns(mamba, *given, target=target), bounds)


def test_it_is_faster_than_the_first_version_of_the_tutorial_was_measured() -> None:
    published_ns = 172_930
    assert span_ns(mamba, *arguments(1, 256, 512, 16), target="trn1") < published_ns / 1.5
