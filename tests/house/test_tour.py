"""The tour's code runs, and prints what the tour shows."""

from __future__ import annotations

import pytest

from house.source import REPOSITORY
from house.tour import Block, agree, blocks, printed

TOUR = REPOSITORY / "docs" / "tour.md"
BLOCKS = list(blocks(TOUR.read_text(encoding="utf-8")))
TOLERANCE = 0.02


@pytest.fixture(scope="module")
def variables() -> dict[str, object]:
    """The names that one block leaves to the next."""
    return {"__name__": "tour"}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"line {block.line}")
def test_code_prints_what_the_tour_shows(block: Block, variables: dict[str, object]) -> None:
    found = printed(block, TOUR.name, variables)
    if not agree(block.shown or "", found, TOLERANCE):
        # rewritten by: python tests/house/tour.py docs/tour.md
        assert found == (block.shown or "")


def test_the_tour_reaches_every_level() -> None:
    code = "".join(block.code for block in BLOCKS)
    assert all(
        word in code for word in ("import_lowered", '"tile"', '"machine"', "run(", "profile")
    )
    assert sum(block.shown is not None for block in BLOCKS) > 10


def test_numbers_may_differ_a_little_and_words_not() -> None:
    assert agree("1.00 us", "1.01 us", TOLERANCE)
    assert not agree("1.00 us", "1.10 us", TOLERANCE)
    assert not agree("1.00 us", "1.00 ns", TOLERANCE)
