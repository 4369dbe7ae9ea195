"""`nki.compiler.driver`: kernels as programs, programs as NEFFs."""

from glia_dropin.nki.compiled_kernels import run_from_bir
from glia_dropin.nki.driver import (
    _compile_bir_to_neff,  # noqa: F401
    compile_bir_to_neff,
    compile_to_bir,
)
from glia_dropin.nki.options import CompileOptions

__all__ = ["CompileOptions", "compile_bir_to_neff", "compile_to_bir", "run_from_bir"]
