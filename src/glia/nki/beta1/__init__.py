"""NKI Beta 1, which kernels import as `neuronxcc.nki`.

Its functions return tiles, take masks and index objects, and assign to slots; they issue the same
declared instructions as the current NKI.
"""

from glia.nki.beta1 import compiler, isa, language, typing
from glia.nki.beta1.run.benchmark import baremetal, benchmark, profile
from glia.nki.beta1.run.framework_kernel import FrameworkKernel
from glia.nki.beta1.run.launch import jit, simulate_kernel, trace
from glia.nki.beta1.tensors.tensor import Tensor as tensor  # noqa: N813

__all__ = [
    "FrameworkKernel", "baremetal", "benchmark", "compiler", "isa", "jit", "language", "profile",
    "simulate_kernel", "tensor", "trace", "typing",
]  # fmt: skip
