"""The target device of kernels, by default from the documented environment variable."""

from __future__ import annotations

import os
from typing import Any

from glia.arch import TARGETS, Target
from glia.arch.instances import TARGET_VARIABLE
from glia.cc_flags import compile_target, traced_target
from glia.nki.names.errors import BadLaunch

VARIABLE = TARGET_VARIABLE
DEFAULT = "trn3"  # what the documented simulator takes where no device is found
NAMES = {name: target for target in TARGETS.values() for name in target.nki_names}


def model_target() -> Target:
    """The target of the model being traced, else that of the compiler's flags and environment."""
    return platform_target(traced_target() or compile_target())


def target_name() -> str:
    """The name of the target of kernels: the environment's, else trn3."""
    return platform_target().name


def platform_target(name: str | None = None) -> Target:
    """The target of this name, else that of the environment, else trn3; BadLaunch for others."""
    given = name or os.environ.get(VARIABLE) or DEFAULT
    if given not in NAMES:
        known = ", ".join(NAMES)
        raise BadLaunch(kernel="", problem=f"target {given!r} is none of {known}")
    return NAMES[given]


def declared_target(kernel: Any) -> str:
    """The platform_target= that a kernel of Beta 1 was given, "" for none."""
    return str(getattr(kernel, "options", {}).get("platform_target") or "")


def target_of_kernel(kernel: Any, name: str | None = None) -> Target:
    """The target a kernel declares, else that of this name, else that of its calls."""
    chosen = declared_target(kernel) or name
    return platform_target(chosen) if chosen else getattr(kernel, "target", platform_target)()
