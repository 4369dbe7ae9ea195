"""Which device kernels are for: the environment says it in the words of the documentation."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from glia.arch import TARGETS, Target
from glia.nki.names.errors import BadLaunch

VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"
DEFAULT = "trn3"  # what the documented simulator takes where no device is found
OF_MODELS = "trn2"  # what glia.compile takes unless it is told
NAMES = {name: target for target in TARGETS.values() for name in target.nki_names}


_MODEL: ContextVar[str | None] = ContextVar("target of the model", default=None)


@contextmanager
def tracing_for(target: str) -> Iterator[None]:
    """While the block runs, kernels are for a model that is compiled for `target`."""
    token = _MODEL.set(target)
    try:
        yield
    finally:
        _MODEL.reset(token)


def model_target() -> Target:
    """The target of the model being traced, else that of the environment, else the compiler's."""
    return platform_target(_MODEL.get() or os.environ.get(VARIABLE) or OF_MODELS)


def target_name() -> str:
    """The name of the target that kernels are for: what the environment says, else trn3."""
    return platform_target().name


def platform_target(name: str | None = None) -> Target:
    """The target of this name, else that of the environment, else trn3; BadLaunch for others."""
    given = name or os.environ.get(VARIABLE) or DEFAULT
    if given not in NAMES:
        known = ", ".join(NAMES)
        raise BadLaunch(kernel="", problem=f"target {given!r} is none of {known}")
    return NAMES[given]


def own_target(kernel: Any) -> str:
    """The platform_target= that a kernel of Beta 1 was given, "" for none."""
    return str(getattr(kernel, "options", {}).get("platform_target") or "")


def target_of_kernel(kernel: Any, name: str | None = None) -> Target:
    """The target that a kernel has of its own, else that of this name, else where a call runs."""
    chosen = own_target(kernel) or name
    return platform_target(chosen) if chosen else getattr(kernel, "target", platform_target)()
