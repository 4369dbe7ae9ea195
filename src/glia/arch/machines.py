"""The instances that have Neuron devices: which target, and how many chips of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glia.arch import fabrics
from glia.arch.fabric import Fabric
from glia.arch.instances import TARGETS, get_target
from glia.arch.kit import Arch, Target


@dataclass(frozen=True)
class Machine:
    """An instance type: chips of a target, connected by a fabric."""

    fabric: Fabric
    target_name: str

    @property
    def name(self) -> str:
        return self.fabric.instance

    @property
    def chips(self) -> int:
        return self.fabric.chips

    @property
    def target(self) -> Target:
        """What its chips are compiled for."""
        return get_target(self.target_name)

    @property
    def arch(self) -> Arch:
        """A core of it, which sends over its fabric."""
        return replace(self.target.arch, fabric=self.fabric)

    @property
    def cores(self) -> int:
        """Its physical cores."""
        return self.chips * self.fabric.ranks


MACHINES = {
    each.name: each
    for each in (
        Machine(fabrics.TRN1_CHIP, "trn1"),
        Machine(fabrics.TRN1, "trn1"),
        Machine(fabrics.TRN1N, "trn1n"),
        Machine(fabrics.INF2_SMALL, "inf2"),
        Machine(fabrics.INF2_CHIP, "inf2"),
        Machine(fabrics.INF2_HALF, "inf2"),
        Machine(fabrics.INF2, "inf2"),
        Machine(fabrics.TRN2, "trn2"),
        Machine(fabrics.TRN2_ULTRASERVER, "trn2"),
        Machine(fabrics.TRN3_GEN1, "trn3"),
        Machine(fabrics.TRN3_GEN2, "trn3"),
    )
}


def machine_of(name: str) -> Machine | None:
    """The instance type of a name, or one chip of a target; None where there is neither."""
    if name in MACHINES or name not in TARGETS or not TARGETS[name].is_compiled:
        return MACHINES.get(name)
    fabric = TARGETS[name].arch.fabric
    return Machine(fabrics.of_chips(fabric, name, 1, fabric.network_rate), name)
