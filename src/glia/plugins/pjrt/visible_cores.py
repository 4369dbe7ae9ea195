"""Which NeuronCores a process sees: by the target and the runtime's environment variables."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from glia.arch import Target, get_target
from glia.arch.instances import COMPILED_TARGETS, LOGICAL_CORES_VARIABLE, TARGET_VARIABLE
from glia.cc_flags import VARIABLE as FLAGS_VARIABLE
from glia.cc_flags import compile_target, environment_flags
from glia.plugins.pjrt.errors import BadCoreSelection, SeveralProcesses
from glia.plugins.pjrt.programs import runs_on_cpu

VISIBLE_CORES, NUM_CORES = "NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES"
PROCESSES = "NEURON_PJRT_PROCESSES_NUM_DEVICES"
WORLD_SIZE = "NEURON_PJRT_WORLD_SIZE"  # what torch_xla sets under torchrun
MOST_CHIPS = 16  # of the largest instance of any target (instance type pages)


@dataclass(frozen=True)
class VisibleCores:
    """The logical NeuronCores of a process: their target, the first, and how many there are."""

    target: Target
    first: int
    count: int
    physical: int  # cores of a logical one

    @property
    def kind(self) -> str:
        """The name of a core's generation: NC_v3."""
        return f"NC_v{self.target.arch.generation}"

    @property
    def bytes(self) -> int:
        """Device memory of one logical core."""
        return self.target.hbm_bytes * self.physical


def visible_cores() -> VisibleCores:
    """The cores that the environment names, else those of one chip of the default target.

    Raises BadCoreSelection, SeveralProcesses where there is more than one, and BadCpuChoice.
    """
    _check_processes()
    runs_on_cpu()
    target = _target()
    physical = _number(LOGICAL_CORES_VARIABLE, target.default_lnc)
    if physical not in target.lncs:
        known = " or ".join(map(str, sorted(target.lncs)))
        raise BadCoreSelection(
            variable=LOGICAL_CORES_VARIABLE,
            value=physical,
            problem=f"{target.name} has no such logical cores",
            hint=known,
        )
    of_chip = target.cores_per_chip // physical
    most = of_chip * MOST_CHIPS
    if ranges := os.environ.get(VISIBLE_CORES, "").strip():
        first, count = _consecutive(ranges)
    else:
        first, count = 0, _number(NUM_CORES, 0) or of_chip
    if first + count > most:
        variable = VISIBLE_CORES if ranges else NUM_CORES
        raise BadCoreSelection(
            variable=variable,
            value=ranges or count,
            problem=f"the largest instance of {target.name} has {most} cores",
            hint=f"at most {most} cores",
        )
    return VisibleCores(target, first, count, physical)


def _target() -> Target:
    name = compile_target()
    if name not in COMPILED_TARGETS:
        is_flag = "target" in environment_flags().options
        raise BadCoreSelection(
            variable=FLAGS_VARIABLE if is_flag else TARGET_VARIABLE,
            value=f"--target={name}" if is_flag else name,
            problem="programs are compiled for no such target",
            hint=f"one of {', '.join(COMPILED_TARGETS)}",
        )
    return get_target(name)


def _check_processes() -> None:
    if (processes := _number(WORLD_SIZE, 1)) > 1:
        raise SeveralProcesses(source=WORLD_SIZE, count=processes, devices=processes)
    counts = [each for each in os.environ.get(PROCESSES, "").split(",") if each.strip()]
    if len(counts) > 1:
        numbers = [int(each) for each in counts if each.strip().isdigit()]
        raise SeveralProcesses(source=PROCESSES, count=len(counts), devices=sum(numbers) or 1)


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "").strip()
    if text and not text.isdigit():
        raise BadCoreSelection(
            variable=variable, value=text, problem="it is not a number", hint="a number such as 2"
        )
    return int(text) if text else default


def _consecutive(text: str) -> tuple[int, int]:
    """The first and the number of cores in "4", "0-3" or "0,1,2"."""
    cores: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if not found:
            raise _bad_range(text, f"{part.strip()!r} is neither a core nor a range of cores")
        low = int(found[1])
        cores += range(low, int(found[2] or low) + 1)
    if not cores or cores != list(range(cores[0], cores[0] + len(cores))):
        raise _bad_range(text, "cores must follow each other")
    return cores[0], len(cores)


def _bad_range(text: str, problem: str) -> BadCoreSelection:
    hint = "consecutive cores, such as 0-3"
    return BadCoreSelection(variable=VISIBLE_CORES, value=text, problem=problem, hint=hint)
