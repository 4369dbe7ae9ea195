"""The benchmark report shows failures, and the limits hold for whole models."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from ml_dtypes import bfloat16

import glia

FOLDER = Path(__file__).parents[2] / "benchmarks"


def load_report(name: str = "report") -> Any:
    """A file of benchmarks/, which are not in a package."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_failed_measurement_is_a_cell_with_its_code_and_breaks_the_limits() -> None:
    failed = {"what": "bert trn2-2-bf16", "error": "[GLIA301] too large | for SBUF"}
    compiled = {"seconds": 59.0, "peak_gib": 3.0, "neff_bytes": 1, "passes": {"emit": 2.0}}
    compiled |= {"static_instructions": 1, "dynamic_instructions": 2, "latency_us": 3.0}
    compiled |= {"roofline": 0.5, "hbm_bytes": 4}
    executed = {"executor_seconds": 1.0, "xla_seconds": 0.1, "relative_l2": 2e-5}
    measurements: dict[str, dict[str, Any]] = {
        "prepare": {"hlo_bytes": 3},
        "trn2-2-none": compiled,
        "trn2-2-bf16": failed,
        "execute-none": executed,
        "execute-bf16": failed,
    }
    page, failures = load_report().render({"bert": measurements})
    assert "| trn2 | 2 | bf16 | FAILED [GLIA301] too large \\| for SBUF |" in page
    assert [line.partition(",")[0] for line in failures if line.startswith("bert --")] == [
        "bert --auto-cast none: relative L2 error: 2e-05",
        "bert --auto-cast matmult (bf16): seconds to compile: not measured",
        "bert --auto-cast matmult (bf16): GiB of memory to compile: not measured",
        "bert --auto-cast matmult (bf16): relative L2 error: not measured",
    ]


def test_other_tables_are_added_and_what_they_miss_is_a_failure() -> None:
    good = {"title": "Speed", "text": "How fast.", "headings": ["a"], "rows": [["1 | 2"]]}
    tables = {"one": good | {"broken": ["speed: 1, NOT KEPT"]}, "two": {"error": "no result"}}
    page, failures = load_report().render({}, tables)
    assert "## Speed" in page and "| 1 \\| 2 |" in page and "FAILED no result" in page
    assert failures == ["speed: 1, NOT KEPT", "two: no result"]


def test_the_machine_is_measured_in_rows() -> None:
    machine = load_report("machine")
    row = machine.measure("sparse")
    assert tuple(row) == machine.HEADINGS
    assert row["executions"] == 3 and row["HBM spanned"] > 90 << 30 and row["MiB"] < 200


@pytest.mark.nightly
@pytest.mark.parametrize("model", ["digits", "bert", "resnet50"])
def test_every_limit_holds_for_a_whole_model(model: str, tmp_path: Path) -> None:
    report = tmp_path / "RESULTS.md"
    command = [sys.executable, str(FOLDER / "run.py"), "--quick", "--only", model]
    ended = subprocess.run([*command, "--output", str(report)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.nightly
def test_temporaries_of_decoders_share_their_bytes() -> None:
    assert load_report("scratchpad").results()["broken"] == []


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_resnet_of_eight_images_fits(target: str) -> None:
    forward, images = load_report("networks").resnet50(batch=8, dtype=bfloat16)
    neff = glia.compile(jax.jit(forward).lower(images), target=target)
    assert neff.report["level"]["alternatives"][0]["optlevel"] == 2
    (found,) = glia.load(neff)(images)
    wanted = np.asarray(jax.jit(forward)(images)).astype(np.float32)
    assert np.linalg.norm(found.astype(np.float32) - wanted) <= 0.05 * np.linalg.norm(wanted)


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_bert_of_eight_sequences_fits_at_the_highest_level(target: str) -> None:
    forward, tokens = load_report("networks").bert(tokens=384, batch=8)
    neff = glia.compile(jax.jit(forward).lower(tokens), target=target, optlevel=3)
    assert max(each["optlevel"] for each in neff.report["level"]["alternatives"]) == 3


LARGEST_RUN = 3e11  # floating-point operations, that the host does in seconds


def drawn(shape: Any, generator: np.random.Generator, *, is_positive: bool) -> np.ndarray:
    """Numbers for an argument of a workload, scaled by what is summed over; itself if it has some.

    Integers are small: they are indices.
    """
    if isinstance(shape, np.ndarray):
        return shape
    dtype = np.dtype(shape.dtype)
    if dtype.kind in "iu":
        return generator.integers(0, 8, shape.shape).astype(dtype)
    values = generator.standard_normal(shape.shape, np.float32)
    values *= np.float32(shape.shape[-2] ** -0.5 if len(shape.shape) > 1 else 1)
    return (np.abs(values) if is_positive else values).astype(dtype)


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_what_is_timed_is_right(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every workload of CODE.md that is not too large computes what JAX does on a CPU."""
    monkeypatch.syspath_prepend(FOLDER)
    generator, wrong = np.random.default_rng(0), []
    for work in load_report("workloads").workloads():
        if work.heavy or sum(work.work[0].values()) > LARGEST_RUN:
            continue
        arguments = jax.tree.map(
            lambda each, is_positive="AdamW" in work.name: drawn(
                each, generator, is_positive=is_positive
            ),
            work.arguments,
        )
        neff = glia.compile(work.lowered(), target=target, auto_cast="none", no_cache=True)
        found = glia.load(neff)(*(np.array(each) for each in jax.tree.leaves(arguments)))
        with jax.default_matmul_precision("highest"):
            wanted = jax.tree.leaves(jax.jit(work.function)(*arguments))
        # Of a mixture of experts a few tokens choose between equals in bfloat16
        tolerance = 0.1 if work.name.startswith("MoE") else 3e-2
        for one, other in zip(found, wanted, strict=True):
            a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
            is_defined = ~(np.isnan(a) & np.isnan(b))  # of Adam, the root of a negative moment
            assert is_defined.any() or not b.size
            a, b = a[is_defined], b[is_defined]
            if not np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b):
                wrong.append(f"{work.name}: {np.linalg.norm(a - b):.3g} of {np.linalg.norm(b):.3g}")
    assert wrong == []
