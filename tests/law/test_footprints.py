"""What footprints say of accesses holds byte by byte."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from glia.base.affine import Affine
from glia.base.dtype import BF16, F32
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.footprint import Footprint
from support.examples import with_examples

TILE = Tile("t", Memory.HBM, F32, 1, 4096)

dims = st.lists(st.tuples(st.integers(-12, 12), st.integers(1, 4)), min_size=1, max_size=3).map(
    tuple
)
patterns = st.builds(
    lambda dims, offset, dtype: Pattern(TILE, dtype, dims, Affine.of(offset)),
    dims, st.integers(200, 240), st.sampled_from([F32, BF16]),
)  # fmt: skip


def bytes_of(pattern: Pattern, more: int = 0) -> set[int]:
    width = pattern.dtype.bytes
    touched = set()
    for index in product(*(range(count) for _, count in pattern.dims)):
        place = sum(i * step for i, (step, _) in zip(index, pattern.dims, strict=True))
        first = (pattern.offset.constant + more + place) * width
        touched |= set(range(first, first + width))
    return touched


@with_examples(400)
@given(patterns, patterns)
def test_footprints_apart_share_no_byte_and_covered_ones_all(one: Pattern, other: Pattern) -> None:
    a, b = Footprint.of(one), Footprint.of(other)
    if not a.may_overlap(b):
        assert not bytes_of(one) & bytes_of(other)
    if a.covers(b):
        assert bytes_of(other) <= bytes_of(one)
    assert a.may_overlap(a)


@with_examples(200)
@given(patterns, patterns, st.integers(-9, 9), st.integers(1, 4))
def test_what_a_loop_sweeps_is_what_its_iterations_touch(
    one: Pattern, other: Pattern, step: int, trips: int
) -> None:
    moving = Pattern(TILE, one.dtype, one.dims, one.offset + Affine.of("i") * step)
    swept = Footprint.of(moving).swept("i", trips)
    touched = set().union(*(bytes_of(one, i * step) for i in range(trips)))
    if not swept.may_overlap(Footprint.of(other)):
        assert not touched & bytes_of(other)
    if swept.covers(Footprint.of(other)):
        assert bytes_of(other) <= touched


def test_interleaved_rows_and_neighbouring_columns_are_apart() -> None:
    def rectangle(row: int, column: int, rows: int, columns: int, spacing: int) -> Footprint:
        dims = ((64 * spacing, rows), (1, columns))
        return Footprint.of(Pattern(TILE, F32, dims, Affine.of(64 * row + column)))

    assert not rectangle(0, 0, 8, 64, 2).may_overlap(rectangle(1, 0, 8, 64, 2))
    assert not rectangle(0, 0, 8, 32, 1).may_overlap(rectangle(0, 32, 8, 32, 1))
    assert rectangle(0, 0, 8, 33, 1).may_overlap(rectangle(0, 32, 8, 32, 1))
    assert not rectangle(0, 0, 8, 32, 1).covers(rectangle(2, 40, 1, 8, 1))
