"""Options from NEURON_CC_FLAGS, calls and defaults, at every place where models are compiled."""

from __future__ import annotations

import builtins
import io
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

import glia
from glia import compile_messages
from glia.base.errors import CompileError
from glia.base.output_files import UnwritableOutput
from glia.cc_flags import UnknownCompilerFlag, environment_flags, resolve_options
from glia.cli.glia import main as glia_command
from glia.cli.neuronx_cc import main as neuronx_cc
from glia.frontend.errors import FrameworkMissing, NotAModel
from glia.kernels.softmax import softmax
from glia.options import BadOption, UnknownOption
from glia.plugins.jax import on_device
from glia.plugins.jax.errors import NotAFunction
from support.corpus import PROGRAMS, hlo_bytes

MATMUL = next(program for program in PROGRAMS if program.name == "matmul")
X = np.ones((128, 64), np.float32)


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    for variable in ("NEURON_CC_FLAGS", "NEURON_PLATFORM_TARGET_OVERRIDE"):
        monkeypatch.delenv(variable, raising=False)
    Path("model.pb").write_bytes(hlo_bytes(MATMUL))
    yield
    assert not logging.getLogger("glia").handlers


def recorded(neff: glia.Neff, *names: str) -> tuple[object, ...]:
    return tuple(neff.options[name] for name in names)


def test_flags_of_the_environment_reach_glia_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "--target=trn1 -O1 --auto-cast all --auto-cast-type fp16")
    neff = glia.compile("model.pb")
    assert neff.target == "trn1"
    found = recorded(neff, "optlevel", "auto_cast", "auto_cast_type")
    assert found == (1, "all", "fp16")
    explicit = glia.compile("model.pb", target="trn3", auto_cast="none", optlevel=3)
    assert explicit.target == "trn3"
    assert recorded(explicit, "optlevel", "auto_cast", "auto_cast_type") == (3, "none", "fp16")


def test_flags_of_the_environment_reach_on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "--target inf2 --optlevel 1")
    assert recorded(on_device(jnp.tanh).neff(X), "target", "optlevel") == ("inf2", 1)
    neff = on_device(jnp.tanh, target="trn2", optlevel=3).neff(X)
    assert recorded(neff, "target", "optlevel") == ("trn2", 3)


def test_flags_of_the_environment_reach_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "NEURON_CC_FLAGS",
        "--target trn1 --cache_dir=cache --no_cache --log_level ERROR -O3 "
        "--tensorizer-options='-a -b'",
    )
    words = ("compile", "model.pb", "--framework", "XLA", "--optlevel", "1", "--output", "m.neff")
    result = CliRunner().invoke(neuronx_cc, words)
    assert result.exit_code == 0, result.output
    assert "--tensorizer-options=-a -b is accepted and has no effect" in result.stderr
    assert recorded(glia.Neff.load("m.neff"), "target", "optlevel") == ("trn1", 1)


def test_flags_of_the_environment_reach_glia_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "--target trn1")
    shown = CliRunner().invoke(glia_command, ("show", "model.pb", "--after", "emit"))
    assert 'target "trn1"' in shown.output
    shown = CliRunner().invoke(
        glia_command, ("show", "model.pb", "--after", "emit", "--target", "trn3")
    )
    assert 'target "trn3"' in shown.output


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--auto-cats all", "did you mean --auto-cast"),
        ("--optlevel two", "is not a whole number"),
        ("--auto-cast", "lacks its value"),
        ("model.pb", "which is no flag"),
        ("--logfile 'x", "not a list of words"),
    ],
)
def test_wrong_flags_of_the_environment_are_named(
    flags: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", flags)
    with pytest.raises(UnknownCompilerFlag, match=named) as caught:
        glia.compile("model.pb")
    assert "NEURON_CC_FLAGS" in str(caught.value)


def test_the_command_names_the_variable_whose_flag_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "--auto-cats all")
    words = ("compile", "model.pb", "--framework", "XLA", "--target", "trn1")
    result = CliRunner().invoke(neuronx_cc, words)
    assert result.exit_code == 1
    assert "NEURON_CC_FLAGS holds '--auto-cats'" in result.stderr


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_parallel_jobs": "8"}, "'8'; it must be a whole number"),
        ({"num_parallel_jobs": 0}, "1 or more"),
        ({"saturate_infinity": "yes"}, "True or False"),
        ({"verify": 1}, "True or False"),
        ({"verbose": "loud"}, "debug, info"),
        ({"logfile": Path("x.log")}, "a text"),
        ({"implicit_integer_downcast": "dot"}, "a tuple of texts"),
    ],
)
def test_a_value_of_another_type_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(BadOption, match=named):
        glia.compile("model.pb", **options)


