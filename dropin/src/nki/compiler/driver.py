"""`nki.compiler.driver`: kernels as programs, programs as NEFFs."""

from glia.nki.internals.compiled import (
    _compile_bir_to_neff,  # noqa: F401
    compile_bir_to_neff,
    compile_to_bir,
)
from glia.nki.internals.kernels import run_from_bir
from glia.nki.internals.options import CompileOptions

__all__ = ["CompileOptions", "compile_bir_to_neff", "compile_to_bir", "run_from_bir"]
