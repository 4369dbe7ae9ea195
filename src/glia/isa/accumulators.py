"""The accumulators of the Scalar and Vector Engines, and the commands that instructions give them.

Each of the two engines has one float32 register in every lane. What an instruction reduces along
the free dimensions is combined with it, and it stays for the instructions that follow.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from glia.base.dtype import F32
from glia.isa.alu import ALU_OPS, apply, reduce_along
from glia.isa.kit import Array, Instr, Rule, State, engine_state
from glia.isa.operand import Pattern

if TYPE_CHECKING:
    from glia.arch import Arch

ACCUMULATORS = State("accumulators", F32, {"scalar": 1, "vector": 1})
ACCESS = {
    "reset": "writes",
    "reduce": "updates",
    "reset_reduce": "writes",
    "load_reduce": "writes",
}
PRECISION = "what is reduced is the float32 value, before it is rounded to the dtype of dst"
LANES = "a lane's accumulator belongs to the partition of the same number that data is read from"


class Accumulating(Instr, is_abstract=True):
    """Base of the instructions with a `command` for the accumulators.

    `reduced`, [P, 1], takes what the accumulators hold afterwards.
    """

    accumulator = engine_state(ACCUMULATORS, lanes="data")
    idle_access: ClassVar[str] = ""  # of an idle instruction to the accumulators
    assumed = (PRECISION, LANES)

    def state_access(self, name: str) -> str:
        """Idle leaves the accumulators alone or forgets them; the other commands set them."""
        command, reduced = getattr(self, "command", ""), getattr(self, "reduced", None)
        if command == "idle" and reduced is not None:
            return "reads"
        return self.idle_access if command == "idle" else ACCESS.get(command, "updates")

    def read_cycles(self, arch: Arch) -> int:
        """Cycles to read the accumulators out, where that is asked for."""
        is_asked = getattr(self, "reduced", None) is not None
        return round(arch.accumulator_read_cycles) if is_asked else 0


class VectorAccumulating(Accumulating, is_abstract=True):
    """Base of the Vector Engine's instructions with a `command`: idle invalidates the state."""

    idle_access = "forgets"


def accumulate(
    op: str, command: str, values: Array, before: Array | None, initial: Array | None = None
) -> tuple[Array | None, Array | None]:
    """(what the accumulators hold, their new values) after a command, each [lanes, 1] or None.

    `values` is [lanes, ...]; all but the first dimension are reduced with `op`. `before` is what
    the accumulators held ("idle" and "reduce"), `initial` what they are loaded with.
    """
    if command == "idle":
        return before, None
    lanes = len(values)
    start: Any = before
    if command != "reduce":
        start = np.float32(ALU_OPS[op].identity) if initial is None else initial
    start = np.broadcast_to(start.astype(np.float32, copy=False).reshape(-1, 1), (lanes, 1))
    if command == "reset":
        return start, start
    rows = reduce_along(op, values.reshape(lanes, -1), 1).reshape(lanes, 1)
    after = apply(op, start, rows).astype(np.float32, copy=False)
    return after, after


def command_among(allowed: Iterable[str], *, source: str) -> Rule:
    """The command is one that the instruction has."""
    names = tuple(allowed)
    return Rule(
        f"{{command}} must be {' or '.join(names)}",
        lambda i, _: i.command in names,
        source,
    )


def reduce_op_among(allowed: Iterable[str], *, source: str) -> Rule:
    """The reduction is one that the instruction has."""
    names = tuple(allowed)
    return Rule(
        f"{{reduce_op}} must be {' or '.join(names)}",
        lambda i, _: i.reduce_op in names,
        source,
    )


def known_result(*, source: str) -> Rule:
    """Nothing is read out that no command has made known."""
    return Rule(
        "idle leaves the accumulators unknown, so that it cannot give reduced",
        lambda i, _: i.command != "idle" or i.reduced is None,
        source,
    )


def loads_initial(*, source: str) -> Rule:
    """An initial value comes with load_reduce and with nothing else."""

    def holds(instr: Any, _: Arch) -> bool:
        value = instr.initial
        if instr.command == "load_reduce":
            return value is not None
        return not isinstance(value, Pattern) and value in (None, 0)

    return Rule("{initial} must be given with load_reduce, and only then", holds, source)
