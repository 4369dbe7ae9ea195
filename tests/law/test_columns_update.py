"""Columns that a pass hands on are those that would be read from its program."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from glia.kernels.matmul import matmul_tiled
from glia.machine.columns.table import (
    AffineColumn,
    Columns,
    PatternTable,
    SignalTable,
    WaitTable,
    columns_of,
)
from glia.machine.columns.value_numbering import DictionaryColumn, RowGroups
from glia.machine.ir import Program
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.machine.passes.place import place
from glia.nki.run.trace import trace
from support.clean_programs import clean


def _programs() -> dict[str, Program]:
    found = {name: each.program for name, each in clean().items()}
    left, right = np.zeros((256, 256), np.float32), np.zeros((256, 1024), np.float32)
    return found | {"kernel": trace(matmul_tiled, left, right)}


PROGRAMS = _programs()


def _meaning(value: Any, names: list[str]) -> Any:
    """What columns say, whatever the numbers they say it by."""
    if isinstance(value, DictionaryColumn):
        return [value.distinct[number] for number in value.number]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(
        value, Columns | PatternTable | WaitTable | SignalTable | AffineColumn | RowGroups
    ):
        told = {f.name: _meaning(getattr(value, f.name), names) for f in fields(value)}
        if isinstance(value, WaitTable | SignalTable):
            told["semaphore"] = [names[number] for number in value.semaphore]
        told.pop("semaphores", None)
        return told
    return value


def _is_same(first: Columns, second: Columns) -> bool:
    return _meaning(first, first.semaphores) == _meaning(second, second.semaphores)


@pytest.mark.parametrize("name", PROGRAMS)
def test_semaphores_leave_the_other_columns(name: str) -> None:
    program = insert_semaphores(replace(PROGRAMS[name]))
    kept = program.cache.get(Columns)
    assert kept is not None
    assert _is_same(kept, columns_of(replace(program)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_placement_leaves_all_columns(name: str) -> None:
    free = replace(PROGRAMS[name], addresses={})
    placed = place(free)
    assert placed.cache.get(Columns) is columns_of(free)
    assert _is_same(columns_of(free), columns_of(replace(placed)))
