"""Entries of the compile cache that are collected first and compiled later."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import glia
from glia.cache.errors import NoCacheToCollectIn
from glia.cache.key import flags_of, options_of
from glia.cache.locks import locked
from glia.cache.store import FLAGS, CompileCache, describe_entry
from glia.cli.glia import main
from glia.compiler import collect, compile_collected
from glia.frontend.errors import UnreadableFile
from glia.frontend.hlo import boundary_types, import_hlo
from glia.options import CompileOptions
from support.compilations import watched_compilations
from support.hlo_text import entry

ADDING = entry("ROOT r = f32[4] add(f32[4] parameter(0), f32[4] parameter(1))")
PAIR = entry("p = s32[2,3] parameter(0)\n ROOT r = (s32[2,3], s32[2,3]) tuple(p, p)")
NO_OPERATOR = ADDING.replace(b"add", b"axx")


@pytest.fixture(autouse=True)
def _no_cache_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NEURON_COMPILE_CACHE_URL", "NEURON_CC_FLAGS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that were really compiled."""
    return watched_compilations(monkeypatch)


def test_what_is_collected_is_compiled_later_and_found(tmp_path: Path, compiled: list[Any]) -> None:
    options = {"cache_dir": str(tmp_path), "target": "trn1", "implicit_integer_downcast": ("dot",)}
    collect(ADDING, **options)
    collect(ADDING, **options)
    cache = CompileCache(tmp_path)
    (place,) = cache.collected()
    assert not compiled and describe_entry(place).is_collected
    neff = compile_collected(place)
    assert len(compiled) == 1 and not cache.collected()
    assert glia.compile(ADDING, **options).to_bytes() == neff.to_bytes()  # type: ignore[arg-type]
    collect(ADDING, **options)
    assert len(compiled) == 1 and not cache.collected()


def test_a_run_that_needs_a_collected_program_compiles_it_without_complaint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    collect(ADDING, cache_dir=str(tmp_path))
    glia.compile(ADDING, cache_dir=str(tmp_path))
    assert not caplog.text and not CompileCache(tmp_path).collected()


def test_options_are_read_back_as_they_were_written() -> None:
    changed = CompileOptions(target="trn1", implicit_integer_downcast=("dot", "pow"), optlevel=1)
    for options in (CompileOptions(), changed, CompileOptions(product_limits=True, replicas=2)):
        assert options_of(flags_of(options)) == options
    plain = dataclasses.replace(CompileOptions(), cache_dir="x")
    assert options_of(flags_of(plain)) == CompileOptions()


def test_without_a_cache_nothing_is_collected() -> None:
    with pytest.raises(NoCacheToCollectIn, match="GLIA127"):
        collect(ADDING)


def test_damaged_flags_name_their_file(tmp_path: Path) -> None:
    collect(ADDING, cache_dir=str(tmp_path))
    (place,) = CompileCache(tmp_path).collected()
    (place / FLAGS).write_text(json.dumps(["--optlevel=two"]))
    with pytest.raises(UnreadableFile, match=FLAGS):
        compile_collected(place)


def test_the_boundary_of_a_module_is_that_of_its_graph() -> None:
    for module in (ADDING, PAIR):
        graph = import_hlo(module)
        inputs, outputs = boundary_types(module)
        assert list(inputs.items()) == [(each.name, each.type) for each in graph.parameters]
        assert list(outputs) == list(graph.result_names)
        assert list(outputs.values()) == [each.type for each in graph.results]
    assert boundary_types(NO_OPERATOR) == boundary_types(ADDING)


def test_list_names_what_is_collected_and_clean_keeps_it(tmp_path: Path) -> None:
    from click.testing import CliRunner

    collect(ADDING, cache_dir=str(tmp_path))
    where = ("--cache_dir", str(tmp_path))
    shown = CliRunner().invoke(main, ["cache", "list", *where]).stdout
    assert "collected for trn2, not yet compiled" in shown
    CliRunner().invoke(main, ["cache", "clean", *where])
    assert len(CompileCache(tmp_path).collected()) == 1


def test_locks_are_cleared_but_for_those_that_are_held(tmp_path: Path) -> None:
    for module in (ADDING, PAIR):
        collect(module, cache_dir=str(tmp_path))
    cache = CompileCache(tmp_path)
    first = min(tmp_path.rglob(".MODULE_*.lock"))
    with locked(first):
        assert cache.clear_locks() == 1
        assert list(tmp_path.rglob(".MODULE_*.lock")) == [first]
    assert cache.clear_locks() == 1 and len(cache.collected()) == 2
