"""One execution of an instruction, and the streams that executions run in."""

from __future__ import annotations

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
    """A sequence that completes in order: an engine of a core, or one of its DMA queues."""

    core: int
    name: str  # as `stream_of` has it

    @property
    def is_queue(self) -> bool:
        return bool(queue_of(self.name))


@dataclass(eq=False, slots=True)
class Execution:
    """One execution of an instruction; numbers ascend in the program order of a core.

    `engine` and `stream` are indices of the streams that issue and complete it. `clock` is its
    vector clock at the start: by stream, the last number known to be complete. `targets` are the
    counts that its stream has added to each semaphore once it signals, `waited` those it waited
    for. `is_early`: data move when it starts, not when it completes. `began` is the moment of its
    start, see `Contests`.
    """

    number: int
    core: int
    engine: int
    stream: int
    instr: Instr
    variables: dict[str, int]  # of the enclosing loops
    environment: Environment = field(default_factory=dict)  # registers too, when it starts
    is_early: bool = False
    is_performed: bool = False
    began: int = 0
    clock: Clock | None = None
    targets: dict[str, int] = field(default_factory=dict)
    waited: dict[str, int] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The issuing engine, and the queue of a transfer."""
        instr = self.instr
        queue = f" (queue {instr.queue})" if instr.queue else ""
        return f"{instr.runs_on}{queue}"

    def __str__(self) -> str:
        at = ", ".join(f"{name}={value}" for name, value in self.variables.items())
        text = print_instruction(replace(self.instr, loc=UNKNOWN)) + (f" at {at}" if at else "")
        return f"{text}, {self.instr.loc}" if str(self.instr.loc) else text
