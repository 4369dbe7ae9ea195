"""NKI of the current generation, from glia.nki."""

from glia.nki import dtype, jit, simulate
from glia.nki.beta1.run.current_generation import baremetal, benchmark, profile
from glia_dropin.nki.simulator import cpu_simulate, debug, trace
from nki import collectives, isa, language, typing

__all__ = [
    "baremetal",
    "benchmark",
    "collectives",
    "cpu_simulate",
    "debug",
    "dtype",
    "isa",
    "jit",
    "language",
    "profile",
    "simulate",
    "trace",
    "typing",
]
