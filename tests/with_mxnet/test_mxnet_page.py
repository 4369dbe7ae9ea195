"""The code of docs/mxnet.md prints what the page shows."""

from __future__ import annotations

from house.pages import run_page


def test_the_page_of_mxnet_shows_what_its_code_prints() -> None:
    run_page("mxnet.md", least=25)
