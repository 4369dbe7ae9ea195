"""The code of every document but the tour, which has a test of its own, runs and prints that."""

from __future__ import annotations

import pytest

from house.source import REPOSITORY
from house.tour import blocks, printed

DOCUMENTS = ("kernels.md", "programs.md", "ranks.md", "plan.md")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_code_prints_what_the_document_shows(name: str) -> None:
    variables: dict[str, object] = {"__name__": name}
    text = (REPOSITORY / "docs" / name).read_text(encoding="utf-8")
    found = list(blocks(text))
    assert found
    for block in found:
        assert printed(block, name, variables) == (block.shown or "")
