"""Options and fixtures of the whole test-suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import exercised

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


# Tests that run in environments of their own
ELSEWHERE = {"pytorch", "with_mxnet", "with_optimum", "with_tensorflow", "with_torch_xla", "mpi"}
USUAL = "not nightly"  # what pyproject.toml has a run take
WORKERS_OUTPUT = "exercised"  # what a process of a parallel run tells the one that started it


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a run of the whole suite, watch what it exercises."""
    here = Path(__file__).parent
    collected = {item.path for item in items}
    every = {
        path for path in here.rglob("test_*.py") if path.relative_to(here).parts[0] not in ELSEWHERE
    }
    is_whole = not config.option.keyword and config.option.markexpr == USUAL
    if collected >= every and is_whole:
        exercised.watch()


def pytest_testnodedown(node: Any) -> None:
    """Add up what a process of a parallel run has exercised."""
    seen = getattr(node, "workeroutput", {}).get(WORKERS_OUTPUT)
    if seen is not None:
        exercised.IS_WATCHING[0] = True
        exercised.EXERCISED.update(seen)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run of the whole suite that left a declared meaning or error out."""
    if not exercised.IS_WATCHING[0]:
        return
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[WORKERS_OUTPUT] = sorted(exercised.EXERCISED)
    elif session.exitstatus == pytest.ExitCode.OK and exercised.missing():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name what no test has exercised."""
    if exercised.IS_WATCHING[0] and exercised.missing():
        terminalreporter.section("exercised by no test", red=True)
        for label in exercised.missing():
            terminalreporter.line(label)
