"""NKI Beta 1, from glia.nki.beta1."""

from glia.nki.beta1 import (
    FrameworkKernel,
    baremetal,
    benchmark,
    jit,
    profile,
    simulate_kernel,
    tensor,
    trace,
)
from neuronxcc.nki import compiler, isa, language, typing

__all__ = [
    "FrameworkKernel",
    "baremetal",
    "benchmark",
    "compiler",
    "isa",
    "jit",
    "language",
    "profile",
    "simulate_kernel",
    "tensor",
    "trace",
    "typing",
]
