"""A plugin of pytest: reports JAX's tests, and what their errors mean."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from glia.conformance.pytest_reports import LONGEST_REASON, Judgement, PytestReports
from glia.conformance.suite_outcomes import ERROR, MISMATCH, REFUSED

_CODE = re.compile(r"\[((?:GLIA|NCC_)\w+)\]")
_NO_RULE = re.compile(
    r"rule for primitive '?[\w-]+'? not found for platform \w+|not supported on neuron"
)


def pytest_configure(config: pytest.Config) -> None:
    """Report the tests of this process."""
    config.pluginmanager.register(PytestReports(outcome_of))


def outcome_of(problem: BaseException | None) -> Judgement:
    """Status, code and reason of a test that raised: what has a code, or no rule, is refused."""
    for each in _chain(problem):
        text = str(each)
        if found := _CODE.search(text):
            return REFUSED, found[1], text[found.start() :].splitlines()[0][:LONGEST_REASON]
        if found := _NO_RULE.search(text):
            return REFUSED, "", found[0]
    kind = MISMATCH if isinstance(problem, AssertionError) else ERROR
    lines = str(problem).strip().splitlines() or [""]
    return kind, "", f"{type(problem).__name__}: {' '.join(lines[:4])}"[:LONGEST_REASON]


def _chain(problem: BaseException | None) -> Iterator[BaseException]:
    while problem is not None:
        yield problem
        problem = problem.__cause__ or problem.__context__
