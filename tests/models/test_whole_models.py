"""Whole models compute on trn1, trn2 and trn3, at -O1 and -O2, what JAX computes in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import jax
import numpy as np
import pytest

import glia
from models.families import FAMILIES, NARROW, REAL, UNEVEN, Size, drawn_as

# The L2 error of every floating-point result, relative to the result, where JAX's own error in
# float32 is no greater
TOLERANCE = 5e-6
SETTINGS = [(target, level) for target in ("trn1", "trn2", "trn3") for level in (1, 2)]
EACH_TIME = list(zip(FAMILIES, cycle(SETTINGS)))  # every family, every setting
AT_REAL_SIZE = ("bert", "resnet", "vit", "gpt_decoder", "mixture", "lstm")


def errors_of(name: str, size: Size, target: str, level: int) -> list[str]:
    """The results that are further from the exact ones than TOLERANCE and JAX's errors explain.

    Most of JAX's is the rounding of weights and arguments, which both have; what is a result's own
    is independent of it, and adds as squares do.
    """
    function, arguments = FAMILIES[name](size)
    jitted = jax.jit(function)
    usual = _computed(function, arguments)
    with jax.enable_x64(True), drawn_as(np.float64):
        exact = _computed(*FAMILIES[name](size))
    neff = glia.compile(jitted.lower(*arguments), target=target, optlevel=level)
    found = glia.load(neff)(*jax.tree.leaves(arguments))
    wrong = []
    for number, (one, other, wanted) in enumerate(zip(found, usual, exact, strict=True)):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        error, error_of_jax = _error(one, wanted), _error(other, wanted)
        if error > math.hypot(TOLERANCE, error_of_jax):
            wrong.append(f"result {number}: {error:.3g}, of JAX {error_of_jax:.3g}")
    return wrong


def _computed(function: Callable[..., Any], arguments: Sequence[Any]) -> list[np.ndarray]:
    with jax.default_matmul_precision("highest"):
        return [np.asarray(each) for each in jax.tree.leaves(jax.jit(function)(*arguments))]


def _error(found: np.ndarray, wanted: np.ndarray) -> float:
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30))


@pytest.mark.parametrize(("name", "setting"), EACH_TIME, ids=str)
def test_a_narrow_model_of_every_family_is_right(name: str, setting: tuple[str, int]) -> None:
    assert errors_of(name, NARROW, *setting) == []


@pytest.mark.nightly
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("size", [NARROW, UNEVEN], ids=["narrow", "uneven"])
def test_a_small_model_is_right_everywhere(size: Size, name: str, setting: tuple[str, int]) -> None:
    assert errors_of(name, size, *setting) == []


@pytest.mark.nightly
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("name", AT_REAL_SIZE)
def test_a_model_of_real_size_is_right_everywhere(name: str, setting: tuple[str, int]) -> None:
    assert errors_of(name, REAL, *setting) == []
