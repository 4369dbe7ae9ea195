"""One execution of an instruction, and the streams that executions run in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from glia.base.loc import UNKNOWN
from glia.isa.kit import Instr
from glia.machine.queues import queue_of
from glia.machine.text import print_instruction
from glia.sim.memory import Environment

Clock = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Stream:
    """What completes in order: an engine of a core, or one of its DMA queues."""

    core: int
    name: str  # as `stream_of` has it

    @property
    def is_queue(self) -> bool:
        return bool(queue_of(self.name))


@dataclass(eq=False, slots=True)
class Execution:
    """One execution of an instruction; numbers rise in the program order of a core.

    `engine` and `stream` are positions in the list of streams: where it is issued, and where it
    completes. `clock` says for each stream up to which number everything has completed before it
    starts; `targets` to which count its own stream brings each semaphore that it signals.
    """

    number: int
    core: int
    engine: int
    stream: int
    instr: Instr
    variables: Mapping[str, int]  # the loops around it
    environment: Environment = field(default_factory=dict)  # registers too, when it starts
    is_early: bool = False
    clock: Clock | None = None
    targets: dict[str, int] = field(default_factory=dict)
    waited: dict[str, int] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The engine that runs it, or that issues it and the queue."""
        instr = self.instr
        queue = f" (queue {instr.queue})" if instr.queue else ""
        return f"{instr.runs_on}{queue}"

    def __str__(self) -> str:
        at = ", ".join(f"{name}={value}" for name, value in self.variables.items())
        text = print_instruction(replace(self.instr, loc=UNKNOWN)) + (f" at {at}" if at else "")
        return f"{text}, {self.instr.loc}" if str(self.instr.loc) else text
