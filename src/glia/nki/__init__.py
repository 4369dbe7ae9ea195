"""NKI: kernels written in Python over `nki.language` and `nki.isa`, simulated or compiled."""

from __future__ import annotations

from glia.nki import collectives, isa, language, typing
from glia.nki.run.kernel import jit
from glia.nki.run.simulate import simulate

dtype = str  # what annotations call a dtype: its name, as nl.bfloat16 is

__all__ = ["collectives", "dtype", "isa", "jit", "language", "simulate", "typing"]
