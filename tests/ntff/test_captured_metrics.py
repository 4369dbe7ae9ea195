"""Metrics and tables of a captured execution agree with its profile, on every target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from glia.arch import TARGETS
from glia.neff.package import Neff
from glia.ntff.capture import Capture, Saved
from glia.ntff.summary import summarize_profile
from glia.ntff.tables import CapturedProfile
from glia.ntff.trace_file import TraceFile, load_with_hash
from glia.ntff.work import profiler_opcode
from glia.profile.report import profile_programs
from ntff.programs import product
from support.neff_programs import example_neff

EVENTS = 10_000
WITH_NKI = sorted(n for n, t in TARGETS.items() if t.arch.capabilities.has_nki)


def captured(folder: Path, neff: Neff) -> CapturedProfile:
    """A NEFF that was captured, and its profile with every execution."""
    path, session = folder / "k.neff", folder / "k.ntff"
    neff.save(path)
    Capture(path, session, {}).run(print)
    loaded, neff_hash = load_with_hash(path)
    profile = profile_programs(loaded.programs, loaded.target, events=EVENTS)
    return CapturedProfile(loaded, neff_hash, TraceFile.load(session), profile)


@pytest.mark.parametrize("target", WITH_NKI)
def test_sums_over_tables_are_the_metrics_of_the_summary(target: str, tmp_path: Path) -> None:
    found = captured(tmp_path, product(target))
    tables, summary = found.tables(), found.summary()
    instructions, transfers = tables["Instruction"], tables["DmaPacketAggregated"]
    timing = found.profile.timing
    assert summary["hbm_read_bytes"] == timing.hbm_read_bytes > 0
    assert summary["hbm_write_bytes"] == timing.hbm_written_bytes > 0
    kinds = ("input_queue", "output_queue", "weight_queue", "spill_save", "spill_reload")
    traffic = summary["hbm_read_bytes"] + summary["hbm_write_bytes"]
    assert sum(summary[f"{kind}_bytes"] for kind in kinds) == traffic
    assert sum(r["transfer_bytes"] for r in transfers) == summary["dma_transfer_total_bytes"]
    assert summary["dma_transfer_total_bytes"] == timing.moved_bytes
    assert len(transfers) == summary["dma_transfer_count"]
    assert sum(r["raw_flops"] for r in instructions) == summary["hardware_flops"]
    products = [r for r in instructions if r["opcode"] == "MATMUL"]
    assert len(products) == summary["matmul_instruction_count"] > 0
    useful = summary["hardware_flops"] - summary["transpose_flops"]
    assert summary["transpose_flops"] > 0
    assert useful == timing.matmul_flops == summary["model_flops"]
    assert summary["psum_read_sbuf_write_bytes"] > 0
    for engine in ("tensor", "vector", "scalar", "gpsimd"):
        rows = [r["duration_ns"] for r in instructions if r["engine"] == engine]
        seconds = summary[f"{engine}_engine_instruction_time"]
        assert sum(rows) == pytest.approx(seconds * 1e9, abs=len(rows) + 1)


@pytest.mark.parametrize("target", WITH_NKI)
def test_shares_are_parts_of_the_whole(target: str, tmp_path: Path) -> None:
    neff = product(target)
    profile = profile_programs(neff.programs, target)
    summary = summarize_profile(profile, neff.inputs, neff.outputs)
    percent = {name: each for name, each in summary.items() if name.endswith("_percent")}
    assert len(percent) > 20
    assert all(0 <= each <= 1 for each in percent.values()), percent
    assert summary["total_time"] == pytest.approx(profile.latency_us * 1e-6)
    assert summary["total_active_time"] <= summary["total_exec_time"] <= summary["total_time"]


def test_every_iteration_of_a_loop_has_its_row(tmp_path: Path) -> None:
    found = captured(tmp_path, example_neff())
    tables = found.tables()
    assert [row["opcode"] for row in tables["Instruction"]].count("TENSOR_SCALAR") == 3
    assert "executions" not in " ".join(row["message"] for row in tables["Warning"])
    few = profile_programs(found.neff.programs, found.neff.target, events=2)
    cut = CapturedProfile(found.neff, found.neff_hash, found.trace, few).tables()
    assert any("rows of" in row["message"] for row in cut["Warning"])


def test_instructions_have_the_names_that_the_profiler_gives() -> None:
    assert profiler_opcode("tensor", "nc_transpose") == "MATMUL"
    assert profiler_opcode("vector", "nc_transpose") == "NC_TRANSPOSE"
    assert profiler_opcode("scalar", "activation") == "ACTIVATE"
    assert profiler_opcode("vector", "tensor_tensor") == "TENSOR_TENSOR"


def test_a_capture_runs_on_the_inputs_given(tmp_path: Path, monkeypatch) -> None:

    monkeypatch.chdir(tmp_path)
    neff = example_neff()
    neff.save("k.neff")
    x = np.arange(neff.inputs[0].tile.elements, dtype=np.float32).reshape(neff.inputs[0].shape)
    Path("x.bin").write_bytes(x.tobytes())
    said: list[str] = []
    task = Capture(
        Path("k.neff"), Path("k.ntff"), {"x": "x.bin"}, executions=2, saved=Saved(as_raw=True)
    )
    task.run(said.append)
    assert said == ['saved output "y" as "y"', 'saved output "y" as "y.2"']
    first, second = (np.fromfile(name, np.float32) for name in ("y", "y.2"))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, np.zeros_like(first))
    assert TraceFile.load("k_exec_2.ntff").execution == 2
