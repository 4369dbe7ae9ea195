"""Functions of nl that make tensors."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.random import Rng, SetRngSeed
from glia.isa.instructions.vector import TensorScalar
from glia.isa.operand import row_major
from glia.nki.issue.functions import issuer
from glia.nki.issue.instruction import issue
from glia.nki.names.dtypes import DTYPES, dtype_name
from glia.nki.names.enums import MemoryRegion, engine
from glia.nki.names.errors import NotInNki
from glia.nki.session.session import caller, current, value_text
from glia.nki.tensors.nki_tensor import NkiTensor, ndarray

Shape = tuple[int, ...] | list[int]
sbuf = MemoryRegion.sbuf
_dma_copy = issuer("dma_copy")
_memset = issuer("memset")


def full(
    shape: Shape, fill_value: float, dtype: str, buffer: MemoryRegion = sbuf, name: str = ""
) -> NkiTensor:
    """A new tensor filled with one value."""
    tensor = ndarray(shape, dtype, buffer, name)
    fill(tensor, fill_value)
    return tensor


def fill(tensor: NkiTensor, value: float) -> None:
    """Write one value to every element; HBM is filled by DMA from one element of SBUF."""
    if not isinstance(value, int | float | np.generic):
        raise NotInNki(feature=f"filling a tensor with {value_text(value)}", loc=caller())
    if tensor.is_on_chip:
        _memset(dst=tensor, value=value)
        return
    cell = ndarray((1, 1), tensor.dtype, sbuf, "value")
    fill(cell, value)
    repeated = cell._derive(((1, 1), (0, tensor.size)))
    _dma_copy(dst=tensor, src=repeated)


def zeros(shape: Shape, dtype: str, buffer: MemoryRegion = sbuf, name: str = "") -> NkiTensor:
    """A new tensor of zeros."""
    return full(shape, 0, dtype, buffer, name)


def ones(shape: Shape, dtype: str, buffer: MemoryRegion = sbuf, name: str = "") -> NkiTensor:
    """A new tensor of ones."""
    return full(shape, 1, dtype, buffer, name)


def empty_like(
    x: NkiTensor, dtype: str | None = None, buffer: MemoryRegion | None = None, name: str = ""
) -> NkiTensor:
    """A new uninitialised tensor of the shape of `x`; dtype and buffer default to those of `x`."""
    return ndarray(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def zeros_like(
    x: NkiTensor, dtype: str | None = None, buffer: MemoryRegion | None = None, name: str = ""
) -> NkiTensor:
    """A new tensor of zeros of the shape of `x`; dtype and buffer default to those of `x`."""
    return zeros(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def shared_constant(constant: Any) -> NkiTensor:
    """A tensor in shared HBM initialised with an array, or with the array of an .npy file."""
    session = current("nl.shared_constant")
    if isinstance(constant, str | os.PathLike):
        constant = np.load(constant, allow_pickle=False)
    if not isinstance(constant, np.ndarray) or dtype_name(constant.dtype) is None:
        raise NotInNki(feature=f"a constant of type {type(constant).__name__}", loc=caller())
    name = dtype_name(constant.dtype)
    assert name is not None
    tile = session.constant("constant", constant)
    tensor = NkiTensor((constant.size,), name, tile, MemoryRegion.shared_hbm)
    return tensor._derive(row_major(constant.shape or (1,)))


def shared_identity_matrix(n: int, dtype: str = "uint8", dst: NkiTensor | None = None) -> NkiTensor:
    """The identity of n rows in SBUF, in `dst` when it is given."""
    tensor = dst if dst is not None else ndarray((n, n), dtype, sbuf, "identity")
    stored = DTYPES[tensor.dtype].numpy
    constant = shared_constant(np.eye(n, dtype=stored))
    issue(
        current("nl.shared_identity_matrix"), "dma_copy", DmaCopy,
        {"dst": tensor, "src": constant},
    )  # fmt: skip
    return tensor


def rand(shape: Shape, dtype: str, buffer: MemoryRegion = sbuf, name: str = "") -> NkiTensor:
    """A new tensor of random numbers, uniform in [0, 1)."""
    session = current("nl.rand")
    bits = ndarray(shape, "uint32", sbuf, "bits")
    issue(session, "rng", Rng, {"dst": bits}, engine.vector)
    shifted = {"dst": bits, "data": bits, "op0": "right_shift", "operand0": 8}
    issue(session, "tensor_scalar", TensorScalar, shifted)
    result = ndarray(shape, dtype, sbuf if not buffer.is_on_chip else buffer, name)
    scaled = {"dst": result, "data": bits, "op0": "multiply", "operand0": 2.0**-24}
    issue(session, "tensor_scalar", TensorScalar, scaled)
    if buffer.is_on_chip:
        return result
    outside = ndarray(shape, dtype, buffer, name)
    issue(session, "dma_copy", DmaCopy, {"dst": outside, "src": result})
    return outside


def random_seed(seed: NkiTensor) -> None:
    """Seed the generator of nl.rand with one element of 32 bits."""
    issue(current("nl.random_seed"), "set_rng_seed", SetRngSeed, {"seed": seed})


def is_hbm(buffer: MemoryRegion) -> bool:
    """Whether a buffer is in HBM."""
    return not buffer.is_on_chip


def is_on_chip(buffer: MemoryRegion) -> bool:
    """Whether a buffer is SBUF or PSUM."""
    return buffer.is_on_chip


def is_psum(buffer: MemoryRegion) -> bool:
    """Whether a buffer is PSUM."""
    return buffer is MemoryRegion.psum


def is_sbuf(buffer: MemoryRegion) -> bool:
    """Whether a buffer is SBUF."""
    return buffer is MemoryRegion.sbuf
