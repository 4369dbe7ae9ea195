"""What torch_xla asks of libneuronxla and torch_neuronx while it is imported."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import libneuronxla
from glia.plugins.pjrt.errors import UnknownTorchXla
from glia.plugins.pjrt.plugin_library import library
from glia_dropin import xla_plugin
from libneuronxla.libneuronpjrt_path import libneuronpjrt_path

WAITED: list[object] = []  # what the stand-in of torch_xla was asked to wait for


@pytest.fixture
def importing(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """torch_xla as it is when it asks: its version is known, and little else."""
    package, library = ModuleType("torch_xla"), ModuleType("_XLAC")
    library._run_cached_graph = lambda *graph: ["ran", *graph]  # type: ignore[attr-defined]
    library._xla_wait_device_ops = WAITED.append  # type: ignore[attr-defined]
    WAITED.clear()
    monkeypatch.setitem(sys.modules, "torch_xla", package)
    monkeypatch.setitem(sys.modules, "_XLAC", library)
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    return package


@pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"),
    reason="this machine has no library",
)
def test_the_library_is_found_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = libneuronpjrt_path()
    assert os.path.basename(path) == "libneuronpjrt.so"
    assert Path(path).read_bytes() == library()


@pytest.mark.parametrize("version", ["2.9.0", "2.9.1+cpu"])
def test_the_release_that_the_plugin_is_for_is_taken(importing: ModuleType, version: str) -> None:
    importing.__version__ = version  # type: ignore[attr-defined]
    libneuronxla.configure_environment()


@pytest.mark.parametrize("version", ["2.8.1", "2.10.0"])
def test_another_release_of_torch_xla_is_refused(
    importing: ModuleType, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    importing.__version__ = version  # type: ignore[attr-defined]
    with pytest.raises(UnknownTorchXla, match=rf"GLIA714\] torch_xla {version}"):
        libneuronxla.configure_environment()
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    libneuronxla.configure_environment()


def test_graphs_start_when_nothing_runs_any_more(importing: ModuleType) -> None:
    importing.__version__ = "2.9.0"  # type: ignore[attr-defined]
    for _ in range(2):
        libneuronxla.configure_environment()
    assert sys.modules["_XLAC"]._run_cached_graph("hash", "inputs") == ["ran", "hash", "inputs"]
    assert WAITED == [[]]


def test_without_torch_xla_there_is_nothing_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch_xla", raising=False)
    libneuronxla.configure_environment()


def test_torch_neuronx_has_torch_xla_set_its_own_defaults(
    importing: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    importing.__version__ = "2.9.0"  # type: ignore[attr-defined]
    called: list[str] = []
    defaults = SimpleNamespace(
        set_envvar_defaults=lambda: called.append("defaults"),
        configure_pjrt_environment=lambda: called.append("environment"),
    )
    monkeypatch.setitem(sys.modules, "torch_xla._internal.neuron", defaults)  # type: ignore[arg-type]
    xla_plugin.init()
    assert called == ["defaults", "environment"]
