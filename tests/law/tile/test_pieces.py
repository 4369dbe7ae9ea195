"""Boxes of pieces of a buffer are what enumerating their elements gives."""

from __future__ import annotations

from itertools import product

import numpy as np

from glia.base.affine import Affine
from glia.tile.pieces import Box, Piece, common_box, filled_box

DRAWS = 3000
AXES = ("i", "j")


def _draw(random: np.random.Generator) -> Piece:
    extents = {axis: int(random.integers(1, 4)) for axis in AXES}
    index = [
        Affine.of(axis) * int(random.choice((1, 1, 1, 2, -1))) + int(random.integers(4))
        for axis in AXES
    ]
    return index, extents


def _elements(piece: Piece) -> list[tuple[int, ...]]:
    index, extents = piece
    values = [dict(zip(AXES, at, strict=True)) for at in product(*map(range, extents.values()))]
    return [tuple(e.substitute(at).constant for e in index) for at in values]


def _around(found: list[tuple[int, ...]]) -> Box:
    return [(min(column), max(column) - min(column) + 1) for column in zip(*found, strict=True)]


def test_filled_boxes_have_every_element_once() -> None:
    random = np.random.default_rng(0)
    filled = 0
    for _ in range(DRAWS):
        pieces = [_draw(random) for _ in range(int(random.integers(1, 4)))]
        found = [element for piece in pieces for element in _elements(piece)]
        around = _around(found)
        inside = list(product(*(range(low, low + count) for low, count in around)))
        expected = around if sorted(found) == inside else None
        filled += expected is not None and len(pieces) > 1
        assert filled_box(pieces) == expected, pieces
    assert filled > 20


def test_common_boxes_have_no_more_than_their_pieces() -> None:
    random = np.random.default_rng(1)
    for _ in range(DRAWS):
        pieces = [_draw(random) for _ in range(2)]
        found = [element for piece in pieces for element in _elements(piece)]
        around = _around(found)
        is_small = around[0][1] * around[1][1] <= len(found)
        assert common_box(pieces) == (around if is_small else None), pieces


def test_pieces_with_two_axes_in_a_dimension_are_not_told() -> None:
    both = Affine.of("i") * 2 + "j"
    assert filled_box([([both, Affine()], {"i": 2, "j": 2})]) is None
    assert common_box([([both], {"i": 2, "j": 2}), ([both + 1], {"i": 2, "j": 2})]) is None
