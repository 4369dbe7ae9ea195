"""The code on the page about kernels runs, and prints what the page shows."""

from __future__ import annotations

import pytest

from house.source import REPOSITORY
from house.tour import Block, blocks, printed

PAGE = REPOSITORY / "docs" / "nki.md"
BLOCKS = list(blocks(PAGE.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def variables() -> dict[str, object]:
    """The names that one block leaves to the next."""
    return {"__name__": "page"}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"line {block.line}")
def test_code_prints_what_the_page_shows(block: Block, variables: dict[str, object]) -> None:
    assert printed(block, str(PAGE), variables) == (block.shown or "")


def test_both_generations_are_shown() -> None:
    code = "".join(block.code for block in BLOCKS)
    assert all(word in code for word in ("nki.simulate", "beta1.simulate_kernel", "benchmark"))
