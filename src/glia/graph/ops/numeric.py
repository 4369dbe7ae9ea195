"""Random numbers, Fourier transforms and dense linear algebra."""

from __future__ import annotations

import zlib
from typing import Any, ClassVar

import numpy as np

from glia.base.dtype import C64, C128, F32, F64, U64
from glia.graph import counter_generators, scalar
from glia.graph.ir import Node, TensorType, TupleType, Type, op
from glia.graph.type_rules import require, require_scalar, tensor

Array = np.ndarray[Any, Any]


@op
class RngBits(Node):
    """XLA rng-bit-generator: (new state, bits).

    "default" is Philox, as XLA chooses on the CPU; all algorithms give XLA's bits.
    """

    state: Node
    result: TensorType
    algorithm: str  # "default" | "three_fry" | "philox"
    opcode: ClassVar[str] = "rng_bits"

    def infer(self) -> Type:
        known = self.algorithm in ("default", "three_fry", "philox")
        require(known, f"no random algorithm is named {self.algorithm!r}")
        state, bits = tensor(self.state), self.result.dtype
        lengths = (2,) if self.algorithm == "three_fry" else (2, 3)
        fits = state.dtype is U64 and state.shape in [(n,) for n in lengths]
        require(fits, f"the state of {self.algorithm} is u64 of {lengths} elements, not {state}")
        require(bits.is_integer and bits.bits >= 8, f"random bits as {bits}")
        return TupleType((state, self.result))

    def compute(self, state: Array) -> tuple[Array, Array]:
        generate = (
            counter_generators.three_fry
            if self.algorithm == "three_fry"
            else counter_generators.philox
        )
        dtype = self.result.dtype.numpy
        unsigned = np.dtype(f"u{dtype.itemsize}")
        new, bits = generate(state, self.result.shape, unsigned)
        return new, bits.view(dtype)


@op
class RngUniform(Node):
    """XLA rng: stateless samples, uniform in [a, b) or normal(a, b).

    The evaluation's samples are a fixed function of the node's type and source location.
    """

    a: Node
    b: Node
    result: TensorType
    distribution: str  # "uniform" | "normal"
    opcode: ClassVar[str] = "rng"
    is_pure: ClassVar[bool] = False
    keeps_float32: ClassVar[bool] = True

    def infer(self) -> Type:
        known = self.distribution in ("uniform", "normal")
        require(known, f"no distribution is named {self.distribution!r}")
        for bound in (self.a, self.b):
            require_scalar(bound, self.result.dtype, "a parameter of a distribution")
        return self.result

    def compute(self, a: Array, b: Array) -> Array:
        seed = zlib.crc32(f"{self.result} {self.loc}".encode())
        generator = np.random.Generator(np.random.Philox(seed))
        shape, dtype = self.result.shape, self.result.dtype
        if dtype.is_integer:
            drawn: Array = generator.integers(int(a), max(int(a) + 1, int(b)), shape)
            return scalar.convert(np.asarray(drawn), dtype)
        low, high = float(a), float(b)
        if self.distribution == "normal":
            drawn = low + high * generator.standard_normal(shape)
        else:
            drawn = low + (high - low) * generator.random(shape)
        return scalar.convert(np.asarray(drawn), dtype)


@op
class Fft(Node):
    """XLA fft over the last len(lengths) dimensions."""

    x: Node
    kind: str  # "fft" | "ifft" | "rfft" | "irfft"
    lengths: tuple[int, ...]
    opcode: ClassVar[str] = "fft"
    keeps_float32: ClassVar[bool] = True

    def infer(self) -> Type:
        x, count = tensor(self.x), len(self.lengths)
        require(self.kind in ("fft", "ifft", "rfft", "irfft"), f"no transform {self.kind!r}")
        require(1 <= count <= min(3, len(x.shape)), f"fft over {count} dimensions of {x}")
        takes = (F32, F64) if self.kind == "rfft" else (C64, C128)
        require(x.dtype in takes, f"{self.kind} of {x}")
        half = self.lengths[-1] // 2 + 1
        expected, result = self.lengths, self.lengths
        if self.kind == "irfft":
            expected = (*self.lengths[:-1], half)
        if self.kind == "rfft":
            result = (*self.lengths[:-1], half)
        require(x.shape[-count:] == expected, f"{self.kind} of {x} with lengths {self.lengths}")
        is_single = x.dtype in (F32, C64)
        dtype = (F32 if is_single else F64) if self.kind == "irfft" else (
            C64 if is_single else C128)  # fmt: skip
        return TensorType(dtype, (*x.shape[:-count], *result))

    def compute(self, x: Array) -> Array:
        assert isinstance(self.type, TensorType)
        transform = getattr(np.fft, f"{self.kind}n")
        axes = tuple(range(-len(self.lengths), 0))
        with np.errstate(all="ignore"):
            transformed: Array = transform(x, s=self.lengths, axes=axes)
        return transformed.astype(self.type.dtype.numpy)


