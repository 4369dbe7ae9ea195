"""`neuronx-cc`: wrong command lines end in one screen with a code, right ones in a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from click.testing import CliRunner, Result

import glia
from glia.base.errors import ERRORS
from glia.cc_flags import split_ignored_flags
from glia.cli import neuronx_cc
from glia.neff.package import Neff
from glia.options import CompileOptions
from glia.pipeline import PIPELINE
from support.corpus import PROGRAMS, assert_close, hlo_bytes
from support.neff_programs import example_neff

MATMUL = next(program for program in PROGRAMS if program.name == "matmul")
MODEL = hlo_bytes(MATMUL)
BASE = ("compile", "model.pb", "--framework", "XLA", "--target", "trn2")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(glia.__file__).parents[1])}
NEURONX_CC = (sys.executable, "-m", "glia.cli.neuronx_cc")


@pytest.fixture(autouse=True)
def _work_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Path("model.pb").write_bytes(MODEL)
    yield


@pytest.fixture
def compiled_with(monkeypatch: pytest.MonkeyPatch) -> list[CompileOptions]:
    """The options the command line hands to the compiler, which answers with a known NEFF."""
    seen: list[CompileOptions] = []

    def compile_module(model: object, options: CompileOptions, *observers: object) -> Neff:
        seen.append(options)
        return example_neff(is_compressed=not options.fast_loading_neuron_binaries)

    monkeypatch.setattr(neuronx_cc, "compile_module", compile_module)
    return seen


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(neuronx_cc.main, arguments, prog_name="neuronx-cc")


WRONG = [
    # arguments, code, what the message must name
    ((), "", "Usage"),
    (("compile",), "GLIA201", "--framework is required"),
    (("compile", "model.pb", "--framework", "XLA"), "GLIA201", "--target is required"),
    (("compile", "--framework", "XLA", "--target", "trn2"), "GLIA203", "got none"),
    ((*BASE, "other.pb"), "GLIA203", "model.pb, other.pb"),
    ((*BASE, "--framework", "TORCH"), "GLIA201", "'TORCH' is not 'XLA'"),
    ((*BASE, "--target", "trn9"), "GLIA201", "inf2, trn1, trn1n, trn2, trn3"),
    ((*BASE, "--target", "inf1"), "GLIA201", "neuron-cc"),
    ((*BASE, "--auto-cats", "none"), "GLIA202", "did you mean --auto-cast?"),
    ((*BASE, "--fast-math", "none"), "GLIA202", "--fast-math"),
    ((*BASE, "--auto-cast", "some"), "GLIA201", "--auto-cast"),
    ((*BASE, "--auto-cast-type=int8"), "GLIA201", "fp8_e4m3"),
    ((*BASE, "--model-type", "cnn"), "GLIA201", "unet-inference"),
    ((*BASE, "-O4"), "GLIA201", "'4'"),
    ((*BASE, "-O"), "GLIA201", "requires an argument"),
    ((*BASE, "--optlevel", "high"), "GLIA201", "'high'"),
    ((*BASE, "--num-parallel-jobs", "0"), "GLIA201", "0"),
    ((*BASE, "--verbose", "loud"), "GLIA201", "'loud' is not one of"),
    ((*BASE, "--native-int64", "maybe"), "GLIA201", "'maybe'"),
    ((*BASE, "--implicit-integer-downcast", "dot,mul"), "GLIA201", "'mul' is not one of"),
    ((*BASE, "--distribution-strategy", "zero"), "GLIA201", "llm-training"),
    ((*BASE, "--lnc", "3"), "NCC_EARG001", "configuration 3"),
    ((*BASE, "-lnc", "two"), "GLIA201", "'two'"),
    ((*BASE, "--target", "trn1", "-lnc=2"), "NCC_EARG001", "target trn1"),
    ((*BASE, "--enable-saturate-infinity=yes"), "GLIA201", "does not take a value"),
    ((*BASE, "--output", "no/such/dir/x.neff"), "GLIA204", "No such file or directory"),
    ((*BASE, "--output", "."), "GLIA204", "directory"),
    ((*BASE, "--output", "model.pb"), "GLIA204", "it is the model file"),
    ((*BASE, "--output", "x" * 300), "GLIA204", "too long"),
    ((*BASE, "--logfile", "no/such/dir/log"), "GLIA204", "no/such/dir/log"),
    ((*BASE, "--dump", "model.pb"), "GLIA204", "exists"),
    (("compile", "nope.pb", *BASE[2:]), "GLIA101", "no such file"),
    (("compile", ".", *BASE[2:]), "GLIA101", "directory"),
    (("compile", "text.pb", *BASE[2:]), "GLIA102", ""),
    (("compile", "empty.pb", *BASE[2:]), "GLIA102", ""),
    (("list-operators",), "GLIA201", "--framework is required"),
    (("list-operators", "--framework", "MXNET"), "GLIA201", "'MXNET'"),
    (("lst",), "GLIA201", "'lst'"),
]


@pytest.mark.parametrize(("arguments", "code", "named"), WRONG, ids=lambda v: str(v)[-60:])
def test_wrong_command_lines_end_in_one_screen(
    arguments: tuple[str, ...], code: str, named: str
) -> None:
    Path("text.pb").write_text("HloModule m")
    Path("empty.pb").touch()
    before = sorted(Path().iterdir())
    result = invoke(*arguments)
    assert result.exit_code != 0
    assert named in result.output
    assert "Traceback" not in result.output
    assert len(result.output.splitlines()) < 24
    if code:
        assert code in ERRORS
        assert result.stderr.startswith(f"[{code}]")
    assert sorted(set(Path().iterdir()) - {Path("log-neuron-cc.txt")}) == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), {"auto_cast": "matmult", "auto_cast_type": "bf16", "optlevel": 2}),
        ((), {"mixed_precision_accumulation": True, "native_int64": "default"}),
        (("-O1",), {"optlevel": 1}),
        (("-O", "3"), {"optlevel": 3}),
        (("-O=3",), {"optlevel": 3}),
        (("--optlevel=1", "-O3"), {"optlevel": 3}),
        (("--auto-cast", "all", "--auto-cast=none"), {"auto_cast": "none"}),
        (("--lnc=1",), {"logical_nc_config": 1}),
        (("-lnc", "2"), {"logical_nc_config": 2}),
        (("-lnc=2", "--logical-nc-config", "1"), {"logical_nc_config": 1}),
        (
            (
                "--enable-mixed-precision-accumulation",
                "--disable-mixed-precision-accumulation",
            ),
            {"mixed_precision_accumulation": False},
        ),
        (
            (
                "--disable-mixed-precision-accumulation",
                "--enable-mixed-precision-accumulation",
            ),
            {"mixed_precision_accumulation": True},
        ),
        (
            ("--implicit-integer-downcast", "dot,pow"),
            {"implicit_integer_downcast": ("dot", "pow")},
        ),
        (("--distribution_strategy=fsdp",), {"distribution_strategy": "fsdp"}),
        (("--distribution-strategy", "nemo"), {"distribution_strategy": "llm-training"}),
        (("--enable-experimental-O1",), {"optlevel": 1}),
        (("--enable-experimental-O1", "-O3"), {"optlevel": 3}),
        (("--product-limits",), {"product_limits": True}),
        (("--target", "inf2"), {"target": "inf2"}),
    ],
)
def test_options_mean_what_the_table_says(
    arguments: tuple[str, ...], expected: dict[str, object], compiled_with: list[CompileOptions]
) -> None:
    result = invoke(*BASE, *arguments)
    assert result.exit_code == 0, result.output
    (options,) = compiled_with
    assert {name: getattr(options, name) for name in expected} == expected
    assert Neff.load("file.neff").name == "probe"


def test_a_compiled_model_computes_what_jax_computes() -> None:
    result = invoke(*BASE, "--auto-cast=none", "--output", "m.neff", "--verify", "--dump", "texts")
    assert result.exit_code == 0, result.output
    assert_close(MATMUL, glia.load("m.neff")(*MATMUL.arguments))
    dumped = sorted(path.name for path in Path("texts").iterdir())
    assert dumped[0] == "00-import.graph.txt"
    assert len(dumped) == len(PIPELINE) + 1
    assert all(path.stat().st_size for path in Path("texts").iterdir())


def test_equal_command_lines_give_equal_bytes() -> None:
    for jobs in ("1", "8"):
        assert invoke(*BASE, "--output", f"{jobs}.neff", "--num-parallel-jobs", jobs).exit_code == 0
    assert Path("1.neff").read_bytes() == Path("8.neff").read_bytes()


def test_fast_loading_leaves_the_archive_plain(compiled_with: list[CompileOptions]) -> None:
    assert invoke(*BASE, "--enable-fast-loading-neuron-binaries").exit_code == 0
    assert Path("file.neff").read_bytes()[1024:1033] == b"neff.json"


def test_deprecated_flags_warn(compiled_with: list[CompileOptions]) -> None:
    result = invoke(*BASE, "--enable-experimental-O1", "--distribution-strategy", "nemo")
    assert "use --optlevel 1 (-O1)" in result.stderr
    assert "use llm-training" in result.stderr


def test_wrapper_flags_are_accepted_with_one_warning_each(
    compiled_with: list[CompileOptions],
) -> None:
    arguments = (
        "--tensorizer-options=--enable-ccop-compute-overlap --cc-pipeline-tiling-factor=2",
        "--internal-hlo2tensorizer-options=--verify-hlo=true",
        "--internal-backend-options",
        "--enable-birsim=True",
        "--pipeline",
        "compile",
        "SaveTemps",
        "--internal-enable-dge-levels",
        "vector_dynamic_offsets",
        "scalar_dynamic_offset",
        "--hbm-scratchpad-page-size=1024",
        "--internal-never-seen-before",
        "7",
        "--no-internal-hlo-remat",
        "--execute-repetition=1",
    )
    result = invoke("compile", *arguments, *BASE[1:])
    assert result.exit_code == 0, result.output
    assert result.stderr.count("is accepted and has no effect") == 9
    assert "--pipeline=compile SaveTemps" in result.stderr


def test_a_file_after_a_flag_without_value_stays_the_model() -> None:
    rest, passed = split_ignored_flags(["--internal-hoist-allgather", "model.pb"])
    assert rest == ["model.pb"]
    assert [str(flag) for flag in passed] == ["--internal-hoist-allgather"]


def test_messages_go_where_their_severity_says(compiled_with: list[CompileOptions]) -> None:
    result = invoke(*BASE, "--verbose", "info", "--distribution-strategy", "nemo")
    assert "INFO: compiling model.pb" in result.stdout
    assert "WARNING" in result.stderr
    assert "WARNING" not in result.stdout
    assert "DEBUG" not in result.output


def test_verbose_takes_a_number(compiled_with: list[CompileOptions]) -> None:
    result = invoke(*BASE, "--verbose", "60", "--distribution-strategy", "nemo")
    assert result.exit_code == 0
    assert result.output == ""


def test_the_log_file_has_everything_and_is_the_only_other_artifact(
    compiled_with: list[CompileOptions],
) -> None:
    assert invoke(*BASE).exit_code == 0
    assert "DEBUG: options:" in Path("log-neuron-cc.txt").read_text()
    names = {path.name for path in Path().iterdir()}
    assert names == {"model.pb", "file.neff", "log-neuron-cc.txt"}


def test_options_that_ask_for_what_is_the_case_say_nothing(
    compiled_with: list[CompileOptions],
) -> None:
    result = invoke(*BASE, "-O1", "--lnc", "1", "--num-parallel-jobs", "1")
    assert "has no effect" not in result.stderr


def test_a_full_disk_is_an_error_with_a_code(compiled_with: list[CompileOptions]) -> None:
    result = invoke(*BASE, "--output", "/dev/full")
    assert result.exit_code == 1
    assert "[GLIA204] cannot write /dev/full: No space left" in result.stderr


def test_a_log_file_on_a_full_disk_ends_early_and_says_so_once(
    compiled_with: list[CompileOptions],
) -> None:
    result = invoke(*BASE, "--logfile", "/dev/full")
    assert result.exit_code == 0
    said = "WARNING: the log file /dev/full is incomplete: No space left on device\n"
    assert result.stderr.count(said) == result.stderr.count("/dev/full") == 1


def test_a_full_disk_under_stdout_is_an_error_with_a_code() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*NEURONX_CC, *BASE, "--verbose", "info"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=ENVIRONMENT,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("[GLIA204] cannot write standard output: No space left")
    assert "Traceback" not in done.stderr


def test_an_error_of_ours_is_one_screen_with_status_70(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Neff:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(neuronx_cc, "compile_module", fail)
    result = invoke(*BASE)
    assert result.exit_code == 70
    assert result.stderr.startswith("[internal error] ZeroDivisionError")
    assert "Traceback" not in result.output


def test_interrupting_leaves_no_partial_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> Neff:
        raise KeyboardInterrupt

    monkeypatch.setattr(neuronx_cc, "compile_module", interrupt)
    result = invoke(*BASE)
    assert result.exit_code == 130
    assert {path.name for path in Path().iterdir()} == {"model.pb", "log-neuron-cc.txt"}


def test_list_operators_is_sorted_and_holds_the_published_list() -> None:
    result = invoke("list-operators", "--framework", "XLA")
    names = result.stdout.split()
    assert result.exit_code == 0
    assert names == sorted(set(names))
    published = """
        Abs Add Allgather Allreduce Atan2 Batchnorm Batchnormgrad Batchnorminference
        BitcastConvertType Broadcast BroadcastInDim Ceil Clamp Compare Concatenate Constant
        ConstantLiteral ConvertElementType Cos Customcall Div Dot DotGeneral DynamicUpdateSlice Eq
        Exp Floor Gather Ge GetTupleElement Gt Iota Le Log LogicalAnd LogicalNot Lt Max Min Mul Ne
        Pad Pow Reduce Reshape Rev RngBitGenerator RngUniform Rsqrt Scatter Select SelectAndScatter
        ShiftRightLogical Sign Sin Slice Sqrt Sub Tanh Transpose Tuple"""
    assert set(published.split()) <= set(names)


@pytest.mark.parametrize("command", [(), ("compile",), ("list-operators",)])
def test_help_is_there(command: tuple[str, ...]) -> None:
    result = invoke(*command, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: neuronx-cc")


def test_help_of_compile_shows_examples_and_every_documented_option() -> None:
    text = invoke("compile", "--help").stdout
    options = """
        --framework --target --model-type --auto-cast --auto-cast-type --native-int64
        --enable-mixed-precision-accumulation --disable-mixed-precision-accumulation
        --enable-saturate-infinity --implicit-integer-downcast --distribution-strategy
        --distribution_strategy --logical-nc-config -lnc --lnc --optlevel -O --num-parallel-jobs
        --enable-fast-context-switch --enable-fast-loading-neuron-binaries
        --logfile --output --verbose"""
    assert [option for option in options.split() if option not in text] == []
    assert "Examples:" in text


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*NEURONX_CC, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=ENVIRONMENT,
    )


def test_the_real_command_fails_with_status_and_code() -> None:
    done = run_command("compile", "nope.pb", "--framework", "XLA", "--target", "trn2")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("[GLIA101] cannot read nope.pb")


def test_the_real_command_compiles_stablehlo() -> None:
    Path("model.mlir").write_text(jax.jit(MATMUL.function).lower(*MATMUL.arguments).as_text())
    done = run_command("compile", "model.mlir", *BASE[2:], "--auto-cast=none")
    said = [line for line in done.stderr.splitlines() if not line.startswith("compiling ")]
    assert (done.returncode, said) == (0, [])  # a compilation that takes long says where it is
    assert_close(MATMUL, glia.load("file.neff")(*MATMUL.arguments))


def test_the_real_command_ends_quietly_when_its_reader_leaves() -> None:
    with subprocess.Popen(
        [*NEURONX_CC, "list-operators", "--framework", "XLA"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()


def _heed_interrupts() -> None:
    """A shell lets what it starts in the background ignore them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_the_real_command_stops_at_an_interrupt() -> None:
    os.mkfifo("slow.pb")  # opening it waits for a writer
    arguments = ("compile", "slow.pb", "--framework", "XLA", "--target", "trn2", "--verbose=info")
    with subprocess.Popen(
        [*NEURONX_CC, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        preexec_fn=_heed_interrupts,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("INFO: compiling")
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert not Path("file.neff").exists()
