"""`neuron-profile` as public scripts call it: files it leaves, what it prints, what it refuses."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from click.testing import CliRunner, Result

from glia.base.dtype import BF16
from glia.cli.neuron_profile import REFUSED, SHORT, main
from glia.ntff.capture import file_name
from glia.runtime.model import load
from glia_dropin.nki.compiled_kernels import CompileKernel
from ntff.programs import counter, product_of_turned
from support.neff_programs import SHAPE, example_neff


@pytest.fixture(autouse=True)
def _work_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    example_neff().save("file.neff")
    yield


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="neuron-profile")


def succeed(*arguments: str) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_nth_execution_leaves_a_trace_and_its_summary_is_one_line_of_json() -> None:
    """As optimisers of kernels call it: capture, then the first line that begins with a brace."""
    succeed(
        "capture", "-n", "file.neff", "-s", "p.ntff", "--num-exec", "4", "--profile-nth-exec", "2"
    )
    assert sorted(p.name for p in Path().glob("*.ntff")) == ["p_exec_2.ntff", "p_exec_4.ntff"]
    text = succeed("view", "-n", "file.neff", "-s", "p_exec_4.ntff", "--output-format=summary-json")
    (line,) = (line for line in text.splitlines() if line.startswith("{"))
    ((name, metrics),) = json.loads(line).items()
    assert re.fullmatch(r"n_[0-9a-f]{40}", name)
    latency = load("file.neff").profile().latency_us
    assert metrics["total_time"] * 1e6 == pytest.approx(latency)


def test_one_worker_of_a_collective_run_is_captured_as_the_serving_library_asks() -> None:
    """The call and the names of files of neuronx-distributed-inference."""
    text = succeed(
        "capture", "-n", "file.neff", "-s", "p.ntff", "--collectives-workers-per-node", "1",
        "--collectives-profile-id", "0", "--num-exec", "2", "--profile-nth-exec", "2",
        "--ignore-exec-errors",
    )  # fmt: skip
    assert not text
    assert [p.name for p in Path().glob("*.ntff")] == ["p_rank_0_exec_2.ntff"]
    text = succeed(
        "view", "-n", "file.neff", "-s", "p_rank_0_exec_2.ntff", "--output-format", "summary-json",
        "--ignore-nc-buf-usage",
    )  # fmt: skip
    assert next(iter(json.loads(text).values()))["total_time"] > 0


def test_inputs_of_a_worker_come_from_a_file() -> None:
    x = np.linspace(-1, 1, SHAPE[0] * SHAPE[1], dtype=np.float32).reshape(SHAPE)
    Path("x.bin").write_bytes(x.tobytes())
    succeed("capture", "--save-output", "x", "x.bin")
    wanted = Path("y").read_bytes()
    Path("y").unlink()
    Path("names.txt").write_text("x x.bin\n")
    succeed("capture", "--save-output", "-m", "names.txt", "-r", "1")
    assert Path("y").read_bytes() == wanted


def test_outputs_are_saved_under_their_names_and_named_on_the_standard_output() -> None:
    x = np.linspace(-1, 1, SHAPE[0] * SHAPE[1], dtype=np.float32).reshape(SHAPE)
    Path("x.bin").write_bytes(x.tobytes())
    text = succeed(
        "capture", "--save-output", "--neff", "file.neff", "--num-exec=3", "--profile-nth-exec=3",
        "--save-nth-output=3", "--save-output-npy", "--enable-dge-notifs", "x", "x.bin",
    )  # fmt: skip
    assert re.findall(r'saved output "[^"]+" as "([^"]+)"', text) == ["y.3", "y.3.npy"]
    assert Path("profile_exec_3.ntff").exists()
    (wanted,) = load("file.neff")(x)
    np.testing.assert_array_equal(np.fromfile("y.3", np.float32).reshape(SHAPE), wanted)
    np.testing.assert_array_equal(np.load("y.3.npy"), wanted)


def test_a_session_shows_the_cycles_of_each_core() -> None:
    succeed("capture")
    shown = json.loads(succeed("show-session", "--show-errors", "-j"))
    (node,) = shown["NeffNodes"]
    (graph,) = node["NodeInfo"]["Graphs"]
    profile = load("file.neff").profile()
    assert graph["NC"] == 0
    base = profile.target.arch.clocks_ghz["base"]
    assert graph["CycleCount"] == round(profile.latency_us * 1e3 * base)
    assert shown["Errors"] == []
    assert f"CycleCount {graph['CycleCount']}" in succeed("show-session")


def test_json_and_parquet_hold_the_same_tables() -> None:
    succeed("capture")
    succeed("view", "--output-format", "json", "--output-file", "all.json")
    tables = json.loads(Path("all.json").read_text())
    first = tables["instruction"][0]
    assert first["timestamp"] == first["start_ts"]
    assert first["duration"] == first["duration_ns"]
    text = succeed("view", "--data-path", "workspace", "--display-name", "mine")
    folder = Path("workspace/profiles/global/mine@latest")
    assert text == f'Profile "mine" is ready to view in {folder}\n'
    found = parquet.read_table(folder / "Instruction.parquet").to_pylist()
    assert [row["start_ts"] for row in found] == [row["start_ts"] for row in tables["instruction"]]
    assert len(list(folder.iterdir())) == len(tables)


def test_a_summary_as_text_has_a_metric_on_each_line() -> None:
    succeed("capture")
    text = succeed("view", "--output-format", "summary-text")
    rows = dict(line.split() for line in text.splitlines())
    assert float(rows["total_time"]) > 0
    succeed("view", "--output-format", "summary-json", "--output-file", "s.json")
    assert len(next(iter(json.loads(Path("s.json").read_text()).values()))) == len(rows)
    succeed("view", "--output-format", "perfetto")
    assert json.loads(Path("ntff.perfetto.json").read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["view", "--no-such-option"], "[GLIA202] no such option: --no-such-option"),
        (["capture", "--num-execs", "2"], "[GLIA202] no such option: --num-execs"),
        (["view", "--output-format", "db"], "[GLIA201]"),
        (["view", "-s", "missing.ntff"], "[GLIA521] cannot read NTFF missing.ntff"),
        (["view", "-s", "file.neff"], "[GLIA522] the NTFF file.neff is not readable"),
        (["view", "-n", "other.neff", "-s", "p.ntff"], "[GLIA523] the NTFF p.ntff was captured"),
        (["view", "-s", "p.ntff", "--display-name", "../up"], "[GLIA201] --display-name"),
        (["capture", "x"], "[GLIA201] inputs are pairs of NAME FILE; 'x' has no file"),
        (["capture", "x", "x.npy", "x", "x.npy"], "[GLIA201] an input is given twice"),
        (["capture", "x", "p.ntff"], "[GLIA205] cannot use p.ntff: it has"),
        (["capture", "z", "x.npy"], "[GLIA501]"),
        (["capture", "-r", "2"], "[GLIA201] --collectives-workers-per-node 2 is not available"),
        (["capture", "-i", "1"], "[GLIA201] --collectives-profile-id 1 is not available"),
        (["capture", "-t", "systrace"], "[GLIA201] --capture-type systrace is not available"),
        (["capture", "--exec-mode", "async"], "[GLIA201] --exec-mode async is not available"),
        (["capture", "-m", "none.txt"], "[GLIA201] cannot read none.txt"),
        (["capture", "-m", "p.ntff"], "[GLIA201] p.ntff is not a text"),
        (["capture", "-m", "two.txt"], "[GLIA201] two.txt has inputs for 2 workers"),
        (["capture", "-m", "two.txt", "x", "x.npy"], "[GLIA201] inputs are given by"),
        (["recommend"], "[GLIA201]"),
    ],
)
def test_a_wrong_command_line_is_refused_by_what_is_wrong_in_it(
    arguments: list[str], message: str
) -> None:
    succeed("capture", "-s", "p.ntff")
    counter().save("other.neff")
    Path("two.txt").write_text("x x.npy\nx x.npy\n")
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(message), result.stderr


def test_every_option_without_a_meaning_here_is_refused_with_the_reason() -> None:
    for command, options in REFUSED.items():
        for name in [*options, *(short for short, name in SHORT.items() if name in options)]:
            result = invoke(command, f"{name}=1")
            assert f"{name} is not available: " in result.stderr, result.output


def test_a_damaged_trace_is_refused() -> None:
    succeed("capture", "-s", "p.ntff")
    data = bytearray(Path("p.ntff").read_bytes())
    data[-10] ^= 1
    Path("p.ntff").write_bytes(data)
    result = invoke("show-session", "-s", "p.ntff")
    assert result.exit_code == 1
    assert result.stderr.startswith("[GLIA522]"), result.stderr


def test_parquet_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    succeed("capture")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = invoke("view")
    assert result.stderr.startswith("[GLIA524] Parquet needs pyarrow"), result.stderr


def test_a_state_goes_on_from_execution_to_execution_unless_it_is_written_again() -> None:
    counter().save("counter.neff")
    run = ("capture", "-n", "counter.neff", "--num-exec", "3", "--save-output")
    succeed(*run)
    assert [int(np.fromfile(name, np.float32)[0]) for name in ("n", "n.2", "n.3")] == [1, 2, 3]
    succeed(*run, "--write-tensors-per-exec", "alias")
    assert [int(np.fromfile(name, np.float32)[0]) for name in ("n", "n.2", "n.3")] == [1, 1, 1]
    result = invoke(*run, "--check-output-determinism")
    assert result.stderr.startswith("[GLIA525] output 'n' of execution 2 differs"), result.stderr


def test_files_of_outputs_stay_in_the_folder_whatever_the_neff_calls_them() -> None:
    assert file_name("../../etc/x y") == "_.._etc_x_y"
    assert file_name("...") == "output"


def test_a_kernel_that_the_drop_in_compiles_is_captured_and_timed() -> None:
    """The steps of optimisers of kernels: compile without a device, find the NEFF, time it."""
    arrays = np.ones((128, 64), BF16.numpy), np.ones((64, 256), BF16.numpy)
    kernel = CompileKernel(
        func=product_of_turned.func, artifacts_dir="made", target="trn2", _enable_simulation=True
    )
    np.testing.assert_array_equal(kernel(*arrays), np.full((128, 256), 64, np.float32))
    neff = "made/kernel.neff"
    succeed("capture", "-n", neff, "-s", "k.ntff")
    text = succeed("view", "-n", neff, "-s", "k.ntff", "--output-format=summary-json")
    ((_, metrics),) = json.loads(text).items()
    assert metrics["total_time"] * 1e6 == pytest.approx(load(neff).profile().latency_us)
    assert metrics["hardware_flops"] - metrics["transpose_flops"] == 2 * 128 * 64 * 256
