"""Compiled functions give what Python gives."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glia.base.errors import InternalError
from glia.base.machine_code import native
from glia.base.machine_code.native import Library
from glia.base.machine_code.object_cache import MOST_FOLDERS, VARIABLE, ObjectCache
from support import native_examples

LIBRARY = Library(native_examples, ("helper", "collatz", "arithmetic"), ("numbers", "lengths"))
WORDS = st.integers(-(2**31), 2**31 - 1)


def both(name: str, numbers: list[int]) -> None:
    """Call a function natively and in Python and compare everything it can change."""
    results = []
    for is_native in (True, False):
        record = {"numbers": np.array(numbers), "lengths": np.zeros(len(numbers) + 5, np.int64)}
        returned = int(LIBRARY.call(name, record, is_native=is_native))
        results.append((returned, record["lengths"].tolist(), record["numbers"].tolist()))
    assert results[0] == results[1]


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=9))
def test_loops_and_branches_are_python_s(numbers):
    both("collatz", [len(numbers), *numbers])


@given(WORDS, WORDS.filter(bool))
def test_arithmetic_is_python_s(a, b):
    both("arithmetic", [a, b])


def test_what_the_subset_lacks_is_refused_by_line():
    library = Library(native_examples, ("outside",), ("numbers",))
    with pytest.raises(InternalError, match="outside, line 3: Subscript cannot be compiled"):
        library.call("outside", {"numbers": np.zeros(1, np.int64)})


def test_object_code_is_made_once_for_each_text_and_all_integers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    made = []
    compiled = native._compiled

    def counted(*given, **options):
        made.append(given)
        return compiled(*given, **options)

    monkeypatch.setattr(native, "_compiled", counted)
    for limit, count in ((native_examples.LIMIT, 1), (native_examples.LIMIT, 1), (3, 2)):
        monkeypatch.setattr(native_examples, "LIMIT", limit)
        library = Library(native_examples, ("limited",), ("numbers",))
        assert library.call("limited", {"numbers": np.array([9])}) == min(9, limit)
        assert len(made) == count


def test_the_folders_of_older_texts_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for age in range(MOST_FOLDERS + 3):
        folder = tmp_path / f"{age:024x}"
        folder.mkdir()
        os.utime(folder, (age, age))
    ObjectCache(tmp_path / f"{99:024x}").store("x", b"y")
    assert sorted(tmp_path.iterdir()) == sorted(
        [tmp_path / "mine", tmp_path / f"{99:024x}"]
        + [tmp_path / f"{age:024x}" for age in range(4, MOST_FOLDERS + 3)]
    )
