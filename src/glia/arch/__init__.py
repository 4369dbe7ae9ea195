"""The hardware: one NeuronCore generation per file, and the targets that hold them."""

from glia.arch.instances import TARGETS, Target, get_target
from glia.arch.kit import Arch, Constant

ARCHS: tuple[Arch, ...] = tuple(
    {target.arch.name: target.arch for target in TARGETS.values()}.values()
)

__all__ = ["ARCHS", "TARGETS", "Arch", "Constant", "Target", "get_target"]
