"""The timing model agrees with what has been published, as CALIBRATION.md says."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from glia.arch import TARGETS, readings

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark():
    """benchmarks/calibrate.py, which is not in a package."""
    sys.path.insert(0, str(FOLDER))
    import calibrate

    yield calibrate
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def results(benchmark):
    return benchmark.calibrate()


@pytest.fixture(scope="module")
def sources(benchmark):
    return benchmark.by_source()


def test_the_mean_error_and_the_worst_are_within_the_goals(benchmark, results) -> None:
    known = [r for r in results if not r.row.contradicted_by]
    assert benchmark.mean_error(known) <= benchmark.GOAL_MEAN
    wrong = [benchmark.line_of(r) for r in known if abs(r.error) > benchmark.GOAL_WORST]
    assert not wrong


def test_every_matrix_product_is_within_a_tenth(benchmark, results) -> None:
    fitted, _, contradicted = benchmark.split(results)
    gemms = [r for r in fitted if r.row.name.startswith("GEMM")]
    assert len(gemms) == 5 and len(contradicted) == 3
    assert not [benchmark.line_of(r) for r in gemms if abs(r.error) > benchmark.GOAL_GEMM]


def test_the_report_is_what_the_model_gives_now(benchmark, results, sources) -> None:
    written = benchmark.REPORT.read_text()
    assert written == benchmark.report_of(results, sources), "run `make calibrate`"


def test_each_publication_is_predicted_with_the_constants_of_the_others(
    benchmark, results, sources
) -> None:
    """Those of one kernel or picture say little alone."""
    import calibration_sources

    names = set(calibration_sources.PUBLICATIONS.values())
    own = [found for found in sources if found.name in names]
    known = [r for r in results if not r.row.contradicted_by]
    assert sum(len(found.published) for found in own) == len(known)
    for found in own:
        errors = np.array(found.predicted) / np.array(found.published) - 1
        if len(errors) > 2:
            assert np.abs(errors).mean() <= 0.12 and abs(np.median(errors)) <= 0.05, found.name


def test_leaving_a_publication_out_changes_constants_and_brings_them_back(benchmark) -> None:
    import calibration_sources

    before = dict(TARGETS)
    with calibration_sources.constants_without(readings.PROFILER) as (alone, others):
        assert "core_v3 latency_cycles.vector" in alone
        assert "core_v3 latency_cycles.tensor 400 -> 396" in others
        assert TARGETS["trn2"].arch.latency_cycles["tensor"] == 396
    assert before == TARGETS


def test_held_out_rows_are_within_a_fifth_and_no_constant_was_fitted_to_them(
    benchmark, results
) -> None:
    fitted, held_out, _ = benchmark.split(results)
    assert len(held_out) >= 10 and len(fitted) >= 64
    assert not [benchmark.line_of(r) for r in held_out if abs(r.error) > 0.2]
    named = tuple(name for fit in benchmark.FITS for name in fit.rows)
    assert not [r.row.name for r in held_out if r.row.name.startswith(named)]


def test_every_fitted_constant_names_rows_of_its_target(benchmark, results) -> None:
    for fit in benchmark.FITS:
        for name in fit.rows:
            rows = [r for r in results if r.row.target == fit.target]
            assert any(r.row.name.startswith(name) for r in rows), (fit, name)


def test_documented_costs_agree_or_say_why_not(benchmark) -> None:
    lines = benchmark.cost_lines()[2:]
    assert len(lines) >= 25
    assert not [line for line in lines if line.rstrip(" |").endswith("|") or line.endswith("|  |")]


def test_every_row_left_out_has_a_reason(benchmark) -> None:
    assert all(len(reason) > 20 for _, reason in benchmark.EXCLUDED)
