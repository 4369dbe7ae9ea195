"""The code of docs/pytorch.md prints what the page shows."""

from __future__ import annotations

import doctest

import torch

from house.source import REPOSITORY


def test_the_page_of_pytorch_shows_what_its_code_prints() -> None:
    torch._dynamo.reset()
    text = (REPOSITORY / "docs/pytorch.md").read_text(encoding="utf-8").replace("```", "")
    test = doctest.DocTestParser().get_doctest(text, {}, "pytorch.md", None, 0)
    found = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    assert found.attempted > 15 and not found.failed
