"""`neuron_parallel_compile`: graphs are collected in one run, compiled, and found in the next."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from glia.cache.locks import locked
from glia.cache.store import CompileCache, describe_entry
from glia.cli import parallel_compile
from glia.compiler import collect, compile_collected
from plugins.neuron_programs import neuron_environment
from support.hlo_text import entry

ADDING = entry("ROOT r = f32[4] add(f32[4] parameter(0), f32[4] parameter(1))")
DOUBLING = entry("p = f32[4] parameter(0)\n ROOT r = f32[4] add(p, p)")
REFUSED = entry("p = f64[4] parameter(0)\n ROOT r = f64[4] tanh(p)")
UNKNOWN = ADDING.replace(b"add", b"axx")
COLLECTING = "import sys, glia.compiler as c; c.collect(bytes.fromhex(sys.argv[1]))"
TWO_GRAPHS = """
import jax, numpy
product = jax.jit(lambda x: x @ x)(numpy.ones((2, 2), numpy.float32))
print(numpy.asarray(jax.jit(lambda x: x.sum(0))(product)))
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CompileCache]:
    """The cache that the environment names."""
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    for name in ("NEURON_CC_FLAGS", "NEURON_EXTRACT_GRAPHS_ONLY"):
        monkeypatch.delenv(name, raising=False)
    yield CompileCache(tmp_path / "cache")


def invoke(*arguments: str) -> Result:
    main = parallel_compile.main
    return CliRunner().invoke(main, arguments, prog_name="neuron_parallel_compile")


def collecting(module: bytes) -> tuple[str, ...]:
    """A command that compiles a module."""
    return (sys.executable, "-c", COLLECTING, module.hex())


def test_a_command_is_run_once_and_its_graphs_are_compiled(cache: CompileCache) -> None:
    done = invoke("--num_parallel", "2", *collecting(ADDING))
    assert done.exit_code == 0, done.stderr
    assert "1 programs to compile are collected" in done.stdout
    assert "1 programs compiled, 0 failed" in done.stdout
    (found,) = cache.entries()
    assert not found.is_collected and not found.problem


def test_a_program_of_jax_then_runs_without_compiling(tmp_path: Path) -> None:
    environment = {**neuron_environment(tmp_path / "installed"), "GLIA_DEVICE": "host"}

    def run(*command: str) -> str:
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    module = (sys.executable, "-m", "glia.cli.parallel_compile")
    program = (sys.executable, "-c", TWO_GRAPHS)
    collected = run(*module, *program).splitlines()
    assert collected[0] == "[0. 0.]" and collected[-1].startswith("2 programs compiled, 0 failed")
    never = "import glia.compiler as c; c.compile_graph = None\n"
    assert run(sys.executable, "-c", never + TWO_GRAPHS) == "[4. 4.]\n"


def test_what_is_refused_fails_with_its_code_and_the_rest_is_compiled(cache: CompileCache) -> None:
    for module in (REFUSED, ADDING):
        collect(module)
    done = invoke("--command", "compile")
    assert done.exit_code == 1
    assert "1 programs compiled, 1 failed" in done.stdout
    assert "NCC_ESPP004" in done.stderr and "[GLIA213] 1 of 2" in done.stderr
    assert len(cache.collected()) == 1


def test_analyze_has_a_row_for_each_program(cache: CompileCache) -> None:
    for module in (ADDING, REFUSED, UNKNOWN):
        collect(module)
    compile_collected(Path(next(p for p in cache.collected() if _opcode(p) == "add")))
    done = invoke("--command", "analyze", "--json", *collecting(DOUBLING))
    rows = {row["entry"]: row for row in json.loads(done.stdout)["programs"]}
    assert len(rows) == 4 and sum(row["compiled"] for row in rows.values()) == 1
    assert sorted(row["error"][:13] for row in rows.values()) == [
        "", "", "[NCC_ESPP004]", "[NCC_EVRF001]",
    ]  # fmt: skip
    assert [row["refused"] for row in rows.values() if "EVRF" in row["error"]] == [["axx"]]
    text = invoke("--command", "analyze").stdout
    assert "4 programs, 1 compiled, 2 refused" in text and "refused: axx [NCC_EVRF001]" in text


