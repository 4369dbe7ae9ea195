"""Options and fixtures of the whole test-suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--bless` writes the expected texts of golden tests instead of comparing with them."""
    parser.addoption("--bless", action="store_true", help="update the texts under tests/golden")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with tests/golden/NAME.txt, or write it there when blessing."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        if request.config.getoption("--bless"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert text == path.read_text()

    return compare


LAST = "test_exercised.py"  # asks what the tests before it have exercised


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run LAST after everything else; in a run of the whole suite, watch what it exercises."""
    items.sort(key=lambda item: item.path.name == LAST)
    collected = {item.path for item in items}
    if collected == set(Path(__file__).parent.rglob("test_*.py")) and not config.option.keyword:
        from support import exercised

        exercised.watch()
