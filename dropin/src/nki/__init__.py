"""NKI of the current generation, from glia.nki."""

from glia.nki import dtype, jit, simulate
from glia.nki.beta1.current import baremetal, benchmark, profile
from nki import collectives, isa, language, typing

__all__ = [
    "baremetal",
    "benchmark",
    "collectives",
    "dtype",
    "isa",
    "jit",
    "language",
    "profile",
    "simulate",
    "typing",
]