def _opcode(place: Path) -> str:
    from glia.cache.store import read_collected
    from glia.frontend.hlo_import.hlo_proto import parse_module

    (computation,) = parse_module(read_collected(place)[0]).computations
    return str(computation.instructions[-1].opcode)


def test_clean_removes_what_is_collected_only(cache: CompileCache) -> None:
    collect(ADDING)
    compile_collected(cache.collected()[0])
    collect(DOUBLING)
    assert "removed 1 collected programs" in invoke("--command", "clean").stdout
    (left,) = cache.entries()
    assert not left.is_collected


def test_locks_that_are_held_stay(cache: CompileCache) -> None:
    for module in (ADDING, DOUBLING):
        collect(module)
    with locked(min(cache.directory.rglob(".MODULE_*.lock"))):
        assert "removed 1 files of locks" in invoke("--command", "clear-locks").stdout


def test_processes_that_are_killed_are_tried_again(
    cache: CompileCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect(ADDING)
    statuses = [-9, -9, 0]
    tried: list[Any] = []

    def run(command: Any, **options: Any) -> Any:
        tried.append(command)
        return SimpleNamespace(returncode=statuses[len(tried) - 1], stderr="")

    monkeypatch.setattr(parallel_compile.subprocess, "run", run)
    monkeypatch.setenv("NEURON_PARALLEL_COMPILE_MAX_RETRIES", "1")
    done = invoke("--command", "compile")
    assert done.exit_code == 1 and "its process ended with status -9" in done.stderr
    tried.clear()
    monkeypatch.setenv("NEURON_PARALLEL_COMPILE_MAX_RETRIES", "2")
    assert invoke("--command", "compile").exit_code == 0 and len(tried) == 3


def test_a_command_that_fails_is_told_with_what_it_collected(cache: CompileCache) -> None:
    failing = (sys.executable, "-c", COLLECTING + "; sys.exit(3)", ADDING.hex())
    done = invoke(*failing)
    assert done.exit_code == 1
    assert "ended with status 3; 1 programs" in done.stderr and "GLIA212" in done.stderr
    assert describe_entry(cache.collected()[0]).is_collected


WRONG = [
    ((), "there is no command to run"),
    (("--command", "clean", "python"), "--command clean takes no command"),
    (("--command", "compil"), "is not one of"),
    (("--comand", "compile"), "did you mean --command?"),
    (("no-such-program",), "no-such-program cannot be run: No such file"),
]


@pytest.mark.parametrize(("arguments", "told"), WRONG)
def test_wrong_command_lines_end_in_one_screen(arguments: tuple[str, ...], told: str) -> None:
    done = invoke(*arguments)
    assert done.exit_code == 1 and told in done.stderr and "GLIA20" in done.stderr


def test_a_wrong_count_of_retries_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PARALLEL_COMPILE_MAX_RETRIES", "some")
    assert "MAX_RETRIES=some is not a whole number" in invoke("--command", "compile").stderr


def test_the_cache_is_named_where_there_is_none_and_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NEURON_COMPILE_CACHE_URL")
    monkeypatch.setattr(parallel_compile, "DEFAULT_DIRECTORY", str(tmp_path))
    done = invoke("--command", "clear-locks")
    assert f"programs are kept in {tmp_path}; NEURON_COMPILE_CACHE_URL" in done.stderr
    monkeypatch.setenv("NEURON_CC_FLAGS", "--no_cache")
    assert "GLIA127" in invoke("--command", "clear-locks").stderr


def test_help_has_examples() -> None:
    text = invoke("--help").stdout
    assert "neuron_parallel_compile python train.py" in text and "clear-locks" in text
