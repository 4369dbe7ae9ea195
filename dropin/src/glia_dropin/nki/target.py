"""`nki.compiler.target`: names of targets and the generations of their cores."""

from __future__ import annotations

from glia.nki.names.targets import platform_target


def resolve_target(target: str | None = None) -> str:
    """The target of this name, else that of the environment, else trn3; BadLaunch for others."""
    return platform_target(target).name


def target_to_nc_version(target: str) -> int:
    """The generation of a target's cores: 2 for trn1 and inf2, 3 for trn2, 4 for trn3."""
    return int(platform_target(target).arch.generation)


__all__ = ["resolve_target", "target_to_nc_version"]
