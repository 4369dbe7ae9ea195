"""What ends a program that would never end by itself."""

from __future__ import annotations

from glia.base.errors import CompileError
from glia.base.loc import UNKNOWN, Loc
from glia.isa.kit import register_variable
from glia.machine.ir import While, walk
from glia.sim.policy import Policy


class EndlessLoop(CompileError):
    """A while loop went on for more iterations than a run allows.

    Cause: The loop's condition never becomes false for these inputs, or the loop is a long one.
    Fix: Check what the condition compares; if the loop is meant to be that long, raise the limit,
        NEURON_SIM_MOST_ITERATIONS in the environment or `Policy(most_iterations=...)`.
    Example: jax.lax.while_loop(lambda x: x > 0, lambda x: x, 1)
    """

    code = "GLIA508"
    message = "NRT_TIMEOUT(5): the loop on register {register} passed {limit} iterations"
    help = "if it is meant to run longer, set NEURON_SIM_MOST_ITERATIONS to more than {limit}"


class Watchdog:
    """Counts the iterations of one execution of a while loop."""

    def __init__(self, loop: While, policy: Policy) -> None:
        self._loop = loop
        self._left = self._limit = policy.most_iterations

    def count(self) -> None:
        """Note one more iteration; EndlessLoop when they are more than the policy allows."""
        self._left -= 1
        if self._left < 0:
            raise EndlessLoop(
                register=self._loop.register, limit=self._limit, loc=_home(self._loop)
            )


def _home(loop: While) -> Loc:
    """The source of what sets the loop's register."""
    variable = register_variable(loop.register)
    setters = [i for i in walk(loop.condition) if i.sets_register == variable]
    return next((i.loc for i in reversed(setters) if str(i.loc)), UNKNOWN)
