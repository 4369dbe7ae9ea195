"""Pages of docs/ whose code runs."""

from __future__ import annotations

import doctest

from house.source import REPOSITORY


def run_page(name: str, least: int) -> None:
    """Run the code of a page, of at least so many statements; it prints what the page shows."""
    text = (REPOSITORY / "docs" / name).read_text(encoding="utf-8").replace("```", "")
    variables = {"__name__": __name__}  # TensorFlow asks a function's module for its source
    test = doctest.DocTestParser().get_doctest(text, variables, name, None, 0)
    found = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    assert found.attempted >= least and not found.failed
