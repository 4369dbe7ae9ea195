"""Dtypes and tensors of PyTorch as those of the compiler and NumPy, sharing memory."""

from __future__ import annotations

import functools

import numpy as np
import torch

from glia.base.dtype import (
    BF16,
    C64,
    C128,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F16,
    F32,
    F64,
    PRED,
    S8,
    S16,
    S32,
    S64,
    U8,
    U16,
    U32,
    U64,
    DType,
)
from glia.frontend.errors import UnknownDType

DTYPES: dict[torch.dtype, DType] = {
    torch.bool: PRED, torch.int8: S8, torch.int16: S16, torch.int32: S32, torch.int64: S64,
    torch.uint8: U8, torch.uint16: U16, torch.uint32: U32, torch.uint64: U64,
    torch.float16: F16, torch.bfloat16: BF16, torch.float32: F32, torch.float64: F64,
    torch.float8_e4m3fn: F8E4M3FN, torch.float8_e4m3fnuz: F8E4M3FNUZ,
    torch.float8_e5m2: F8E5M2, torch.float8_e5m2fnuz: F8E5M2FNUZ,
    torch.complex64: C64, torch.complex128: C128,
}  # fmt: skip

_OF_TORCH = {ours: theirs for theirs, ours in DTYPES.items()}

# NumPy lacks these, ml_dtypes has them: PyTorch shares their bits as integers
_BITS = {2: torch.int16, 1: torch.uint8}
_BY_BITS = frozenset(d for d in DTYPES if d.is_floating_point and d.itemsize < 4) - {torch.float16}


def dtype_of(dtype: torch.dtype) -> DType:
    """The compiler's dtype for one of PyTorch; UnknownDType where it has none."""
    try:
        return DTYPES[dtype]
    except KeyError:
        known = " ".join(str(each).removeprefix("torch.") for each in DTYPES)
        raise UnknownDType(element_type=dtype, known=known) from None


def torch_dtype(dtype: DType) -> torch.dtype:
    """The dtype of PyTorch for one of the compiler."""
    return _OF_TORCH[dtype]


@functools.cache
def numpy_dtype(dtype: torch.dtype) -> np.dtype:
    """The dtype of arrays that hold tensors of a dtype of PyTorch."""
    return dtype_of(dtype).numpy


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The contents of a tensor, shared with it where it is contiguous in host memory."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    if plain.dtype in _BY_BITS:
        bits = plain.contiguous().view(_BITS[plain.dtype.itemsize])
        array: np.ndarray = bits.numpy().view(numpy_dtype(plain.dtype))
        return array
    return np.ascontiguousarray(plain.numpy()).reshape(plain.shape)


def to_torch(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """An array as a tensor of the dtype whose bits it holds, sharing its memory."""
    if not array.flags.writeable or not array.flags.c_contiguous:
        array = array.copy()
    if dtype in _BY_BITS:
        return torch.from_numpy(array.view(f"u{array.itemsize}")).view(dtype)
    return torch.from_numpy(array)
