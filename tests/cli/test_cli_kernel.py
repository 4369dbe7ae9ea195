"""`glia profile` and `glia check` say whose fault it is when a kernel cannot be run."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from glia.cli.glia import main

KERNELS = """\
from glia import nki
from glia.nki import isa as nisa, language as nl

@nki.jit
def doubled(x, dtype=""):
    assert x.shape[0] % 128 == 0, "no multiple of 128"
    out = nl.ndarray(x.shape, dtype or x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x))
    return out

@nki.jit
def shared(x):
    return doubled(x, dtype=[][x.shape[0]])
"""
WRONG = [
    ("doubled", ["x=f32[100,8]"], "GLIA211", "AssertionError: no multiple of 128", ":6 (doubled)"),
    ("shared", ["x=f32[128,8]"], "GLIA211", "IndexError: list index out of range", ":13 (shared)"),
    ("doubled", ["y=f32[128,8]"], "GLIA201", "no parameter 'y'; it takes x, dtype", ""),
    ("doubled", ["x=f32[128,8]", "dtyp=f32"], "GLIA201", "'dtyp'; did you mean dtype?", ""),
    ("doubled", ["x=f32[128,8]", "x=f32[128,4]"], "GLIA201", "x is given twice", ""),
    ("doubled", ["x=f32[128,"], "GLIA201", "'x=f32[128,' is not of the form", ""),
]


@pytest.fixture
def place(tmp_path: Path) -> str:
    (tmp_path / "k.py").write_text(KERNELS)
    return str(tmp_path / "k.py")


@pytest.mark.parametrize("command", ["profile", "check"])
@pytest.mark.parametrize(("kernel", "given", "code", "said", "where"), WRONG)
def test_what_the_user_got_wrong_is_no_internal_error(
    command: str, kernel: str, given: list[str], code: str, said: str, where: str, place: str
) -> None:
    arguments = [text for each in given for text in ("--arg", each)]
    found = CliRunner().invoke(main, [command, f"{place}::{kernel}", *arguments])
    assert found.exit_code == 1
    assert found.stderr.startswith(f"[{code}]")
    assert said in found.stderr and where in found.stderr


@pytest.mark.parametrize("command", ["profile", "check"])
@pytest.mark.parametrize("given", [[], ["--arg", "x=f32[128,8]"]])
def test_a_file_without_a_name_is_answered_with_its_kernels(
    command: str, given: list[str], place: str
) -> None:
    found = CliRunner().invoke(main, [command, place, *given])
    assert found.exit_code == 1
    assert f"name one: {place}::doubled, {place}::shared" in found.stderr


def test_a_name_of_a_dtype_is_a_constant(place: str) -> None:
    given = ["--arg", "x=f32[128,8]", "--arg", "dtype=bfloat16"]
    assert CliRunner().invoke(main, ["profile", f"{place}::doubled", *given]).exit_code == 0


def test_what_goes_wrong_inside_of_glia_stays_an_internal_error(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("ours")

    monkeypatch.setattr("glia.nki.run.kernel.trace_launch", broken)
    found = CliRunner().invoke(main, ["profile", f"{place}::doubled", "--arg", "x=f32[128,8]"])
    assert found.exit_code == 70
    assert "[internal error] ValueError: ours" in found.stderr
