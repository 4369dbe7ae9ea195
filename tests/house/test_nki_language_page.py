"""The page about the language of kernels is what the rules say today."""

from __future__ import annotations

from glia.nki.language_page import page
from house.source import REPOSITORY


def test_the_page_is_current() -> None:
    path = REPOSITORY / "docs" / "nki-language.md"
    assert path.read_text(encoding="utf-8") == page(), "run python -m glia.nki.language_page"
