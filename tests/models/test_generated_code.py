"""The table of compiled code: its rows are of workloads that exist, none faster than it can be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import glia
from glia.alternatives import latency_us

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark() -> Any:
    """The benchmark's module, with those it imports from its own folder."""
    sys.path.insert(0, str(FOLDER))
    try:
        import generated_code

        return generated_code
    finally:
        sys.path.remove(str(FOLDER))


def numbers(cells: tuple[str, ...]) -> tuple[float, float]:
    latency, bound = (float(cell.replace(",", "")) for cell in (cells[3], cells[4]))
    return latency, bound


def test_no_committed_latency_lies_below_what_bounds_its_workload(benchmark: Any) -> None:
    works = {work.name: work for work in benchmark.workloads()}
    rows = benchmark.rows_of((FOLDER / "CODE.md").read_text())
    assert len({cells[0] for cells in rows}) > 25
    for cells in rows:
        if cells[3].startswith("FAILED"):
            continue
        latency, bound = numbers(cells)
        work = works[cells[0]]
        least = max(work.bounds_us(cells[1]).values())
        assert bound == pytest.approx(least, rel=0.01, abs=0.06), cells
        assert latency >= least, cells


def test_bounds_count_loops_as_often_as_they_run_and_masked_work_not_at_all(benchmark: Any) -> None:
    import jax
    import jax.numpy as jnp
    from workload import Workload

    def three_products(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda x, _: (x @ w, None), x, None, length=3)[0]

    argument = jax.ShapeDtypeStruct((128, 128), jnp.float32)
    work = Workload("three", three_products, (argument, argument), 1.0)
    flops, moved = work.work
    assert dict(flops) == {"float32": 3 * 2 * 128**3} and moved == 3 * 4 * 128**2
    works = {each.name: each for each in benchmark.workloads()}
    full, causal = (
        works[f"{kind} attention 16/16 x 2048 x 128"].bounds_us("trn2")["PE"]
        for kind in ("full", "causal")
    )
    assert causal == full / 2


def test_a_failed_compilation_is_a_row_and_replaces_only_its_own(benchmark: Any) -> None:
    made = benchmark.Row("cumsum 2048x8192 fp32", "trn2", 2, 10.0, "DMA", "0.75", 20.0, 1.0)
    failed = benchmark.Row("softmax bf16", "trn1", 2, 10.0, "DMA", "0.85", error="[X] a | b")
    text = benchmark.updated(benchmark.updated("", [made]), [failed])
    cells = benchmark.rows_of(text)
    assert [row[0] for row in cells] == ["softmax bf16", "cumsum 2048x8192 fp32"]
    assert cells[0][3] == r"FAILED [X] a \| b" and cells[0][-1] == "no"
    assert cells[1][3:7] == ("20.0", "10.0", "DMA", "0.50")


def small(benchmark: Any, *names: str) -> list[Any]:
    """Workloads by name."""
    works = {work.name: work for work in benchmark.workloads()}
    return [works[name] for name in names]


def latencies(work: Any, target: str) -> list[float]:
    """Microseconds at -O1, -O2 and -O3."""
    found = []
    for level in (1, 2, 3):
        neff = glia.compile(work.lowered(), target=target, optlevel=level, auto_cast="none")
        us = latency_us(neff.programs, target)
        assert us is not None
        found.append(us)
    return found


@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_no_level_is_slower_than_the_one_below(benchmark: Any, target: str) -> None:
    works = small(benchmark, "digits training step fp32", "rotary fp32", "AdamW donated bf16")
    for work in works:
        first, second, third = latencies(work, target)
        assert third <= second <= first, work.name


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_no_level_of_any_small_row_is_slower_than_the_one_below(
    benchmark: Any, target: str
) -> None:
    for work in benchmark.workloads():
        if not work.heavy and max(work.bounds_us("trn2").values()) < 1000:
            first, second, third = latencies(work, target)
            assert third <= second <= first, work.name


def test_a_lower_level_is_compiled_where_it_is_faster_and_the_observer_sees_it(
    benchmark: Any,
) -> None:
    (work,) = small(benchmark, "digits training step fp32")
    steps: list[Any] = []
    neff = glia.compile(work.lowered(), target="trn1", optlevel=3, observer=steps.append)
    times = {each["optlevel"]: each["latency_us"] for each in neff.report["level"]["alternatives"]}
    assert neff.report["level"]["asked"] == 3
    compiled = neff.report["level"]["compiled"]
    assert times[compiled] == min(times.values()) < times[3] and compiled != 3
    assert latency_us(neff.programs, "trn1") == pytest.approx(times[compiled], abs=1e-3)
    ended = [step.ir for step in steps if step.name == "insert_semaphores"]
    assert len(ended) == 2 and ended[1].body == neff.program.body != ended[0].body
