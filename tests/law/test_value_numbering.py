"""Rows are of one kind exactly where they hold the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glia.machine.columns import value_numbering as module
from glia.machine.columns.value_numbering import group_column, group_rows

INTEGERS = st.one_of(st.integers(-3, 3), st.integers(-(1 << 63), (1 << 63) - 1))
WAYS = pytest.mark.parametrize("few", [0, module.SMALL_COLUMN])  # as arrays, or one by one


@WAYS
@given(values=st.lists(INTEGERS, max_size=60))
def test_rows_of_one_kind_hold_one_integer(few, values):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SMALL_COLUMN", few)
        found = group_column(np.array(values, np.int64))
    assert found.first[found.number].tolist() == first_rows(values)
    assert found.first.tolist() == sorted(set(first_rows(values)))


@pytest.mark.parametrize("factors", [[0], [1, 1], [0, 0, 0]])
def test_groups_do_not_depend_on_the_factors(monkeypatch, factors: list[int]):
    """A factor that lets all values meet in one place must only cost time."""
    monkeypatch.setattr(module, "SMALL_COLUMN", 0)
    monkeypatch.setattr(module, "FACTORS", np.array(factors, np.uint64))
    values = [7, -1, 7, 3, 1 << 60, -1, 3, 5]
    found = group_column(np.array(values, np.int64))
    assert found.first[found.number].tolist() == first_rows(values)


@WAYS
@given(
    rows=st.integers(1, 5).flatmap(
        lambda width: st.lists(st.tuples(*[INTEGERS] * width), min_size=1, max_size=30)
    )
)
def test_rows_are_alike_where_all_columns_agree(few, rows):
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SMALL_COLUMN", few)
        found = group_rows(*columns)
    assert found.first[found.number].tolist() == first_rows(rows)


def test_objects_are_told_apart_by_identity():
    values = [object() for _ in range(5)]
    array = np.array(values, object)
    assert module.identities(array).tolist() == [id(value) for value in values]


def first_rows(rows: list[object]) -> list[int]:
    return [rows.index(row) for row in rows]
