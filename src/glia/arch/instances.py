"""Compilation targets: which core an instance has, its memory and how many cores share it."""

from __future__ import annotations

from dataclasses import dataclass

from glia.arch.core_v1 import CORE_V1
from glia.arch.core_v2 import CORE_V2
from glia.arch.core_v3 import CORE_V3
from glia.arch.core_v4 import CORE_V4
from glia.arch.kit import Arch

_GIB = 1 << 30


@dataclass(frozen=True)
class Target:
    """A target the compilers accept.

    `hbm_bytes` is one physical core's share of the chip's device memory; `default_lnc` how many
    physical cores make a logical one when nothing else is asked for. A target that is not compiled
    is only described.
    """

    name: str
    arch: Arch
    hbm_bytes: int
    chip_hbm_bytes: int
    cores_per_chip: int
    default_lnc: int
    lncs: tuple[int, ...]
    source: str
    is_compiled: bool = True


def _target(
    name: str,
    arch: Arch,
    gib: int,
    cores: int,
    lncs: tuple[int, ...],
    source: str,
    is_compiled: bool = True,
) -> Target:
    chip_bytes = gib * _GIB
    return Target(
        name, arch, chip_bytes // cores, chip_bytes, cores, lncs[0], lncs, source, is_compiled
    )


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        _target("inf1", CORE_V1, 8, 4, (1,), "Inferentia hardware page", is_compiled=False),
        _target("trn1", CORE_V2, 32, 2, (1,), "Trainium hardware page"),
        _target("trn1n", CORE_V2, 32, 2, (1,), "Trainium hardware page"),
        _target("inf2", CORE_V2, 32, 2, (1,), "Inferentia2 hardware page"),
        _target("trn2", CORE_V3, 96, 8, (2, 1), "Trainium2 hardware page; LNC 2 by default"),
        _target("trn3", CORE_V4, 144, 8, (2, 1), "Trainium3 hardware page; LNC as on Trainium2"),
    )
}

# The targets that models and kernels are compiled for, in alphabetical order
COMPILED_TARGETS = tuple(sorted(name for name, target in TARGETS.items() if target.is_compiled))


def get_target(name: str) -> Target:
    """The target of this name; KeyError naming the known ones."""
    if name not in TARGETS:
        raise KeyError(f"unknown target {name!r}; known are {', '.join(TARGETS)}")
    return TARGETS[name]
