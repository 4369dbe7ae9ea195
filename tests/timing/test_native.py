"""Compiled functions give what Python gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glia.base.errors import InternalError
from glia.base.native import Library
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
