"""Columns that a pass hands on are those that would be read from its program."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from glia.kernels.matmul import matmul_tiled
from glia.machine.columns import columns_of, kept_columns
from glia.machine.ir import Program
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.machine.passes.place import place
from glia.nki.trace import trace
from law.clean_programs import clean


def _programs() -> dict[str, Program]:
    found = {name: each.program for name, each in clean().items()}
    left, right = np.zeros((256, 256), np.float32), np.zeros((256, 1024), np.float32)
    return found | {"kernel": trace(matmul_tiled, left, right)}


PROGRAMS = _programs()


def _is_same(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray):
        return np.array_equal(first, second)
    if is_dataclass(first) and type(first) is type(second):
        names = [each.name for each in fields(first)]
        return all(_is_same(getattr(first, name), getattr(second, name)) for name in names)
    return first == second


@pytest.mark.parametrize("name", PROGRAMS)
def test_semaphores_leave_the_other_columns(name: str) -> None:
    program = insert_semaphores(replace(PROGRAMS[name]))
    kept = kept_columns(program)
    assert kept is not None
    assert _is_same(kept, columns_of(replace(program)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_placement_leaves_all_columns(name: str) -> None:
    free = replace(PROGRAMS[name], addresses={})
    placed = place(free)
    assert kept_columns(placed) is columns_of(free)
    assert _is_same(columns_of(free), columns_of(replace(placed)))
