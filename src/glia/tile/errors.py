"""What a user can do about a graph that cannot be lowered to nests."""

from __future__ import annotations

from glia.base.errors import CompileError


class UnsupportedDtype(CompileError):
    """A value has an element type for which no code can be generated.

    Cause: The module computes in 64-bit floats or another type that no engine has and that earlier
        passes did not bring to a narrower one.
    Fix: Cast the inputs to float32, bfloat16 or int32 before this operation.
    Example: jax.jit(jax.numpy.sin) lowered for a float64 argument.
    """

    code = "NCC_ESPP004"
    message = "{opcode} gives {type}, and there is no code generation for {dtype}"
    help = "cast to float32, bfloat16 or a 32-bit integer before this operation"
