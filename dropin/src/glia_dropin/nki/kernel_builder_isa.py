"""`nki.compiler.kernel_builder.isa`: functions of nki.isa under kernel_builder's names.

They issue the same instructions; what differs is how parameters and enumerations are called.
"""

# The names are those that kernels write.
# ruff: noqa: N801

from __future__ import annotations

from enum import Enum
from typing import Any

from glia.base.suggestions import nearest
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.isa import iota
from glia.nki.names import enums
from glia.nki.names.errors import NoSuchName, NotInNki
from glia.nki.session.session import caller
from glia.nki.tensors.nki_object import NkiInstruction
from glia.nki.tensors.nki_tensor import NkiTensor
from glia.nki.tensors.registers import VirtualRegister

MODULE = "nki.compiler.kernel_builder.isa"
Operand = NkiTensor | float


class engine(Enum):
    """Which engine runs an instruction."""

    Tensor = enums.engine.tensor
    Vector = enums.engine.vector
    Scalar = enums.engine.scalar
    Gpsimd = enums.engine.gpsimd
    Sync = enums.engine.sync


class reduce_cmd(Enum):
    """What a reducing instruction does with the accumulators of its engine."""

    Idle = enums.reduce_cmd.idle
    Reset = enums.reduce_cmd.reset
    Reduce = enums.reduce_cmd.reduce
    ResetReduce = enums.reduce_cmd.reset_reduce


class tens_scalar_rev_ops(Enum):
    """Which operations of tensor_scalar_arith take the operand first, the tensor second."""

    None_ = (False, False)
    First = (True, False)
    Second = (False, True)
    Both = (True, True)


class _Operators:
    """Operators of nl under other names, as attributes."""

    def __init__(self, title: str, **operators: Any) -> None:
        self._title = title
        vars(self).update(operators)

    def __getattr__(self, name: str) -> Any:
        known = [each for each in vars(self) if not each.startswith("_")]
        raise NoSuchName(
            module=f"{MODULE}.{self._title}", name=name, hint=nearest(name, known), loc=caller()
        )


arith_op = _Operators(
    "arith_op",
    Add=nl.add, Subtract=nl.subtract, Multiply=nl.multiply, Max=nl.maximum, Min=nl.minimum,
    Pow=nl.power, IsGT=nl.greater, IsGE=nl.greater_equal, IsLT=nl.less, IsLE=nl.less_equal,
    IsEQ=nl.equal, IsNE=nl.not_equal, LogicalAnd=nl.logical_and, LogicalOr=nl.logical_or,
    LogicalXor=nl.logical_xor,
)  # fmt: skip
bitvec_op = _Operators(
    "bitvec_op",
    BitwiseAnd=nl.bitwise_and, BitwiseOr=nl.bitwise_or, BitwiseXor=nl.bitwise_xor,
    BitwiseNot=nl.invert,
)  # fmt: skip
activation_reduce_op = _Operators(
    "activation_reduce_op", Add=nl.add, Max=nl.maximum, Min=nl.minimum
)
cross_lane_reduce_arith_op = _Operators("cross_lane_reduce_arith_op", Add=nl.add, Max=nl.maximum)
range_select_cmp = _Operators(
    "range_select_cmp",
    IsEq=nl.equal, IsGt=nl.greater, IsGe=nl.greater_equal, IsLe=nl.less_equal, IsLt=nl.less,
)  # fmt: skip
activation_function = _Operators(
    "activation_function",
    **{
        name: getattr(nl, name)
        for name in (
            "abs", "arctan", "copy", "erf", "erf_dx", "exp", "gelu", "gelu_apprx_sigmoid",
            "gelu_apprx_tanh", "gelu_dx", "log", "mish", "reciprocal", "relu", "rsqrt", "sigmoid",
            "sign", "silu", "silu_dx", "sin", "softplus", "sqrt", "square", "tanh",
        )
    },
)  # fmt: skip


def _engine(given: engine | None) -> enums.engine:
    return given.value if given is not None else enums.engine.unknown


def dma_copy(
    dst: NkiTensor, src: NkiTensor, engine: engine | None = None, name: str | None = None
) -> NkiInstruction:
    """Copy by DMA, started by `engine`."""
    return nisa.dma_copy(dst=dst, src=src, engine=_engine(engine), name=name)


def dma_transpose(
    dst: NkiTensor, src: NkiTensor, permutation: list[int] | None = None, name: str | None = None
) -> NkiInstruction:
    """Transpose by DMA; dimension i of dst is dimension permutation[i] of src."""
    axes = tuple(permutation) if permutation is not None else None
    return nisa.dma_transpose(dst=dst, src=src, axes=axes, name=name)


