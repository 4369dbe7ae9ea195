"""The compile cache: what shares an entry, and what is never taken for a good one."""

from __future__ import annotations

import dataclasses
import gzip
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import glia
from glia.cache.errors import UnknownEntry, UnusableCache
from glia.cache.key import (
    COMPUTING_PACKAGES,
    canonical_hlo,
    canonical_module,
    compiler_version,
    flags_of,
    key_of,
)
from glia.cache.store import DONE, HLO, NEFF, CompileCache, cache_of, directory_of
from glia.cli.glia import main
from glia.cli.neuronx_cc import main as neuronx_cc
from glia.frontend.hlo import import_hlo
from glia.frontend.hlo_import.hlo_proto import parse_module
from glia.frontend.hlo_import.payloads import APART_BYTES
from glia.frontend.registry import read_module_file
from glia.options import UNRECORDED_OPTIONS, CompileOptions
from glia.plugins.hlo_module import HloModule
from support.compilations import watched_compilations
from support.hlo_text import entry

ADDING = entry("ROOT r = f32[4] add(f32[4] parameter(0), f32[4] parameter(1))")
DOUBLING = entry("p = f32[4] parameter(0)\n ROOT r = f32[4] add(p, p)")
Cache = Callable[..., int]


@pytest.fixture(autouse=True)
def _no_cache_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NEURON_COMPILE_CACHE_URL", "NEURON_CC_FLAGS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that were really compiled."""
    return watched_compilations(monkeypatch)


def _entries(directory: Path) -> list[Path]:
    return sorted(directory.glob("neuronxcc-*/MODULE_*"))


def _with_metadata(data: bytes) -> bytes:
    module = parse_module(data)
    for computation in module.computations:
        for instruction in computation.instructions:
            instruction.metadata.source_file, instruction.metadata.source_line = "model.py", 7
    module.stack_frames.file_names.append("model.py")
    serialized: bytes = module.SerializeToString()
    return serialized


def test_the_second_compilation_is_the_first_ones_bytes(
    tmp_path: Path, compiled: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    first = glia.compile(ADDING, cache_dir=str(tmp_path))
    with caplog.at_level(logging.INFO, "glia"):
        second = glia.compile(ADDING, cache_dir=str(tmp_path))
    assert len(compiled) == 1
    assert first.to_bytes() == second.to_bytes() == glia.compile(ADDING).to_bytes()
    assert (second.report, second.notes) == (first.report, first.notes)
    assert "using the cached" in caplog.text
    x = np.float32([1, 2, 3, 4])
    np.testing.assert_array_equal(glia.load(second)(x, x)[0], 2 * x)


def test_an_entry_has_the_products_layout(tmp_path: Path) -> None:
    glia.compile(ADDING, cache_dir=str(tmp_path), target="trn1")
    (place,) = _entries(tmp_path)
    assert place.parent.name == f"neuronxcc-{compiler_version()}"
    assert compiler_version().startswith(f"{glia.__version__}+")
    assert {each.name for each in place.iterdir()} == {
        "compile_flags.json", "model.hlo_module.pb.gz", "model.neff", "model.log", "model.done",
    }  # fmt: skip
    assert "--target=trn1" in json.loads((place / "compile_flags.json").read_text())
    assert glia.load(place / "model.neff").neff.target == "trn1"
    glia.compile(place / "model.hlo_module.pb.gz")


def test_every_entry_point_uses_the_cache_of_the_environment(
    tmp_path: Path, compiled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax

    from glia.plugins.jax import on_device

    cache = tmp_path / "cache"
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", f"file://{cache}")
    monkeypatch.chdir(tmp_path)

    def double(x: Any) -> Any:
        return x + x

    x = np.float32([1, 2])
    for _ in range(2):
        np.testing.assert_array_equal(on_device(double)(x), 2 * x)
    assert len(compiled) == len(_entries(cache)) == 1
    lowered = jax.jit(double).lower(x)
    for module in (lowered.as_text(), lowered.as_text()):
        glia.compile(module)
    assert len(compiled) == len(_entries(cache))
    Path("model.pb").write_bytes(DOUBLING)
    arguments = ["compile", "model.pb", "--framework", "XLA", "--target", "trn2"]
    before = len(compiled)
    for _ in range(2):
        assert CliRunner().invoke(neuronx_cc, arguments).exit_code == 0
        assert Path("file.neff").stat().st_size
        Path("file.neff").unlink()
    assert len(compiled) == before + 1 == len(_entries(cache))


@pytest.mark.parametrize("flags", ["--cache_dir {}", "--cache_dir={}"])
def test_flags_of_the_environment_say_where_and_whether(
    flags: str, tmp_path: Path, compiled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", str(tmp_path / "unused"))
    monkeypatch.setenv("NEURON_CC_FLAGS", flags.format(tmp_path / "cache"))
    Path("model.pb").write_bytes(ADDING)
    command = ["compile", "model.pb", "--framework", "XLA", "--target", "trn2"]
    assert CliRunner().invoke(neuronx_cc, [*command, "--auto-cast=none"]).exit_code == 0
    glia.compile("model.pb")
    assert len(compiled) == len(_entries(tmp_path / "cache")) == 1
    assert not (tmp_path / "unused").exists()
    monkeypatch.setenv("NEURON_CC_FLAGS", f"--no_cache --cache_dir {tmp_path / 'cache'}")
    glia.compile("model.pb")
    assert CliRunner().invoke(neuronx_cc, [*command, "--auto-cast=none"]).exit_code == 0
    assert len(compiled) == 3


def test_what_is_observed_dumped_or_verified_runs_every_pass(
    tmp_path: Path, compiled: list[Any]
) -> None:
    glia.compile(ADDING, cache_dir=str(tmp_path))
    steps: list[Any] = []
    glia.compile(ADDING, cache_dir=str(tmp_path), observer=steps.append)
    glia.compile(ADDING, cache_dir=str(tmp_path), verify=True)
    glia.compile(ADDING, cache_dir=str(tmp_path), dump=str(tmp_path / "dump"))
    glia.compile(import_hlo(ADDING), cache_dir=str(tmp_path))
    assert steps and list((tmp_path / "dump").iterdir())
    assert len(compiled) == 5 and len(_entries(tmp_path)) == 1


def test_a_key_holds_everything_but_source_locations_and_where_output_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = key_of(canonical_hlo(ADDING), CompileOptions())
    assert key_of(canonical_hlo(_with_metadata(ADDING)), CompileOptions()) == plain
    assert key_of(canonical_hlo(DOUBLING), CompileOptions()).hlo != plain.hlo
    other = {"int": 7, "bool": None, "str": "other", "tuple[str, ...]": ("dot",)}
    for each in dataclasses.fields(CompileOptions):
        value = other[str(each.type)]
        value = not each.default if value is None else value
        changed = dataclasses.replace(CompileOptions(), **{each.name: value})
        same = key_of(canonical_hlo(ADDING), changed) == plain
        assert same == (each.name in UNRECORDED_OPTIONS), each.name
    import glia.cache.key as module

    for name in COMPUTING_PACKAGES:
        monkeypatch.setattr(
            module, "version", lambda asked, name=name: "0" if asked == name else "1"
        )
        monkeypatch.setattr(module, "compiler_version", compiler_version.__wrapped__)
        assert key_of(canonical_hlo(ADDING), CompileOptions()).version != plain.version


def test_large_constants_are_part_of_the_key_and_of_the_entry(tmp_path: Path) -> None:
    weights = np.arange(APART_BYTES, dtype=np.float32)

    def doubled(array: np.ndarray) -> bytes:
        written = HloModule("weights")
        value = written.entry.constant(array)
        return written.serialized([written.entry.add("add", value.type, [value, value])])

    data = doubled(weights)
    key = key_of(canonical_hlo(data), CompileOptions())
    assert key == key_of(canonical_hlo(gzip.compress(data)), CompileOptions())
    weights[-1] += 1
    assert key.hlo != key_of(canonical_hlo(doubled(weights)), CompileOptions()).hlo
    glia.compile(data, cache_dir=str(tmp_path))
    (place,) = _entries(tmp_path)
    assert place.name.startswith(key.entry.partition("+")[0])
    assert canonical_module(read_module_file(place / HLO)) == canonical_module(data)


def _truncate(place: Path) -> None:
    path = place / NEFF
    path.write_bytes(path.read_bytes()[:-1])


def _flip(place: Path) -> None:
    path = place / NEFF
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _replace_all(place: Path) -> None:
    """Files that agree with each other, of another compilation."""
    record = json.loads((place / DONE).read_text())
    (place / DONE).write_text(json.dumps(record | {"flags": "0" * 64}))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": _truncate,
    "a bit": _flip,
    "foreign": _replace_all,
    "not done": lambda place: (place / DONE).unlink(),
    "no NEFF": lambda place: (place / NEFF).unlink(),
    "no JSON": lambda place: (place / DONE).write_text("{"),
    "a list": lambda place: (place / DONE).write_text("[]"),
    "deep": lambda place: (place / DONE).write_text("[" * 100_000),
    "long": lambda place: (place / DONE).write_bytes(bytes(1 << 21)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_compiled_again_and_replaced(
    damage: str, tmp_path: Path, compiled: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    good = glia.compile(ADDING, cache_dir=str(tmp_path)).to_bytes()
    (place,) = _entries(tmp_path)
    DAMAGES[damage](place)
    assert glia.compile(ADDING, cache_dir=str(tmp_path)).to_bytes() == good
    assert len(compiled) == 2 and "is damaged and compiled again" in caplog.text
    assert glia.compile(ADDING, cache_dir=str(tmp_path)).to_bytes() == good
    assert len(compiled) == 2
    assert [each.name for each in place.parent.iterdir() if each.is_dir()] == [place.name]


def test_a_cache_that_cannot_be_used_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, compiled: list[Any]
) -> None:
    (tmp_path / "file").write_text("")
    glia.compile(ADDING, cache_dir=str(tmp_path / "file"))
    assert "is not used: Not a directory" in caplog.text
    assert len(compiled) == 1


def test_a_full_disk_costs_a_warning_and_one_compilation(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    compiled: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import glia.cache.store as module

    def fail(path: Path, pieces: list[bytes]) -> None:
        path.write_bytes(pieces[0][:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write", fail)
    glia.compile(ADDING, cache_dir=str(tmp_path))
    assert "No space left" in caplog.text and len(compiled) == 1
    assert not list(tmp_path.rglob("model.*"))


def test_failures_are_not_stored(tmp_path: Path) -> None:
    options = CompileOptions()

    def fail() -> Any:
        raise UnusableCache(url="x", scheme="y")

    for _ in range(2):
        with pytest.raises(UnusableCache):
            CompileCache(tmp_path).compiled(ADDING, options, fail)
    assert not _entries(tmp_path)


def test_object_stores_are_refused_with_their_cure() -> None:
    with pytest.raises(UnusableCache, match=r"GLIA123.*s3 is not a file system"):
        cache_of(CompileOptions(cache_dir="s3://bucket/cache"))
    assert directory_of("file:///x/y") == Path("/x/y")
    assert directory_of("~/x") == Path.home() / "x"
    assert cache_of(CompileOptions()) is None
    assert cache_of(CompileOptions(cache_dir="x", no_cache=True)) is None


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["cache", *arguments], prog_name="glia")


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A cache with three entries of two modules."""
    for module, target in ((ADDING, "trn1"), (ADDING, "trn2"), (DOUBLING, "trn2")):
        glia.compile(module, cache_dir=str(tmp_path), target=target)
    return tmp_path


