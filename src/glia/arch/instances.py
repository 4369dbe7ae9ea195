"""Cores and compilation targets, collected from the files `core_v<generation>.py`."""

from __future__ import annotations

import os

from glia.arch.kit import Arch, Target
from glia.base.discovery import import_modules


def _declared_targets() -> list[Target]:
    """Every module's TARGETS, those of earlier generations first."""
    listed: list[Target] = []
    for module in import_modules("glia.arch", prefix="core_v"):
        listed += module.TARGETS
    return sorted(listed, key=lambda target: target.arch.generation)


TARGETS: dict[str, Target] = {target.name: target for target in _declared_targets()}
ARCHS: tuple[Arch, ...] = tuple(
    {target.arch.name: target.arch for target in TARGETS.values()}.values()
)

# The targets that models and kernels are compiled for, in alphabetical order
COMPILED_TARGETS = tuple(sorted(name for name, target in TARGETS.items() if target.is_compiled))


TARGET_VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"
LOGICAL_CORES_VARIABLE = "NEURON_LOGICAL_NC_CONFIG"
DEFAULT_TARGET = "trn2"  # of models and of compiled kernels, where the environment names none


def default_target() -> str:
    """The target that the environment names (also as NKI does, "gen2"), else DEFAULT_TARGET."""
    given = os.environ.get(TARGET_VARIABLE, "")
    by_nki_name = {name: t.name for t in TARGETS.values() for name in t.nki_names}
    return by_nki_name.get(given, given) or DEFAULT_TARGET


def get_target(name: str) -> Target:
    """The target of this name; KeyError naming the known ones."""
    if name not in TARGETS:
        raise KeyError(f"unknown target {name!r}; known are {', '.join(TARGETS)}")
    return TARGETS[name]


def generations_from(first: int) -> tuple[int, ...]:
    """The generations of cores from `first` on: where an instruction or operator exists."""
    return tuple(arch.generation for arch in ARCHS if arch.generation >= first)
