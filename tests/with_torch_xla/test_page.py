"""The code of docs/torch-xla.md prints what the page shows."""

from __future__ import annotations

from house.pages import run_page


def test_the_code_of_the_page_prints_what_it_shows() -> None:
    run_page("torch-xla.md", least=14)
