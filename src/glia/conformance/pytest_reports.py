"""A plugin of pytest that reports tests as lines of JSON; suites say what their errors mean."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator
from typing import Any

import pytest

from glia.conformance.pytest_run import ChildOptions
from glia.conformance.suite_outcomes import PASS, SKIPPED

LONGEST_REASON = 300  # characters

Judgement = tuple[str, str, str]  # status, code and reason of a test


class PytestReports:
    """The plugin; `judge` gives the outcome of a test from the exception that it raised, if any."""

    def __init__(self, judge: Callable[[BaseException | None], Judgement]) -> None:
        self.judge = judge
        self.options = ChildOptions.load()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what an earlier process ran."""
        items[:] = items[self.options.done : self.options.limit or None]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Report a file that cannot be imported."""
        if report.failed:
            text = str(report.longrepr).strip()
            errors = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
            self._write(broken=(" ".join(errors) or text)[:LONGEST_REASON])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Report that a test begins."""
        self._write(begins=nodeid.partition("::")[2])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        """Report the outcome of a test, or of its preparation where that fails or skips it."""
        report = yield
        if report.when == "call" or (report.when == "setup" and not report.passed):
            status, code, reason = self._outcome(report, call)
            self._write(status=status, code=code, reason=reason, seconds=round(call.duration, 3))
        return report

    def _outcome(self, report: Any, call: pytest.CallInfo[None]) -> Judgement:
        if report.passed:
            return PASS, "", ""
        if report.skipped:
            return SKIPPED, "", _reason_of_skip(report)
        return self.judge(call.excinfo.value if call.excinfo is not None else None)

    def _write(self, **fields: Any) -> None:
        os.write(self.options.descriptor, (json.dumps(fields) + "\n").encode())


def _reason_of_skip(report: Any) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail}"
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    return str(text).removeprefix("Skipped: ")[:LONGEST_REASON]
