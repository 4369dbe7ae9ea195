"""Errors of what PyTorch hands over, beside those of the front ends."""

from __future__ import annotations

from glia.base.errors import CompileError


class TooManyShapes(CompileError):
    """A function was called with more shapes than may be compiled for it.

    Cause: Each shape is a program of its own, and torch.compile was called with inputs of ever new
        shapes.
    Fix: Pad the inputs to a few sizes, or raise torch._dynamo.config.recompile_limit.
    Example: torch.compile(model, backend="neuron") on sentences of every length there is
    """

    code = "GLIA721"
    message = "{name} was compiled for {count} shapes and is called with another: {shapes}"
    help = "pad the inputs to a few sizes, or raise torch._dynamo.config.recompile_limit"