def memset(
    dst: NkiTensor, value: float, engine: engine | None = None, name: str | None = None
) -> NkiInstruction:
    """Write a number to every element."""
    return nisa.memset(dst=dst, value=value, engine=_engine(engine), name=name)


def tensor_copy(
    dst: NkiTensor, src: NkiTensor, engine: engine | None = None, name: str | None = None
) -> NkiInstruction:
    """Copy on chip."""
    return nisa.tensor_copy(dst=dst, src=src, engine=_engine(engine), name=name)


def tensor_tensor_arith(
    dst: NkiTensor,
    lhs: NkiTensor,
    rhs: NkiTensor,
    op: Any,
    engine: engine | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Write lhs op rhs."""
    return nisa.tensor_tensor(
        dst=dst, data1=lhs, data2=rhs, op=op, engine=_engine(engine), name=name
    )


tensor_tensor_bitvec = tensor_tensor_arith


def tensor_scalar_arith(
    dst: NkiTensor,
    src: NkiTensor,
    operand0: Operand,
    op0: Any,
    operand1: Operand | None = None,
    op1: Any = None,
    reverse_operands: tens_scalar_rev_ops = tens_scalar_rev_ops.None_,
    engine: engine | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Write (src op0 operand0) op1 operand1, the operands a number or one for each partition."""
    reverse0, reverse1 = reverse_operands.value
    return nisa.tensor_scalar(
        dst=dst, data=src, op0=op0, operand0=operand0, reverse0=reverse0, op1=op1,
        operand1=operand1, reverse1=reverse1, engine=_engine(engine), name=name,
    )  # fmt: skip


tensor_scalar_bitvec = tensor_scalar_arith


def scalar_tensor_tensor_arith(
    dst: NkiTensor,
    src0: NkiTensor,
    src1: NkiTensor,
    imm0: Operand,
    op0: Any,
    op1: Any,
    name: str | None = None,
) -> NkiInstruction:
    """Write (src0 op0 imm0) op1 src1."""
    return nisa.scalar_tensor_tensor(
        dst=dst, data=src0, op0=op0, operand0=imm0, op1=op1, operand1=src1, name=name
    )


def tensor_scalar_cache_reduce(
    dst: NkiTensor,
    reduce_res: NkiTensor,
    src: NkiTensor,
    operand0: Operand,
    op0: Any,
    reduce_op: Any,
    name: str | None = None,
) -> NkiInstruction:
    """Write src op0 operand0, and to reduce_res what reduce_op makes of each partition's values."""
    return nisa.tensor_scalar_reduce(
        dst=dst, data=src, op0=op0, operand0=operand0, reduce_op=reduce_op, reduce_res=reduce_res,
        name=name,
    )  # fmt: skip


def tensor_reduce_arith(
    dst: NkiTensor,
    src: NkiTensor,
    op: Any,
    num_r_dim: int = 1,
    negated: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """Reduce the last `num_r_dim` dimensions, and write the negative where `negated`."""
    axis = tuple(range(-num_r_dim, 0))
    return nisa.tensor_reduce(dst=dst, op=op, data=src, axis=axis, negate=negated, name=name)


def cross_lane_reduce_arith(
    dst: NkiTensor, src: NkiTensor, reduce_op: Any, num_r_dim: int = 0, name: str | None = None
) -> NkiInstruction:
    """Reduce over partitions; NotInNki where free dimensions are to be reduced too."""
    if num_r_dim:
        feature = f"{MODULE}.cross_lane_reduce_arith(num_r_dim={num_r_dim})"
        raise NotInNki(feature=feature, loc=caller())
    return nisa.tensor_partition_reduce(dst=dst, op=reduce_op, data=src, name=name)


def activation(
    dst: NkiTensor,
    src: NkiTensor,
    bias: Operand | None = None,
    scale: Operand = 1.0,
    op: Any = nl.copy,
    reduce_res: NkiTensor | None = None,
    reduce_op: Any = None,
    reduce_cmd: reduce_cmd | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Write op(scale * src + bias); `reduce_res` takes the sum of each partition's values."""
    command = enums.reduce_cmd.idle if reduce_res is None else enums.reduce_cmd.reset_reduce
    if reduce_cmd is not None:
        command = reduce_cmd.value
    return nisa.activation(
        dst=dst, op=op, data=src, bias=bias, scale=scale, reduce_op=reduce_op,
        reduce_res=reduce_res, reduce_cmd=command, name=name,
    )  # fmt: skip


def matmul(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    accum: bool = False,
    is_transpose: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """Write stationary.T @ moving to PSUM, or add it where `accum`."""
    return nisa.nc_matmul(
        dst=dst, stationary=stationary, moving=moving, accumulate=accum, is_transpose=is_transpose,
        name=name,
    )  # fmt: skip


def stream_transpose(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Transpose a tile of 32 by 32 on the Vector Engine."""
    return nisa.nc_transpose(dst=dst, data=src, engine=enums.engine.vector, name=name)


def stream_shuffle(
    dst: NkiTensor, src: NkiTensor, shuffle_mask: list[int], name: str | None = None
) -> NkiInstruction:
    """Copy partition shuffle_mask[i] of every 32 to partition i."""
    return nisa.nc_stream_shuffle(dst=dst, src=src, shuffle_mask=shuffle_mask, name=name)


def copy_predicated(
    dst: NkiTensor, pred_mask: NkiTensor, src: Operand, name: str | None = None
) -> NkiInstruction:
    """Copy the elements for which the mask is not 0."""
    return nisa.tensor_copy_predicated(dst=dst, src=src, predicate=pred_mask, name=name)


def tensor_tensor_scan(
    dst: NkiTensor,
    src0: NkiTensor,
    src1: NkiTensor,
    imm0: Operand,
    op0: Any,
    op1: Any,
    name: str | None = None,
) -> NkiInstruction:
    """Write, element after element, (the last result op0 src0) op1 src1, beginning with imm0."""
    return nisa.tensor_tensor_scan(
        dst=dst, data0=src0, data1=src1, initial=imm0, op0=op0, op1=op1, name=name
    )


def exponential(
    dst: NkiTensor, src: NkiTensor, max_value: Operand = 0.0, name: str | None = None
) -> NkiInstruction:
    """Write exp(src - max_value)."""
    return nisa.exponential(dst=dst, src=src, max_value=max_value, name=name)


def range_select(
    dst: NkiTensor,
    src: NkiTensor,
    bound0: NkiTensor,
    bound1: NkiTensor,
    fill_value: float,
    comp_op0: Any,
    comp_op1: Any,
    name: str | None = None,
) -> NkiInstruction:
    """Copy the elements whose number compares with both bounds, else write `fill_value`."""
    return nisa.range_select(
        dst=dst, on_true_tile=src, comp_op0=comp_op0, comp_op1=comp_op1, bound0=bound0,
        bound1=bound1, on_false_value=fill_value, name=name,
    )  # fmt: skip


def select_reduce(
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: Operand = 0.0,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: reduce_cmd | None = None,
    reduce_op: Any = nl.maximum,
    name: str | None = None,
) -> NkiInstruction:
    """Copy where the predicate is not 0, else write `on_false`; reduce_res takes what comes."""
    command = enums.reduce_cmd.idle if reduce_cmd is None else reduce_cmd.value
    return nisa.select_reduce(
        dst=dst, predicate=predicate, on_true=on_true, on_false=on_false, reduce_res=reduce_res,
        reduce_cmd=command, reduce_op=reduce_op, name=name,
    )  # fmt: skip


def store_register(dst: NkiTensor, register: VirtualRegister) -> None:
    """Write a register to a tile of one integer in SBUF."""
    nisa.register_store(dst, register)


def load_register(src: NkiTensor) -> VirtualRegister:
    """A register with the one integer of a tile in SBUF."""
    register = nisa.register_alloc(0)
    nisa.register_load(register, src)
    return register


__all__ = [
    "activation", "activation_function", "activation_reduce_op", "arith_op", "bitvec_op",
    "copy_predicated", "cross_lane_reduce_arith", "cross_lane_reduce_arith_op", "dma_copy",
    "dma_transpose", "engine", "exponential", "iota", "load_register", "matmul", "memset",
    "range_select", "range_select_cmp", "reduce_cmd", "scalar_tensor_tensor_arith",
    "select_reduce", "store_register", "stream_shuffle", "stream_transpose",
    "tens_scalar_rev_ops", "tensor_copy", "tensor_reduce_arith", "tensor_scalar_arith",
    "tensor_scalar_bitvec", "tensor_scalar_cache_reduce", "tensor_tensor_arith",
    "tensor_tensor_bitvec", "tensor_tensor_scan",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NoSuchName(module=MODULE, name=name, hint=nearest(name, __all__), loc=caller())
