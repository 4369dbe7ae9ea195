"""Masks of Beta 1 hold exactly where the comparisons they are made of do."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glia.nki.beta1.errors import UnsupportedMask
from glia.nki.beta1.tensors.index import Mask, arange
from support.examples import with_examples

SHAPE = (5, 4, 3)
AXES = (
    arange(5)[:, None, None], arange(4)[None, :, None], arange(3)[None, None, :],
)  # fmt: skip
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b, "==": lambda a, b: a == b, "!=": lambda a, b: a != b,
}  # fmt: skip
GRIDS = np.meshgrid(*(np.arange(n) for n in SHAPE), indexing="ij")


@st.composite
def masks(draw: st.DrawFn, depth: int = 2) -> tuple[Mask, np.ndarray]:
    """A mask over SHAPE and where it holds."""
    kind = draw(st.sampled_from(("and", "or", "not") if depth else ("compare",)))
    if kind == "compare" or draw(st.integers(0, 3)) == 0:
        steps = draw(st.tuples(*(st.integers(-2, 2) for _ in SHAPE)))
        limit = draw(st.integers(-4, 8))
        compare = COMPARISONS[draw(st.sampled_from(sorted(COMPARISONS)))]
        index = sum(axis * step for axis, step in zip(AXES, steps, strict=True))
        values = sum(grid * step for grid, step in zip(GRIDS, steps, strict=True))
        return compare(index, limit), compare(values, limit)
    first, held = draw(masks(depth=depth - 1))
    if kind == "not":
        return ~first, ~held
    second, other = draw(masks(depth=depth - 1))
    return (first & second, held & other) if kind == "and" else (first | second, held | other)


@given(masks())
@with_examples(60)
def test_a_mask_is_its_boxes_each_element_once(pair: tuple[Mask, np.ndarray]) -> None:
    mask, held = pair
    counts = np.zeros(SHAPE, int)
    box, rest = mask.bounding_box(SHAPE)
    for each in _boxes(box, rest):
        counts[tuple(slice(*ends) for ends in each)] += 1
    np.testing.assert_array_equal(counts, held.astype(int))


@given(masks())
@with_examples(60)
def test_the_box_of_a_mask_is_the_smallest_that_single_comparisons_show(
    pair: tuple[Mask, np.ndarray],
) -> None:
    mask, held = pair
    box, rest = mask.bounding_box(SHAPE)
    if box is None:
        assert not held.any()
        return
    inside = np.zeros(SHAPE, bool)
    inside[tuple(slice(*ends) for ends in box)] = True
    assert not (held & ~inside).any()
    if rest is None:
        np.testing.assert_array_equal(held, inside)
    else:
        assert _truth(rest)[inside].tolist() == held[inside].tolist()


def _truth(mask: Mask) -> np.ndarray:
    """Where the alternatives of a mask over all axes hold, each element asked for itself."""
    result = np.zeros(SHAPE, bool)
    for place in itertools.product(*(range(n) for n in SHAPE)):
        point = tuple((at, at + 1) for at in place)
        holds = [all(c.value_range(point)[0] >= 0 for c in each) for each in mask.alternatives]
        assert sum(holds) <= 1
        result[place] = any(holds)
    return result


@pytest.mark.parametrize("other", [True, False, np.True_])
def test_truth_values_join_masks(other: Any) -> None:
    mask = arange(4)[:, None] < 2
    assert (mask | other) is (True if other else mask)
    assert (mask & other) is (mask if other else False)


def test_a_mask_of_very_many_alternatives_is_refused() -> None:
    mask = arange(1000)[:, None] == 0
    with pytest.raises(UnsupportedMask, match="more than 64 alternatives"):
        for at in range(2, 1000, 2):
            mask = mask | (arange(1000)[:, None] == at)


def _boxes(box: Any, rest: Mask | None) -> list[Any]:
    if rest is not None:
        return list(rest.boxes(box))
    return [] if box is None else [box]
