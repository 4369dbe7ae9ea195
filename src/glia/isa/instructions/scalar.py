"""The Scalar Engine: functions of one variable from its tables, with scale, bias and a row sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from glia.arch import generations_from
from glia.base.dtype import F32, TF32
from glia.isa.accumulators import (
    Accumulating,
    accumulate,
    command_among,
    reduce_op_among,
)
from glia.isa.activation import ACTIVATIONS
from glia.isa.alu import apply
from glia.isa.cost import HALF, stream_cycles
from glia.isa.examples import chip
from glia.isa.form import TABLES, Form, Negative, Step, chosen, fixed
from glia.isa.kit import Array, Indirect, Rule, reads, writes
from glia.isa.operand import Pattern
from glia.isa.rules import column, dtypes, operand, same_dtype, same_elements

if TYPE_CHECKING:
    from glia.arch import Arch

ACTIVATION = "NKI nki.isa.activation"
ACTIVATE2 = "NKI nki.isa.activate2"
SCALAR_COMMANDS = ("idle", "reset", "reduce", "reset_reduce")  # nothing loads an initial value


class TableFunction(Accumulating, engine="scalar", is_abstract=True):
    """Base of the instructions that evaluate a `function` of the activation tables."""

    @staticmethod
    def argument(operands: Mapping[str, Any]) -> Array:
        """The function's argument, from the operands and attributes as `compute` takes them."""
        raise TypeError("an instruction must declare the argument of its function")


def _function_of(argument: Step | str, **settings: object) -> Form:
    """A function of the tables, of a scaled and shifted tensor."""
    return Form(chosen("function", argument, among=(TABLES,)), settings)


SCALED = fixed("multiply", "data", "scale")


class Activation(TableFunction):
    """Write function(scale * data + bias) in float32, and sum it into the accumulators.

    scale and bias are one value per partition or a number. `command` says what the Scalar Engine's
    accumulators do with the values' sum along the free dimensions; `reduced`, [P, 1], takes what
    they hold then. Outside a function's documented range the hardware's value is not specified;
    here it is the function's own.
    """

    dst: Pattern = writes("SBUF", "PSUM")
    data: Pattern = reads("SBUF", "PSUM")
    function: str
    bias: Pattern | float | None = reads("SBUF", "PSUM", default=None, immediate=True, column=True)
    scale: Pattern | float = reads("SBUF", "PSUM", immediate=True, column=True, default=1.0)
    reduced: Pattern | None = writes("SBUF", "PSUM", default=None, column=True)
    command: str = "idle"
    reduce_op: str = "add"

    maps_outer = True
    indirect = Indirect(("dst", "data"), "data", ACTIVATION)
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
        column("reduced", "data", source=ACTIVATION),
        dtypes("scale", (F32,), source=ACTIVATION),
        Rule(
            "{bias} must not be tfloat32",
            lambda i, _: (p := operand(i, "bias")) is None or p.dtype is not TF32,
            ACTIVATION,
        ),
        Rule(
            "{function} must be an activation function of the Scalar Engine without a parameter",
            lambda i, _: i.function in ACTIVATIONS and not ACTIVATIONS[i.function].has_parameter,
            ACTIVATION,
        ),
        Rule(
            "{bias} must be a column, not a number, before generation 3",
            lambda i, arch: (
                arch.capabilities.has_immediate_bias
                or isinstance(i.bias, Pattern)
                or i.bias in (None, 0)
            ),
            ACTIVATION,
        ),
        Rule(
            "reciprocal takes no bias before generation 3",
            lambda i, arch: (
                arch.capabilities.has_reciprocal_bias
                or i.function != "reciprocal"
                or i.bias in (None, 0)
            ),
            "NKI API common fields, NKI Engine Selection",
        ),
        command_among(SCALAR_COMMANDS, source=ACTIVATION),
        reduce_op_among(("add",), source=ACTIVATION),
    )

    @staticmethod
    def argument(operands: Mapping[str, Any]) -> Array:
        scaled: Array = operands["data"] * operands["scale"]
        return scaled if operands["bias"] is None else scaled + operands["bias"]

    @staticmethod
    def compute(
        data: Array,
        function: str,
        bias: Array | None,
        scale: Array,
        command: str,
        reduce_op: str,
        accumulator: Array | None,
    ) -> tuple[Array, Array | None, Array | None]:
        argument = Activation.argument({"data": data, "scale": scale, "bias": bias})
        value = ACTIVATIONS[function].compute(argument)
        return value, *accumulate(reduce_op, command, value, accumulator)

    def cycles(self, arch: Arch) -> int:
        """One element per cycle and partition; reading the accumulators costs 64 more."""
        halves = self.dst.dtype in HALF and self.data.dtype in HALF
        speedup = arch.scalar_half_speedup if halves and self.function == "copy" else 1.0
        cycles = stream_cycles(arch, "scalar", self.data.free / speedup)
        return cycles + self.read_cycles(arch)

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("out", 64, 32),
            data=chip("a", 64, 32),
            function="exp",
            bias=chip("column", 64, 1),
            scale=2.0,
            reduced=chip("column", 64, 1),
        )


