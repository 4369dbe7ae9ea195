"""The Scalar Engine: functions of one variable from its tables, with scale, bias and a row sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from glia.isa.activation import ACTIVATIONS
from glia.isa.cost import HALF, stream_cycles
from glia.isa.form import TABLES, Form, Negative, Step, chosen, fixed
from glia.isa.kit import Array, Instr, Rule, reads, updates, writes
from glia.isa.operand import Pattern
from glia.isa.rules import column, operand, same_elements

if TYPE_CHECKING:
    from glia.arch import Arch

ACTIVATION = "NKI nki.isa.activation"
REDUCE_OPS = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}


def _function_of(argument: Step | str, **settings: object) -> Form:
    """A function of the tables, of a scaled and shifted tensor."""
    return Form(chosen("function", argument, among=(TABLES,)), settings)


SCALED = fixed("multiply", "data", "scale")


class Activation(Instr, engine="scalar"):
    """Write function(scale * data + bias) in float32; with `reduce`, also reduce dst's values.

    scale and bias are one value per partition or a number. `reduce` is [P, 1] and takes
    `reduce` `reduce_op` (the reduction of the function's values along the free dimensions).
    Outside a function's documented range the hardware's value is not specified; here it is the
    function's own.
    """

    dst: Pattern = writes("SBUF", "PSUM")
    data: Pattern = reads("SBUF", "PSUM")
    function: str
    bias: Pattern | float | None = reads("SBUF", optional=True, immediate=True, column=True)
    scale: Pattern | float = reads("SBUF", immediate=True, column=True, default=1.0)
    reduce: Pattern | None = updates("SBUF", "PSUM", optional=True, column=True)
    reduce_op: str = "add"

    cost_source = "NKI release 2.26.1, nki.isa.activation and activation_reduce"
    forms = (
        _function_of("data"),
        _function_of(SCALED),
        _function_of(fixed("add", "data", "bias")),
        _function_of(fixed("add", SCALED, "bias")),
        _function_of(fixed("subtract", "data", Negative("bias"))),
        _function_of(fixed("subtract", SCALED, Negative("bias"))),
        _function_of(fixed("subtract", "bias", "data"), scale=-1.0),
        Form(fixed("add", SCALED, "bias"), {"function": "identity"}),
    )
    rules = (
        same_elements("dst", "data", source=ACTIVATION),
        column("bias", "data", source=ACTIVATION),
        column("scale", "data", source=ACTIVATION),
        column("reduce", "data", source=ACTIVATION),
        Rule(
            "function must be an activation function of the Scalar Engine",
            lambda i, arch: i.function in ACTIVATIONS,
            ACTIVATION,
        ),
        Rule(
            "reduce_op must be add (maximum and minimum too on generation 4)",
            lambda i, arch: (
                i.reduce_op == "add" or (i.reduce_op in REDUCE_OPS and arch.generation >= 4)
            ),
            ACTIVATION,
        ),
    )

    @staticmethod
    def compute(
        data: Array,
        function: str,
        bias: Array | None,
        scale: Array,
        reduce: Array | None,
        reduce_op: str,
    ) -> tuple[Array, Array | None]:
        argument = data * scale
        if bias is not None:
            argument = argument + bias
        value = ACTIVATIONS[function].compute(argument)
        if reduce is None:
            return value, None
        ufunc = REDUCE_OPS[reduce_op]
        free = tuple(range(1, value.ndim))
        return value, ufunc(reduce, ufunc.reduce(value, axis=free, keepdims=True))

    def cycles(self, arch: Arch) -> int:
        """One element per cycle and partition; reading the accumulator costs 64 more."""
        halves = self.dst.dtype in HALF and self.data.dtype in HALF
        speedup = arch.scalar_half_speedup if halves and self.function == "copy" else 1.0
        extra = arch.accumulator_read_cycles if operand(self, "reduce") is not None else 0
        return stream_cycles(arch, "scalar", self.data.free / speedup) + round(extra)
