"""Flax, optax and Equinox train on the platform `neuron` as on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAMS = Path(__file__).with_name("training_programs.py")


def _losses(name: str, platform: str) -> list[float]:
    """The losses of a program in a process of its own."""
    given = {"JAX_PLATFORMS": platform, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    made = subprocess.run(
        [sys.executable, PROGRAMS, name], env={**os.environ, **given}, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    found: list[float] = json.loads(made.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "name", ["linen_convolutions", "nnx_attention", "equinox_mlp", "divided_linen"]
)
def test_losses_fall_as_on_the_cpu(name: str) -> None:
    found, wanted = (_losses(name, platform) for platform in ("neuron", "cpu"))
    assert wanted[-1] < wanted[0]
    np.testing.assert_allclose(found, wanted, rtol=2e-3)
