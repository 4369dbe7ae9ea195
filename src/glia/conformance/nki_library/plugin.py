"""A pytest plugin: runs the suite on glia, reports each test as a line of JSON."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from glia.base.errors import CompileError
from glia.conformance.nki_library.packed_dtypes import lend_packed_dtypes
from glia.conformance.nki_library.ranks import with_ranks
from glia.conformance.nki_library.results import ERROR, MISMATCH, PASS, REFUSED, SKIPPED
from glia.conformance.nki_library.settings import ChildOptions
from glia.conformance.nki_library.stand_ins import provide_modules

_LONGEST_REASON = 300
_VALIDATION = "ValidationException"  # the suite's, where results differ


def pytest_addoption() -> None:
    """Provide modules: this hook runs before pytest imports the suite's conftest."""
    provide_modules()


def pytest_sessionstart() -> None:
    """Declare what the suite's harness reads after a simulation and sets when it compiles only."""
    harness = importlib.import_module("test.utils.test_orchestrator")
    harness.Orchestrator._compiled_kernel = None
    if hasattr(harness.Orchestrator, "_run_simulator_inference"):
        harness.Orchestrator._run_simulator_inference = with_ranks(harness)
    lend_packed_dtypes()


def _write(**fields: Any) -> None:
    os.write(ChildOptions.load().descriptor, (json.dumps(fields) + "\n").encode())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what an earlier process ran."""
    options = ChildOptions.load()
    items[:] = items[options.done : options.limit or None]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Report a file that cannot be imported."""
    if report.failed:
        lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E ")]
        reason = " ".join(line[1:].strip() for line in lines)
        _write(broken=(reason or str(report.longrepr))[:_LONGEST_REASON])


def pytest_runtest_logstart(nodeid: str) -> None:
    """Report that a test begins."""
    _write(begins=nodeid.partition("::")[2])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    """Report the outcome of a test, or of its preparation where that fails."""
    report = yield
    if report.when == "call" or (report.when == "setup" and not report.passed):
        status, code, reason = _outcome(report, call)
        _write(status=status, code=code, reason=reason, seconds=round(call.duration, 3))
    return report


def _outcome(report: Any, call: pytest.CallInfo[None]) -> tuple[str, str, str]:
    if report.passed:
        return PASS, "", ""
    if report.skipped:
        return SKIPPED, "", _reason_of_skip(report)
    problem = call.excinfo.value if call.excinfo is not None else None
    chain = list(_chain(problem))
    for each in chain:
        if isinstance(each, CompileError):
            return REFUSED, each.code, _first_line(each)
    is_mismatch = any(type(each).__name__ == _VALIDATION for each in chain)
    last = chain[-1] if chain else None
    reason = f"{type(last).__name__}: {_first_line(last)}"
    return (MISMATCH if is_mismatch else ERROR), "", reason


def _chain(problem: BaseException | None) -> Iterator[BaseException]:
    while problem is not None:
        yield problem
        problem = problem.__cause__


def _reason_of_skip(report: Any) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail}"
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    return str(text).removeprefix("Skipped: ")[:_LONGEST_REASON]


def _first_line(error: BaseException | None) -> str:
    return (str(error).strip().splitlines() or [""])[0][:_LONGEST_REASON]
