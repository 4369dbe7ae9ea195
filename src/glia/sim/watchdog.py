"""The iteration limit of while loops."""

from __future__ import annotations

from glia.base.errors import CompileError
from glia.base.loc import UNKNOWN, Loc
from glia.isa.kit import register_variable
from glia.machine.ir import While, walk
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
                register=self._loop.register, limit=self._limit, loc=_condition_loc(self._loop)
            )


def _condition_loc(loop: While) -> Loc:
    """The source line of the instruction that sets the loop's register."""
    variable = register_variable(loop.register)
    setters = [i for i in walk(loop.condition) if i.sets_register == variable]
    return next((i.loc for i in reversed(setters) if str(i.loc)), UNKNOWN)