@op
class TriangularSolve(Node):
    """Solve op(a) x = b (left side) or x op(a) = b for triangular a, in batches."""

    a: Node
    b: Node
    left_side: bool
    lower: bool
    unit_diagonal: bool
    transpose: str  # "no" | "transpose" | "adjoint"
    opcode: ClassVar[str] = "triangular_solve"
    keeps_float32: ClassVar[bool] = True

    def infer(self) -> Type:
        a, b = tensor(self.a), tensor(self.b)
        known = self.transpose in ("no", "transpose", "adjoint")
        require(known, f"no transposition is named {self.transpose!r}")
        square = len(a.shape) >= 2 and a.shape[-1] == a.shape[-2] and a.dtype is b.dtype
        same_batch = len(a.shape) == len(b.shape) and a.shape[:-2] == b.shape[:-2]
        side = b.shape[-2 if self.left_side else -1] if same_batch and square else -1
        require(square and side == a.shape[-1], f"triangular solve of {a} for {b}")
        require(a.dtype.is_float or a.dtype.is_complex, f"triangular solve of {a}")
        return b

    def compute(self, a: Array, b: Array) -> Array:
        wide = scalar.working_dtype(a.dtype)
        matrix, right = a.astype(wide), b.astype(wide)
        lower = self.lower
        if self.transpose != "no":
            matrix, lower = np.swapaxes(matrix, -1, -2), not lower
            matrix = np.conj(matrix) if self.transpose == "adjoint" else matrix
        if not self.left_side:
            matrix, right = np.swapaxes(matrix, -1, -2), np.swapaxes(right, -1, -2)
            lower = not lower
        with np.errstate(all="ignore"):
            found = _substitute(matrix, right, lower=lower, unit=self.unit_diagonal)
        return (found if self.left_side else np.swapaxes(found, -1, -2)).astype(b.dtype)


def _substitute(a: Array, b: Array, *, lower: bool, unit: bool) -> Array:
    """Forward or backward substitution, one row of every batch at a time."""
    extent = a.shape[-1]
    x = np.zeros_like(b)
    for row in range(extent) if lower else reversed(range(extent)):
        known = slice(0, row) if lower else slice(row + 1, extent)
        rest = b[..., row, :] - (a[..., row : row + 1, known] @ x[..., known, :])[..., 0, :]
        x[..., row, :] = rest if unit else rest / a[..., row, row, None]
    return x


@op
class Cholesky(Node):
    """Cholesky factor of a symmetric positive-definite matrix; NaN where it is not.

    Only the named triangle is read; the other one of the result is zero.
    """

    x: Node
    lower: bool
    opcode: ClassVar[str] = "cholesky"
    keeps_float32: ClassVar[bool] = True

    def infer(self) -> Type:
        x = tensor(self.x)
        square = len(x.shape) >= 2 and x.shape[-1] == x.shape[-2]
        require(square and (x.dtype.is_float or x.dtype.is_complex), f"cholesky of {x}")
        return x

    def compute(self, x: Array) -> Array:
        matrix = x.astype(scalar.working_dtype(x.dtype))
        if not self.lower:
            matrix = np.conj(np.swapaxes(matrix, -1, -2))
        factor = np.zeros_like(matrix)
        with np.errstate(all="ignore"):
            for column in range(x.shape[-1]):
                done = factor[..., column:, :column]
                pivot_row = np.conj(factor[..., column, :column, None])
                rest = matrix[..., column:, column] - (done @ pivot_row)[..., 0]
                pivot = np.sqrt(rest[..., :1].real)
                factor[..., column:, column] = rest / pivot
        if not self.lower:
            factor = np.conj(np.swapaxes(factor, -1, -2))
        return factor.astype(x.dtype)