def test_list_names_entries_and_what_is_wrong_with_them(filled: Path) -> None:
    bad = _entries(filled)[0]
    _truncate(bad)
    found = json.loads(invoke("list", "--cache_dir", str(filled), "--json").stdout)["entries"]
    assert {each["entry"] for each in found} == {each.name for each in _entries(filled)}
    assert {each["entry"]: bool(each["problem"]) for each in found}[bad.name]
    assert sum(bool(each["problem"]) for each in found) == 1
    text = invoke("list", "--cache_dir", str(filled)).stdout
    assert "damaged: model.neff is not what was written" in text and "3 entries" in text


def test_explain_names_the_flag_or_the_instruction(filled: Path) -> None:
    rows = json.loads(invoke("list", "--cache_dir", str(filled), "--json").stdout)["entries"]
    by_hlo: dict[str, list[str]] = {}
    for row in rows:
        by_hlo.setdefault(row["entry"].partition("+")[0], []).append(row["entry"])
    one, two = next(names for names in by_hlo.values() if len(names) == 2)
    (other,) = next(names for names in by_hlo.values() if len(names) == 1)
    where = ("--cache_dir", str(filled))
    found = json.loads(invoke("explain", one, two, *where, "--json").stdout)
    assert {flag[2:] for flag in found["flags"]} == {"--target=trn1", "--target=trn2"}
    assert not found["module"] and found["version"] is None
    text = invoke("explain", one, other, *where).stdout
    assert "modules:" in text and 'opcode: "add"' in text
    assert "no difference" in invoke("explain", one, one, *where).stdout
    model = filled / "model.pb"
    model.write_bytes(_with_metadata(ADDING))
    text = invoke("explain", one, str(model), *where).stdout
    assert "no difference" in text and "a file has no flags" in text


