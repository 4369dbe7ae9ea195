"""The code of docs/pytorch.md prints what the page shows."""

from __future__ import annotations

import torch

from house.pages import run_page


def test_the_page_of_pytorch_shows_what_its_code_prints() -> None:
    torch._dynamo.reset()
    run_page("pytorch.md", least=16)
