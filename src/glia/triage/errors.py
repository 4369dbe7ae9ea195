"""Errors of looking for where a compilation goes wrong."""

from __future__ import annotations

from glia.base.errors import CompileError


class NotReproduced(CompileError):
    """`glia reduce` finds that the command fails for the module that is to be reduced.

    Cause: The command says with exit status 0 that a module still shows the failure, and says
    otherwise of the whole module: the failure is another, or the command's sense is reversed.
    Fix: Run the command on the model; it has to exit with 0. `! command` reverses it.
    Example: glia reduce model.hlo.pb --keep false
    """

    code = "GLIA125"
    message = "the command does not hold for the module as it is: it has to exit with 0"
    help = "run the command on the model by hand; `! command` reverses its exit status"


class NotEvaluable(CompileError):
    """`glia bisect` has no meaning of the model to compare with.

    Cause: The graph holds something that only devices together compute or whose meaning is not
        public, such as a collective of several ranks or a custom call of another target.
    Fix: Bisect the model without it: let a function return what goes into the operation.
    Example: glia bisect model_with_a_custom_call_of_another_target.hlo.pb
    """

    code = "GLIA126"
    message = "the model cannot be evaluated as a graph: {reason}"
    help = "bisect a part of the model that does without it"