def test_every_kind_of_flag_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "NEURON_CC_FLAGS",
        "--enable-saturate-infinity --disable-mixed-precision-accumulation --product-limits -O=2 "
        "-lnc 1 --implicit-integer-downcast dot,pow --distribution_strategy llm-training "
        "--retry_failed_compilation --internal-max-instruction-limit=5 --cache_dir /x",
    )
    found = environment_flags()
    assert found.options == {
        "saturate_infinity": True,
        "mixed_precision_accumulation": False,
        "product_limits": True,
        "optlevel": 2,
        "logical_nc_config": 1,
        "implicit_integer_downcast": ("dot", "pow"),
        "distribution_strategy": "llm-training",
        "cache_dir": "/x",
    }
    assert found.wrapper == {"--retry_failed_compilation": "", "--cache_dir": "/x"}
    assert [each.flag for each in found.ignored] == ["--internal-max-instruction-limit"]
    monkeypatch.setenv(
        "NEURON_CC_FLAGS", "--enable-experimental-O1 --implicit-integer-downcast=default"
    )
    assert environment_flags().options["optlevel"] == 1


@pytest.mark.parametrize(
    ("given", "target", "flags", "cores"),
    [
        ("", "trn2", "", 2), ("1", "trn2", "", 1), ("2", "trn3", "", 2), ("2", "trn1", "", 1),
        ("1", "trn3", "--lnc 2", 2),
    ],
)  # fmt: skip
def test_the_environment_names_the_physical_cores_of_a_logical_one(
    given: str, target: str, flags: str, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", given)
    monkeypatch.setenv("NEURON_CC_FLAGS", flags)
    options, _ = resolve_options("glia.compile", {"target": target})
    assert options.cores == cores


def test_a_logical_core_that_a_target_has_not_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "4")
    with pytest.raises(BadOption, match=r"NEURON_LOGICAL_NC_CONFIG cannot be '4'.* 1 or 2"):
        resolve_options("glia.compile", {"target": "trn2"})


def test_a_wrong_value_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "--auto-cast some")
    with pytest.raises(BadOption, match="'some'"):
        glia.compile("model.pb")


def kernel_targets() -> tuple[str, str]:
    neff = softmax.compile(X)
    shown = CliRunner().invoke(
        glia_command,
        ("profile", f"{softmax.function.__code__.co_filename}::softmax", "--arg", "x=f32[128,64]"),
    )
    assert shown.exit_code == 0, shown.output
    return neff.target, shown.output.split("one core of ")[1].split(")")[0]


def test_kernels_and_models_have_one_default_target(monkeypatch: pytest.MonkeyPatch) -> None:
    assert glia.compile("model.pb").target == "trn2"
    assert kernel_targets() == ("trn2", "trn2")
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
    assert glia.compile("model.pb").target == "trn1"
    assert on_device(jnp.tanh).neff(X).target == "trn1"
    assert kernel_targets() == ("trn1", "trn1")
    monkeypatch.setenv("NEURON_CC_FLAGS", "--target trn3")
    assert glia.compile("model.pb").target == "trn3"
    assert kernel_targets() == ("trn3", "trn3")
    with_kernel = jax.jit(lambda x: softmax(x * 2))
    assert glia.compile(with_kernel.lower(X)).target == "trn3"
    assert on_device(with_kernel).neff(X).target == "trn3"


