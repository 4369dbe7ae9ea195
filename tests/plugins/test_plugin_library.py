"""libneuronpjrt.so: the table of the process that loads it, or one that says why there is none."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from glia.base.output_files import UnwritableOutput
from glia.plugins.pjrt.errors import NoLibraryForMachine
from glia.plugins.pjrt.interface_table import table_address
from glia.plugins.pjrt.plugin_library import (
    ENTRY,
    FAILED_PRECONDITION,
    NAME,
    library,
    library_path,
)
from plugins.neuron_programs import NeuronProcess
from plugins.pjrt_calls import Refused, call

_NEW_NAMESPACE, _RESOLVE_NOW = -1, 2  # arguments of dlmopen
_HAS_LIBRARY = (platform.system(), platform.machine()) == ("Linux", "x86_64")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The library, in a cache of its own."""
    if not _HAS_LIBRARY:
        pytest.skip("this machine has no library")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return library_path()


def table_of(function: object) -> int:
    """What the entry of a library returns."""
    address = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert address
    table = ctypes.CFUNCTYPE(ctypes.c_void_p)(address)()
    assert isinstance(table, int)
    return table


def entry_without_python(path: Path) -> ctypes.c_void_p:
    """The entry of the library where it sees no other: as in a process without Python."""
    loader = ctypes.CDLL(None)
    loader.dlmopen.restype = loader.dlsym.restype = ctypes.c_void_p
    loader.dlmopen.argtypes = [ctypes.c_long, ctypes.c_char_p, ctypes.c_int]
    loader.dlsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    loaded = loader.dlmopen(_NEW_NAMESPACE, os.fsencode(path), _RESOLVE_NOW)
    assert loaded
    return ctypes.c_void_p(loader.dlsym(loaded, ENTRY.encode()))


def test_the_library_returns_the_table_of_the_process(path: Path) -> None:
    assert table_of(getattr(ctypes.CDLL(str(path)), ENTRY)) == table_address()


def test_a_process_without_python_is_told_so_by_every_function(path: Path) -> None:
    table = table_of(entry_without_python(path))
    for name in ("Plugin_Initialize", "Client_Create", "Buffer_ToHostBuffer"):
        with pytest.raises(Refused, match=r"^\[GLIA711\] .*no Python runs") as refused:
            call(name, table)
        assert refused.value.code == FAILED_PRECONDITION


def test_a_python_without_glia_is_told_so(path: Path) -> None:
    script = (
        "import ctypes, sys\n"
        f"entry = ctypes.CDLL({str(path)!r}).{ENTRY}\n"
        "entry.restype = ctypes.c_void_p\n"
        "from plugins.pjrt_calls import call\n"
        "del sys.modules['glia.plugins.pjrt.interface_table']\n"
        "sys.modules['glia'] = None\n"
        "call('Client_Create', entry())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert found.returncode == 1
    assert "import of glia halted" in found.stderr
    assert "Refused: [GLIA712]" in found.stderr


def test_jax_loads_it_by_name_and_path(path: Path, tmp_path: Path) -> None:
    named = {"PJRT_NAMES_AND_LIBRARY_PATHS": f"neuron:{path}"}
    process = NeuronProcess(tmp_path / "installed", JAX_PLATFORMS="", **named)
    assert process("devices")[-1] == "NC_v3"
    assert process("factors") < 1e-5  # the plugin for JAX lowers QR
    assert process.close() == 0


def test_it_is_written_once_and_again_where_it_was_damaged(path: Path) -> None:
    first = path.stat().st_ino
    assert path.name == NAME and path.read_bytes() == library()
    assert library_path().stat().st_ino == first
    path.write_bytes(path.read_bytes()[:-1])
    assert library_path().read_bytes() == library()


@pytest.mark.skipif(not _HAS_LIBRARY, reason="this machine has no library")
def test_a_cache_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "glia").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UnwritableOutput, match=NAME):
        library_path()


@pytest.mark.parametrize("system, processor", [("Darwin", "x86_64"), ("Linux", "aarch64")])
def test_other_machines_have_no_library(
    system: str, processor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: processor)
    with pytest.raises(NoLibraryForMachine, match=f"{system} on {processor}"):
        library_path()
