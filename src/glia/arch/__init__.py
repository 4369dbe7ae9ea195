"""The hardware: one NeuronCore generation per file, and the targets that hold them."""

from glia.arch.constant import Constant
from glia.arch.instances import ARCHS, TARGETS, generations_from, get_target
from glia.arch.kit import Arch, Capabilities, Target

__all__ = [
    "ARCHS",
    "TARGETS",
    "Arch",
    "Capabilities",
    "Constant",
    "Target",
    "generations_from",
    "get_target",
]