def test_explain_says_that_compilers_differ(filled: Path) -> None:
    (old,) = filled.iterdir()
    old.rename(filled / "neuronxcc-0.0.1+00000000")
    glia.compile(DOUBLING, cache_dir=str(filled), target="trn3")
    (new,) = filled.glob(f"neuronxcc-{compiler_version()}/MODULE_*")
    text = invoke("explain", _entries(filled)[0].name, new.name, "--cache_dir", str(filled)).stdout
    assert f"compilers:\n-0.0.1+00000000\n+{compiler_version()}" in text


def test_an_unknown_or_ambiguous_entry_is_an_error(filled: Path) -> None:
    for name, count in (("MODULE_", "3"), ("MODULE_zz", "no")):
        result = invoke("explain", name, name, "--cache_dir", str(filled))
        assert result.exit_code == 1
        assert result.stderr.startswith(f"[{UnknownEntry.code}] {count} entries of {filled}")


def test_clean_removes_what_is_asked_and_nothing_else(filled: Path) -> None:
    where = ("--cache_dir", str(filled))
    first, second, third = _entries(filled)
    _truncate(first)
    for each in second.iterdir():
        os.utime(each, (0, 0))
    stray = first.with_name(f".{first.name}.abc")
    stray.mkdir()
    foreign = [filled / "neuronxcc-x" / "MODULE_mine", filled / "mine"]
    for each in foreign:
        each.mkdir(parents=True)
    assert len(json.loads(invoke("clean", *where, "--json").stdout)["removed"]) == 1
    assert _entries(filled)[:2] == [second, third] and not stray.exists()
    assert "removed 1 entries" in invoke("clean", "--older-than", "1", *where).stdout
    assert third.exists() and not second.exists()
    assert "removed 1 entries" in invoke("clean", "--all", *where).stdout
    assert all(each.is_dir() for each in foreign)
    assert not list(third.parent.iterdir())


def test_flags_are_those_of_the_command_line() -> None:
    assert "--auto-cast=none" in flags_of(CompileOptions(auto_cast="none"))
    assert not any("logfile" in flag for flag in flags_of(CompileOptions()))
