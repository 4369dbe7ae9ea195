"""The code of docs/tensorflow.md prints what the page shows."""

from __future__ import annotations

from house.pages import run_page


def test_the_page_of_tensorflow_shows_what_its_code_prints() -> None:
    run_page("tensorflow.md", least=25)
