"""Pages and stubs that are made from declarations are what the declarations say today."""

from __future__ import annotations

from pathlib import Path

import pytest

from house.source import REPOSITORY
from pages import generated

FILES = generated()


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_generated_file_is_current(path: Path) -> None:
    written = (REPOSITORY / path).read_text(encoding="utf-8")
    assert written == FILES[path], f"{path} is out of date: run `make pages`"


def test_no_page_of_an_instruction_is_left_over() -> None:
    written = (REPOSITORY / "docs/isa").rglob("*.md")
    assert {path.relative_to(REPOSITORY) for path in written} <= FILES.keys()