def test_a_misspelt_flag_is_refused_where_kernels_are_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "--targt trn3")
    with pytest.raises(UnknownCompilerFlag, match="--targt"):
        softmax.compile(X)
    kernel = f"{softmax.function.__code__.co_filename}::softmax"
    shown = CliRunner().invoke(glia_command, ("profile", kernel, "--arg", "x=f32[128,64]"))
    assert shown.exit_code == 1
    assert "GLIA122" in shown.output


class Terminal(io.StringIO):
    """What a terminal is given."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_messages, "QUIET_SECONDS", 0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    glia.compile("model.pb")
    shown = sys.stderr.getvalue()
    assert "compiling model.pb: [1/" in shown and shown.endswith("\r\x1b[2K")
    monkeypatch.setattr(sys, "stderr", Terminal())
    glia.compile("model.pb", verbose="error")
    assert not sys.stderr.getvalue()


def test_messages_go_where_they_are_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    glia.compile("model.pb")
    assert capfd.readouterr() == ("", "")
    assert not Path("log-neuron-cc.txt").exists()
    glia.compile("model.pb", verbose="info")
    assert "compiling model.pb for trn2" in capfd.readouterr().out
    glia.compile("model.pb", logfile="c.log")
    assert capfd.readouterr() == ("", "")
    assert "DEBUG: options: {" in Path("c.log").read_text(encoding="utf-8")


def test_warnings_of_passes_obey_verbose_and_are_logged(capfd: pytest.CaptureFixture[str]) -> None:
    def warn(step: object) -> None:
        if getattr(step, "name", "") == "emit":
            logging.getLogger("glia.test").warning("as a pass would")

    glia.compile("model.pb", verbose="error", logfile="c.log", observer=warn)
    assert "as a pass would" not in capfd.readouterr().err
    assert "WARNING: as a pass would" in Path("c.log").read_text(encoding="utf-8")
    glia.compile("model.pb", verbose="warning", observer=warn)
    assert "as a pass would" in capfd.readouterr().err


def test_outputs_and_dumps_are_written_where_they_are_asked_for() -> None:
    neff = glia.compile("model.pb", output="m.neff", dump="texts")
    assert Path("m.neff").read_bytes() == neff.to_bytes()
    assert any(path.name.endswith("emit.machine.txt") for path in Path("texts").iterdir())
    with pytest.raises(UnwritableOutput):
        glia.compile("model.pb", output="no/such/folder/m.neff")


def test_a_misspelt_option_names_the_function_that_was_called() -> None:
    with pytest.raises(
        UnknownOption, match=r"glia\.compile has no option 'autocast'; did you mean"
    ):
        glia.compile("model.pb", autocast="none")  # type: ignore[call-arg]
    with pytest.raises(UnknownOption, match="on_device has no option 'opt_level'; did you mean"):
        on_device(jnp.tanh, opt_level=1)


@pytest.mark.parametrize(
    ("module", "named"),
    [
        (3, "a value of type int"),
        (None, "a value of type NoneType"),
        (lambda x: x, "jax.jit(f).lower(...)"),
        (jax.jit(jnp.tanh), "call its lower() with example arguments"),
        (softmax, "has compile() of its own"),
    ],
)
def test_what_is_no_model_is_named_with_its_cure(module: Any, named: str) -> None:
    with pytest.raises(NotAModel) as caught:
        glia.compile(module)
    assert named in str(caught.value)
    assert "glia.compile cannot take" in str(caught.value)


def test_on_device_of_no_function_is_named_with_its_cure() -> None:
    with pytest.raises(NotAFunction, match="takes a function of JAX, not a value of type int"):
        on_device(3)  # type: ignore[arg-type]


def test_a_missing_jax_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_jax(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "jax":
            raise ModuleNotFoundError("No module named 'jax'", name="jax")
        return real(name, *rest)

    monkeypatch.delitem(sys.modules, "glia.plugins.jax.compiled_functions")
    monkeypatch.setattr(builtins, "__import__", without_jax)
    with pytest.raises(FrameworkMissing, match='pip install "glia\\[jax\\]"') as caught:
        from glia.plugins.jax import OnDevice  # noqa: F401
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, CompileError)
