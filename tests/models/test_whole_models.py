"""Whole models compute on trn1, trn2 and trn3, at -O1 and -O2, what JAX computes on a CPU."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import jax
import numpy as np
import pytest

import glia
from models.families import FAMILIES, NARROW, REAL, UNEVEN, Size

TOLERANCE = 5e-6  # the L2 error of every floating-point result, relative to the result
SETTINGS = [(target, level) for target in ("trn1", "trn2", "trn3") for level in (1, 2)]
EACH_TIME = list(zip(FAMILIES, cycle(SETTINGS)))  # every family, every setting
AT_REAL_SIZE = ("bert", "resnet", "vit", "gpt_decoder", "mixture", "lstm")


def errors_of(name: str, size: Size, target: str, level: int) -> list[str]:
    """The results that are further from JAX's than TOLERANCE allows, each with its error."""
    function, arguments = FAMILIES[name](size)
    jitted = jax.jit(function)
    with jax.default_matmul_precision("highest"):
        wanted = [np.asarray(each) for each in jax.tree.leaves(jitted(*arguments))]
    neff = glia.compile(jitted.lower(*arguments), target=target, optlevel=level)
    found = glia.load(neff)(*jax.tree.leaves(arguments))
    assert len(found) == len(wanted)
    pairs = enumerate(zip(found, wanted, strict=True))
    return [f"result {i}: {error}" for i, (a, b) in pairs if (error := _error(a, b)) > TOLERANCE]


def _error(found: Any, wanted: Any) -> float:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return np.inf
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