PAIRS = (
    ("multiply", "add"), ("multiply", "subtract"), ("multiply", "bypass"), ("add", "bypass"),
    ("subtract", "bypass"), ("bypass", "bypass"),
)  # fmt: skip
ACTIVATE2_REDUCTIONS = ("add", "maximum", "minimum", "abs_max", "abs_min")


class Activate2(TableFunction):
    """Write function((data `op0` operand0) `op1` operand1) in float32, and reduce it.

    operand0, operand1 and relu_param, the parameter of prelu, are one value per partition or a
    number; `bypass` leaves a step out; `reverse0` and `reverse1` exchange the two sides of their
    operator. `command` says what the Scalar Engine's accumulators do with the `reduce_op` of the
    values along the free dimensions; `reduced`, [P, 1], takes what they hold then.
    """

    dst: Pattern = writes("SBUF", "PSUM")
    data: Pattern = reads("SBUF", "PSUM")
    function: str
    operand0: Pattern | float | None = reads(
        "SBUF", "PSUM", default=None, immediate=True, column=True
    )
    op0: str
    operand1: Pattern | float | None = reads(
        "SBUF", "PSUM", default=None, immediate=True, column=True
    )
    op1: str
    relu_param: Pattern | float = reads("SBUF", "PSUM", immediate=True, column=True, default=0.0)
    reduced: Pattern | None = writes("SBUF", "PSUM", default=None, column=True)
    reverse0: bool = False
    reverse1: bool = False
    command: str = "idle"
    reduce_op: str = "add"

    generations = generations_from(4)
    indirect = Indirect(("dst", "data"), "data", ACTIVATE2)
    cost_source = "assumed"
    rules = (
        same_elements("dst", "data", source=ACTIVATE2),
        column("operand0", "data", source=ACTIVATE2),
        column("operand1", "data", source=ACTIVATE2),
        column("relu_param", "data", source=ACTIVATE2),
        column("reduced", "data", source=ACTIVATE2),
        same_dtype("operand0", "operand1", source=ACTIVATE2),
        Rule(
            "{function} must be an activation function of the Scalar Engine",
            lambda i, _: i.function in ACTIVATIONS,
            ACTIVATE2,
        ),
        Rule(
            f"({{op0}}, {{op1}}) must be one of {', '.join(f'({a}, {b})' for a, b in PAIRS)}",
            lambda i, _: (i.op0, i.op1) in PAIRS,
            ACTIVATE2,
        ),
        Rule(
            "an operator that is not bypass needs its operand",
            lambda i, _: (
                (i.op0 == "bypass" or i.operand0 is not None)
                and (i.op1 == "bypass" or i.operand1 is not None)
            ),
            ACTIVATE2,
        ),
        Rule(
            "{reverse0} and {reverse1} need an operator that is not bypass",
            lambda i, _: (
                not (i.reverse0 and i.op0 == "bypass") and not (i.reverse1 and i.op1 == "bypass")
            ),
            ACTIVATE2,
        ),
        command_among(SCALAR_COMMANDS, source=ACTIVATE2),
        reduce_op_among(ACTIVATE2_REDUCTIONS, source=ACTIVATE2),
    )

    @staticmethod
    def argument(operands: Mapping[str, Any]) -> Array:
        value: Array = operands["data"]
        for step in "01":
            other, reverse = operands[f"operand{step}"], operands[f"reverse{step}"]
            value = apply(operands[f"op{step}"], value, other, reverse)
        return value

    @staticmethod
    def compute(
        function: str,
        relu_param: Array,
        command: str,
        reduce_op: str,
        accumulator: Array | None,
        **operands: Any,
    ) -> tuple[Array, Array | None, Array | None]:
        declared = ACTIVATIONS[function]
        parameters = (relu_param,) if declared.has_parameter else ()
        value = declared.compute(Activate2.argument(operands), *parameters)
        return value, *accumulate(reduce_op, command, value, accumulator)

    def cycles(self, arch: Arch) -> int:
        """As activation: one element per cycle and partition, 64 more to read the accumulators."""
        return stream_cycles(arch, "scalar", self.data.free) + self.read_cycles(arch)

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("out", 64, 32),
            data=chip("a", 64, 32),
            function="gelu",
            operand0=2.0,
            op0="multiply",
            operand1=chip("column", 64, 1),
            op1="add",
            reduced=chip("column", 64, 1),
            command="reset_reduce",
            reduce_op="maximum",
        )
