"""A pytest plugin: reports each of JAX's tests as a line of JSON."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from glia.conformance.jax_tests.run_jax_tests import VARIABLE
from glia.conformance.nki_library.results import ERROR, MISMATCH, PASS, REFUSED, SKIPPED

_LONGEST_REASON = 300
_CODE = re.compile(r"\[((?:GLIA|NCC_)\w+)\]")
_NO_RULE = re.compile(
    r"rule for primitive '?[\w-]+'? not found for platform \w+|not supported on neuron"
)


def _write(**fields: Any) -> None:
    descriptor, _, _ = json.loads(os.environ[VARIABLE])
    os.write(descriptor, (json.dumps(fields) + "\n").encode())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what an earlier process ran."""
    _, done, limit = json.loads(os.environ[VARIABLE])
    items[:] = items[done : limit or None]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Report a file that cannot be imported."""
    if report.failed:
        _write(broken=str(report.longrepr).strip()[-_LONGEST_REASON:])


def pytest_runtest_logstart(nodeid: str) -> None:
    """Report that a test begins."""
    _write(begins=nodeid.partition("::")[2])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    """Report the outcome of a test, or of its preparation where that fails or skips it."""
    report = yield
    if report.when == "call" or (report.when == "setup" and not report.passed):
        status, code, reason = _outcome(report, call)
        _write(status=status, code=code, reason=reason, seconds=round(call.duration, 3))
    return report


def _outcome(report: Any, call: pytest.CallInfo[None]) -> tuple[str, str, str]:
    if report.passed:
        return PASS, "", ""
    if report.skipped:
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        return SKIPPED, "", str(text).removeprefix("Skipped: ")[:_LONGEST_REASON]
    problem = call.excinfo.value if call.excinfo is not None else None
    return outcome_of(problem)


def outcome_of(problem: BaseException | None) -> tuple[str, str, str]:
    """Status, code and reason of a test that raised: what has a code, or no rule, is refused."""
    for each in _chain(problem):
        text = str(each)
        if found := _CODE.search(text):
            return REFUSED, found[1], text[found.start() :].splitlines()[0][:_LONGEST_REASON]
        if found := _NO_RULE.search(text):
            return REFUSED, "", found[0]
    kind = MISMATCH if isinstance(problem, AssertionError) else ERROR
    lines = str(problem).strip().splitlines() or [""]
    return kind, "", f"{type(problem).__name__}: {' '.join(lines[:4])}"[:_LONGEST_REASON]


def _chain(problem: BaseException | None) -> Iterator[BaseException]:
    while problem is not None:
        yield problem
        problem = problem.__cause__ or problem.__context__
