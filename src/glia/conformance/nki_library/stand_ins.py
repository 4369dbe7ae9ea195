"""Modules that the suite imports and its public repository lacks.

Its simulation mode takes everything of NKI from `nki_cpu_simulator`, which is here the drop-in's
`nki`, and the bundled library from `nkilib`, which is here the clone's.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from glia.arch.instances import TARGET_VARIABLE
from glia.conformance.pytest_run import ChildOptions
from glia.nki.run.kernel import as_kernel
from glia.nki.run.simulate import simulate

SIMULATOR = "nki_cpu_simulator"
PARTS = ("isa", "isa.constants", "language", "typing", "compiler", "dtype")
GENERATION = "NKI_NC_VERSION"  # the suite's variable, for each kernel
PRIVATE = {  # modules of the suite itself that its repository lacks, with what others import
    "test.utils.perf_analysis_private": ("analyze_trace",),
    "test.utils.scripts.remote_lock_scripts": ("LockResult", "LockStatus"),
}
TARGETS = {"gen2": "trn1", "gen3": "trn2", "gen4": "trn3"}


def provide_modules() -> None:
    """Make the modules importable; call it once, before the suite's conftest is imported."""
    nki = importlib.import_module("nki")
    for name in PARTS:
        importlib.import_module(f"nki.{name}")
    nki.cpu_simulate = cpu_simulate  # type: ignore[attr-defined]
    sys.modules[f"{SIMULATOR}.nki.language.dtypes"] = sys.modules["nki.dtype"]
    nki.language.dtypes = sys.modules["nki.dtype"]
    for name in ("builtin", "tensor"):
        module = ModuleType(f"nki.{name}")
        setattr(nki, name, module)
        sys.modules[f"nki.{name}"] = sys.modules[f"{SIMULATOR}.nki.{name}"] = module
    for name in PARTS:
        sys.modules[f"{SIMULATOR}.nki.{name}"] = sys.modules[f"nki.{name}"]
    simulator = ModuleType(SIMULATOR)
    simulator.nki = nki  # type: ignore[attr-defined]
    sys.modules[SIMULATOR] = simulator
    sys.modules[f"{SIMULATOR}.nki"] = nki
    for name, contents in PRIVATE.items():
        sys.modules[name] = private = ModuleType(name)
        vars(private).update(dict.fromkeys(contents, NotPublic))
    library = importlib.import_module("nkilib_src.nkilib")
    sys.modules["nkilib"] = library


def cpu_simulate(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel on the core that the suite names in NKI_NC_VERSION, simulated or compiled."""
    target = TARGETS[os.environ[GENERATION]]
    if not ChildOptions.load().is_compiled:
        return simulate(kernel, target=target)
    os.environ[TARGET_VARIABLE] = target
    return as_kernel(kernel)  # type: ignore[no-any-return]


class NotPublic:
    """What stands in a private module of the suite; it cannot be made."""

    def __init__(self, *_args: Any, **_options: Any) -> None:
        raise ModuleNotFoundError("this part of the suite is not in its public repository")
