"""The limits of a run: iterations of a while loop, instructions, and time."""

from __future__ import annotations

import time

from glia.base.errors import CompileError
from glia.base.loc import UNKNOWN, Loc
from glia.isa.kit import register_variable
from glia.machine.ir import Block, Branch, Loop, While, walk
from glia.sim.policy import Policy


class EndlessLoop(CompileError):
    """A while loop exceeded the iteration limit of a run.

    Cause: The loop's condition never becomes false for these inputs, or the limit is too low.
    Fix: Check the condition; for a longer loop raise the limit with the environment variable
        NEURON_SIM_MOST_ITERATIONS or `Policy(most_iterations=...)`.
    Example: jax.lax.while_loop(lambda x: x > 0, lambda x: x, 1)
    """

    code = "GLIA508"
    message = "NRT_TIMEOUT(5): the loop on register {register} exceeded {limit} iterations"
    help = "check the loop's condition, or set NEURON_SIM_MOST_ITERATIONS to more than {limit}"


class RunTooLarge(CompileError):
    """A run would execute more instructions than the simulator's limit.

    Cause: Loops nest with so many trips that the simulation would take hours; often a damaged file.
    Fix: Lower the trip counts; for a longer run raise the limit with the environment variable
        NEURON_SIM_MOST_INSTRUCTIONS or `Policy(most_instructions=...)`.
    Example: a NEFF with a loop of 10**12 trips around one copy
    """

    code = "GLIA515"
    message = "NRT_TIMEOUT(5): the run executes {count} instructions or more, the limit is {limit}"
    help = "lower the trip counts, or set NEURON_SIM_MOST_INSTRUCTIONS to more than {count}"


class ExecutionTimeout(CompileError):
    """A run took longer than NEURON_RT_EXEC_TIMEOUT.

    Cause: The simulation of the model needs more seconds than the environment variable allows.
    Fix: Unset NEURON_RT_EXEC_TIMEOUT, or set it to more seconds.
    Example: NEURON_RT_EXEC_TIMEOUT=1 glia run large_model.neff
    """

    code = "GLIA516"
    message = "NRT_TIMEOUT(5): execution timeout ({seconds:g} s)"
    help = "unset NEURON_RT_EXEC_TIMEOUT, or set it to more seconds"


class Watchdog:
    """Counts the iterations of one execution of a while loop."""

    def __init__(self, loop: While, policy: Policy) -> None:
        self._loop = loop
        self._left = self._limit = policy.most_iterations

    def count(self) -> None:
        """Count one iteration; EndlessLoop when they exceed the policy's limit."""
        self._left -= 1
        if self._left < 0:
            raise EndlessLoop(
                register=self._loop.register, limit=self._limit, loc=condition_loc(self._loop)
            )


class RunLimits:
    """What is left to one run of the instructions and of the time that its policy allows."""

    def __init__(self, policy: Policy) -> None:
        self._limit = policy.most_instructions
        self._executed = 0
        self._seconds = policy.timeout_seconds
        self._deadline = None if self._seconds is None else time.monotonic() + self._seconds

    @property
    def has_deadline(self) -> bool:
        """Whether the time is limited."""
        return self._deadline is not None

    def spend(self, instructions: int) -> None:
        """Count instructions that are to be executed; RunTooLarge when they exceed the limit."""
        self._executed += instructions
        if self._executed > self._limit:
            raise RunTooLarge(count=self._executed, limit=self._limit)
        self.check_time()

    def check_time(self) -> None:
        """ExecutionTimeout when the time is over."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise ExecutionTimeout(seconds=self._seconds)


def fewest_executions(body: Block) -> int:
    """How many instructions and iterations a block executes at least, whatever its inputs are."""
    return sum(map(_fewest_of_statement, body))


def _fewest_of_statement(statement: object) -> int:
    if isinstance(statement, Loop):
        return statement.trips * max(1, fewest_executions(statement.body))
    if isinstance(statement, While):
        return fewest_executions(statement.condition)
    if isinstance(statement, Branch):
        return min(map(fewest_executions, statement.arms), default=0)
    return 1


def condition_loc(loop: While) -> Loc:
    """The source line of the instruction that sets the loop's register."""
    variable = register_variable(loop.register)
    setters = [i for i in walk(loop.condition) if i.sets_register == variable]
    return next((i.loc for i in reversed(setters) if str(i.loc)), UNKNOWN)
