"""A plugin of pytest: runs the suite on glia, and reports its tests and what their errors mean."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest

from glia.base.errors import CompileError
from glia.conformance.nki_library.packed_dtypes import lend_packed_dtypes
from glia.conformance.nki_library.ranks import with_ranks
from glia.conformance.nki_library.stand_ins import provide_modules
from glia.conformance.pytest_reports import LONGEST_REASON, Judgement, PytestReports
from glia.conformance.suite_outcomes import ERROR, MISMATCH, REFUSED

_VALIDATION = "ValidationException"  # the suite's, where results differ


def pytest_addoption() -> None:
    """Provide modules: this hook runs before pytest imports the suite's conftest."""
    provide_modules()


def pytest_configure(config: pytest.Config) -> None:
    """Report the tests of this process."""
    config.pluginmanager.register(PytestReports(outcome_of))


def pytest_sessionstart() -> None:
    """Declare what the suite's harness reads after a simulation and sets when it compiles only."""
    harness = importlib.import_module("test.utils.test_orchestrator")
    harness.Orchestrator._compiled_kernel = None
    if hasattr(harness.Orchestrator, "_run_simulator_inference"):
        harness.Orchestrator._run_simulator_inference = with_ranks(harness)
    lend_packed_dtypes()


def outcome_of(problem: BaseException | None) -> Judgement:
    """Status, code and reason of a test that raised: what glia says with a code is a refusal."""
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


def _first_line(error: BaseException | None) -> str:
    return (str(error).strip().splitlines() or [""])[0][:LONGEST_REASON]
