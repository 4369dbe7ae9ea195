"""The instances that have Neuron devices: which target, and how many chips of it."""

from __future__ import annotations

from dataclasses import dataclass

from glia.arch.instances import TARGETS, get_target
from glia.arch.kit import Target


@dataclass(frozen=True)
class Machine:
    """An instance type: `chips` chips of a target, connected by their links."""

    name: str
    target_name: str
    chips: int
    source: str

    @property
    def target(self) -> Target:
        """What its chips are compiled for."""
        return get_target(self.target_name)

    @property
    def cores(self) -> int:
        """Its physical cores."""
        return self.chips * self.target.cores_per_chip


_TRN1, _INF2, _TRN2 = "Trn1 architecture page", "Inf2 architecture page", "Trn2 architecture page"

MACHINES = {
    each.name: each
    for each in (
        Machine("trn1.2xlarge", "trn1", 1, _TRN1),
        Machine("trn1.32xlarge", "trn1", 16, _TRN1),
        Machine("trn1n.32xlarge", "trn1n", 16, _TRN1),
        Machine("inf2.xlarge", "inf2", 1, _INF2),
        Machine("inf2.8xlarge", "inf2", 1, _INF2),
        Machine("inf2.24xlarge", "inf2", 6, _INF2),
        Machine("inf2.48xlarge", "inf2", 12, _INF2),
        Machine("trn2.48xlarge", "trn2", 16, _TRN2),
    )
}


def machine_of(name: str) -> Machine | None:
    """The instance type of a name, or one chip of a target; None where there is neither."""
    if name in MACHINES or name not in TARGETS or not TARGETS[name].is_compiled:
        return MACHINES.get(name)
    return Machine(name, name, 1, TARGETS[name].source)
