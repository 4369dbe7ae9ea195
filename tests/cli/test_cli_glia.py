"""`glia`: what it prints for good files, and one screen with a code for everything else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import glia
from glia.base.error_catalogue import declared_errors
from glia.base.errors import ERRORS
from glia.base.unraised_codes import UNRAISED
from glia.cli.glia import main
from glia.pipeline import PIPELINE
from glia.runtime.arrays import compare
from support.corpus import PROGRAMS, hlo_bytes
from support.neff_programs import SHAPE, WEIGHTS, example_neff

X = np.linspace(-1, 1, SHAPE[0] * SHAPE[1], dtype=np.float32).reshape(SHAPE)
Y = 2 * X + np.tile(WEIGHTS, (3, 1))


@pytest.fixture(autouse=True)
def _work_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    example_neff().save("probe.neff")
    Path("model.pb").write_bytes(hlo_bytes(PROGRAMS[0]))
    np.save("x.npy", X)
    np.savez("good.npz", y=Y)
    np.savez("by_position.npz", Y)
    np.savez("bad.npz", y=Y + np.eye(*SHAPE, dtype=np.float32))
    yield


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="glia")


@pytest.mark.parametrize("reference", ["good.npz", "by_position.npz"])
def test_run_checks_against_a_reference(reference: str) -> None:
    result = invoke("run", "probe.neff", "--input", "x=x.npy", "--check", reference)
    assert result.exit_code == 0, result.output
    assert "within the tolerance" in result.stdout


def test_run_names_the_largest_difference() -> None:
    result = invoke("run", "probe.neff", "--input", "x=x.npy", "--check", "bad.npz")
    assert result.exit_code == 1
    assert "y: 8 of 3072 elements differ, most at [" in result.stderr
    assert result.stderr.startswith("[GLIA206] 1 of 1 outputs differ")


def test_run_prints_json_and_saves_outputs() -> None:
    result = invoke("run", "probe.neff", "--input", "x=x.npy", "--json", "--save", "out.npz")
    report = json.loads(result.stdout)
    assert report["seeded_inputs"] == []
    assert report["outputs"][0]["shape"] == list(SHAPE)
    np.testing.assert_allclose(np.load("out.npz")["y"], Y, rtol=1e-6)


def test_run_fills_inputs_from_the_seed() -> None:
    one, same, other = (invoke("run", "probe.neff", "--seed", s).stdout for s in "112")
    assert "filled from the seed: x" in one
    assert one == same != other


def _write_wrong_arrays() -> None:
    np.save("turned.npy", X.T)
    np.save("wide.npy", X.astype(np.float64))
    np.save("objects.npy", np.array([{}], object))


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("--input", "x=none.npy"), ("GLIA205", "none.npy (--input x)", "No such file")),
        (("--input", "x=."), ("GLIA205", ". (--input x)", "directory")),
        (("--input", "x=good.npz"), ("GLIA205", "(--input x)", "a .npy file")),
        (("--input", "x=objects.npy"), ("GLIA205", "(--input x)", "Python objects")),
        (("--input", "x=turned.npy"), ("GLIA502", "'x'", "[8, 384]", "[384, 8]")),
        (("--input", "x=wide.npy"), ("GLIA503", "'x'", "float64", "f32", "astype('float32')")),
        (("--input", "z=x.npy"), ("GLIA501", "'z'", "x: f32[384,8]")),
        (("--input", "x=x.npy", "--input", "x=x.npy"), ("GLIA201", "--input x is given twice")),
        (("--input", "x.npy"), ("GLIA201", "NAME=FILE.npy")),
        (("--check", "none.npz"), ("GLIA205", "none.npz (--check)")),
        (("--check", "x.npy"), ("GLIA205", "not a .npz file")),
        (("--seed", "-1"), ("GLIA201", "--seed", "x>=0")),
        (("--rtol", "nan"), ("GLIA201", "--rtol", "not a number")),
        (("--atol", "-1"), ("GLIA201", "--atol", "x>=0")),
        (("--device", "gpu"), ("GLIA504", "'gpu'", "reference, adversarial")),
        (("--save", "no/such/out.npz"), ("GLIA204", "no/such/out.npz")),
    ],
    ids=lambda each: " ".join(each) if each[0].startswith("--") else "",
)
def test_wrong_arguments_of_run_are_named(
    arguments: tuple[str, ...], names: tuple[str, ...]
) -> None:
    _write_wrong_arrays()
    result = invoke("run", "probe.neff", *arguments)
    assert result.exit_code == 1
    assert [name for name in (*names, "help:") if name not in result.stderr] == []


@pytest.mark.parametrize("command", ["run", "profile", "inspect"])
def test_a_model_is_no_neff_and_a_neff_no_model(command: str) -> None:
    assert "does not begin with a header" in invoke(command, "model.pb").stderr
    assert "it is a NEFF" in invoke("show", "probe.neff").stderr


def test_profile_prints_a_summary_and_writes_files() -> None:
    result = invoke("profile", "probe.neff", "--perfetto", "t.json", "--html", "p.html", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["latency_us"] > 0
    assert json.loads(Path("t.json").read_text())
    assert "<html" in Path("p.html").read_text()
    assert "latency" in invoke("profile", "probe.neff").stdout


def test_inspect_prints_header_tensors_members_and_counts() -> None:
    text = invoke("inspect", "probe.neff").stdout
    for part in ("target", "trn2", "x: f32[384,8]", "dma_copy 3", "sg00/program.bin", "resident"):
        assert part in text
    assert json.loads(invoke("inspect", "probe.neff", "--json").stdout)["target"] == "trn2"


def test_inspect_and_profile_say_how_much_hbm_temporaries_take() -> None:
    core = json.loads(invoke("inspect", "probe.neff", "--json").stdout)["cores"][0]
    assert core["scratchpad_bytes"] == 0 < core["hbm_bytes"]
    assert "0 of temporaries" in invoke("inspect", "probe.neff").stdout
    assert json.loads(invoke("profile", "probe.neff", "--json").stdout)["scratchpad_bytes"] == 0


def test_inspect_goes_as_far_as_it_can_with_other_compilers_files() -> None:
    data = bytearray(Path("probe.neff").read_bytes())
    data[40:168] = b"2.1".ljust(128, b"\0")
    Path("foreign.neff").write_bytes(data)
    text = invoke("inspect", "foreign.neff").stdout
    assert "another compiler's encoding" in text
    assert "sg00/def.json" in text


def test_explain_code_says_what_was_cast_and_how_nests_run() -> None:
    matmul = next(program for program in PROGRAMS if program.name == "matmul")
    glia.compile(hlo_bytes(matmul), auto_cast="matmult").save("cast.neff")
    text = invoke("explain-code", "cast.neff").stdout
    for expected in ("asked for: matmult/bf16", "us simulated", "dot f32[", "the PE saves",
                     "dot.0 on tensor: tiles [", "nc_matmul "):  # fmt: skip
        assert expected in text
    facts = json.loads(invoke("explain-code", "cast.neff", "--json").stdout)
    assert facts["casts"]["contractions"][0]["reason"] in text
    assert "no report: a kernel" in invoke("explain-code", "probe.neff").stdout


def test_explain_prints_cause_fix_and_example_of_declared_errors() -> None:
    for code in declared_errors():
        text = invoke("explain", code).stdout
        assert text.startswith(code)
        assert all(heading in text for heading in ("Cause:", "Fix:", "Example:")), code


def test_explain_without_a_code_lists_all() -> None:
    listed = [line.split()[0] for line in invoke("explain").stdout.splitlines()]
    assert listed == [*sorted(ERRORS), *UNRAISED]


def test_explain_takes_a_code_as_it_is_printed() -> None:
    assert invoke("explain", "[ncc_earg001]").stdout.startswith("NCC_EARG001")
    assert invoke("explain", "EARG001").stdout.startswith("NCC_EARG001")


def test_explain_timing_lists_assumed_constants() -> None:
    assert "core" in invoke("explain", "timing").stdout


def test_show_lists_the_passes_in_order() -> None:
    lines = [line.split() for line in invoke("show", "model.pb").stdout.splitlines()]
    assert lines == [["graph", "import"], *([p.makes, p.name] for p in PIPELINE)]


def test_show_prints_the_text_after_a_pass() -> None:
    result = invoke("show", "model.pb", "--after", "import")
    assert result.exit_code == 0, result.output
    assert "f32[" in result.stdout


WRONG = [
    ((), "", "Usage"),
    (("run",), "GLIA201", "F.neff is required"),
    (("run", "nope.neff"), "GLIA150", "No such file"),
    (("run", "."), "GLIA150", "directory"),
    (("run", "model.pb"), "GLIA151", "not a NEFF"),
    (("run", "x.npy"), "GLIA151", "not a NEFF"),
    (("run", "damaged.neff"), "GLIA152", "hash"),
    (("run", "probe.neff", "--input", "x"), "GLIA201", "NAME=FILE.npy"),
    (("run", "probe.neff", "--input", "x=nope.npy"), "GLIA205", "No such file"),
    (("run", "probe.neff", "--input", "x=model.pb"), "GLIA205", "model.pb"),
    (("run", "probe.neff", "--input", "x=good.npz"), "GLIA205", "one"),
    (("run", "probe.neff", "--input", "x=objects.npy"), "GLIA205", "objects.npy"),
    (("run", "probe.neff", "--input", "x=huge.npy"), "GLIA205", "huge.npy"),
    (("run", "probe.neff", "--input", "z=x.npy"), "GLIA501", "there is no input 'z'"),
    (("run", "probe.neff", "--input", "x=wide.npy"), "GLIA503", "float64"),
    (("run", "probe.neff", "--input", "x=flat.npy"), "GLIA502", "[3072]"),
    (("run", "probe.neff", "--check", "x.npy"), "GLIA205", "not a .npz"),
    (("run", "probe.neff", "--check", "other.npz"), "GLIA205", "no array 'y'"),
    (("run", "probe.neff", "--check", "short.npz"), "GLIA205", "shape [2]"),
    (("run", "probe.neff", "--save", "no/dir/x.npz"), "GLIA204", "No such file"),
    (("run", "probe.neff", "--device", "tpu"), "GLIA504", "'tpu'"),
    (("run", "probe.neff", "--ceck", "good.npz"), "GLIA202", "did you mean --check?"),
    (("inspect", "nope.neff"), "GLIA150", "No such file"),
    (("inspect", "/dev/null"), "GLIA150", "it is a device"),
    (("explain", "GLIA999"), "GLIA208", "did you mean GLIA"),
    (("explain", "tensor_scaler"), "GLIA208", "did you mean tensor_scalar?"),
    (("show", "model.pb", "--after", "nothing"), "GLIA207", "import"),
    (("show", "nope.pb", "--after", "import"), "GLIA101", "no such file"),
    (("frobnicate",), "GLIA201", "'frobnicate'"),
]


@pytest.mark.parametrize(("arguments", "code", "named"), WRONG, ids=lambda v: str(v)[-60:])
def test_wrong_use_ends_in_one_screen(arguments: tuple[str, ...], code: str, named: str) -> None:
    Path("damaged.neff").write_bytes(Path("probe.neff").read_bytes()[:-1] + b"?")
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save("wide.npy", X.astype(np.float64))
    np.save("flat.npy", X.reshape(-1))
    np.savez("other.npz", z=Y)
    np.savez("short.npz", y=Y[0, :2])
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }"
    padded = header.ljust(117) + b"\n"
    Path("huge.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded)
    result = invoke(*arguments)
    assert result.exit_code != 0
    assert named in result.output
    assert "Traceback" not in result.output
    assert len(result.output.splitlines()) < 32
    if code:
        assert code in ERRORS
        assert result.stderr.startswith(f"[{code}]")


def test_comparison_treats_nan_as_equal_to_nan_only() -> None:
    nan = np.array([np.nan, 1.0], np.float32)
    assert compare({"y": nan}, {"y": nan}, 0, 0) == []
    (difference,) = compare({"y": nan}, {"y": np.array([0, 1], np.float32)}, 1e9, 1e9)
    assert (difference.count, difference.index) == (1, (0,))


def test_importing_glia_imports_nothing_heavy() -> None:
    code = "import sys, glia; print([m for m in ('numpy', 'jax', 'google') if m in sys.modules])"
    environment = {"PYTHONPATH": str(Path(glia.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == "[]"
