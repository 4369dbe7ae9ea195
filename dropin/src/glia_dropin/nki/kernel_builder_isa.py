"""`nki.compiler.kernel_builder.isa`: functions of nki.isa under kernel_builder's names.

They issue the same instructions; only parameters and enumerations have other names.
"""

# The names are those that kernels write.
# ruff: noqa: N801

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from inspect import Parameter
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
    """A namespace of nl operators under kernel_builder's names; NoSuchName for others."""

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


# --- functions that differ from nki.isa in the names of parameters alone -------------------------


def _renamed(
    function: Callable[..., NkiInstruction],
    parameters: str,
    optional: Mapping[str, Any] | None,
    text: str,
    **fixed: Any,
) -> Callable[..., NkiInstruction]:
    """A row of the table: a function of nki.isa under kernel_builder's names of its parameters.

    A parameter is `theirs=nki_isa's`, or one name where both agree; `parameters` are required,
    then come `optional` ones with their defaults, then `name`. None stands for nki.isa's default.
    `fixed` arguments of nki.isa are always passed.
    """
    defaults: dict[str, Any] = dict.fromkeys(parameters.split(), Parameter.empty)
    defaults |= {**(optional or {}), "name": None}
    names, signature_parameters = {}, []
    for pair, default in defaults.items():
        theirs, _, ours = pair.partition("=")
        names[theirs] = ours or theirs
        signature_parameters.append(
            Parameter(theirs, Parameter.POSITIONAL_OR_KEYWORD, default=default)
        )
        if default is not None and default is not Parameter.empty:
            fixed[ours or theirs] = default
    signature = inspect.Signature(signature_parameters)
    positional = tuple(names)
    required = frozenset(pair.partition("=")[0] for pair in parameters.split())
    enumerations = [name for name in ("engine", "reduce_cmd") if name in names]

    def call(*args: Any, **kwargs: Any) -> NkiInstruction:
        given = {**dict(zip(positional, args, strict=False)), **kwargs}
        if len(given) != len(args) + len(kwargs) or not required <= given.keys() <= names.keys():
            signature.bind(*args, **kwargs)  # raises the TypeError that says which is wrong
        fields = fixed.copy()
        for name, value in given.items():
            if value is not None:
                fields[names[name]] = value
        for name in enumerations:
            if name in fields:
                fields[name] = fields[name].value
        return function(**fields)

    call.__doc__ = text
    call.__signature__ = signature  # type: ignore[attr-defined]  # what help() shows
    return call


dma_copy = _renamed(nisa.dma_copy, "dst src", {"engine": None}, "Copy by DMA, started by `engine`.")
dma_transpose = _renamed(
    nisa.dma_transpose, "dst src", {"permutation=axes": None},
    "Transpose by DMA; dimension i of dst is dimension permutation[i] of src.",
)  # fmt: skip
memset = _renamed(nisa.memset, "dst value", {"engine": None}, "Write a number to every element.")
tensor_copy = _renamed(nisa.tensor_copy, "dst src", {"engine": None}, "Copy on chip.")
tensor_tensor_arith = _renamed(
    nisa.tensor_tensor, "dst lhs=data1 rhs=data2 op", {"engine": None}, "Write lhs op rhs."
)
tensor_tensor_bitvec = tensor_tensor_arith
scalar_tensor_tensor_arith = _renamed(
    nisa.scalar_tensor_tensor, "dst src0=data src1=operand1 imm0=operand0 op0 op1", None,
    "Write (src0 op0 imm0) op1 src1.",
)  # fmt: skip
tensor_scalar_cache_reduce = _renamed(
    nisa.tensor_scalar_reduce, "dst reduce_res src=data operand0 op0 reduce_op", None,
    "Write src op0 operand0, and to reduce_res what reduce_op makes of each partition's values.",
)  # fmt: skip
matmul = _renamed(
    nisa.nc_matmul, "dst stationary moving", {"accum=accumulate": False, "is_transpose": False},
    "Write stationary.T @ moving to PSUM, or add it where `accum`.",
)  # fmt: skip
stream_transpose = _renamed(
    nisa.nc_transpose, "dst src=data", None,
    "Transpose a tile of 32 by 32 on the Vector Engine.", engine=enums.engine.vector,
)  # fmt: skip
stream_shuffle = _renamed(
    nisa.nc_stream_shuffle, "dst src shuffle_mask", None,
    "Copy partition shuffle_mask[i] of every 32 to partition i.",
)  # fmt: skip
copy_predicated = _renamed(
    nisa.tensor_copy_predicated, "dst pred_mask=predicate src", None,
    "Copy the elements for which the mask is not 0.",
)  # fmt: skip
tensor_tensor_scan = _renamed(
    nisa.tensor_tensor_scan, "dst src0=data0 src1=data1 imm0=initial op0 op1", None,
    "Write, element after element, (the last result op0 src0) op1 src1, beginning with imm0.",
)  # fmt: skip
exponential = _renamed(
    nisa.exponential, "dst src", {"max_value": 0.0}, "Write exp(src - max_value)."
)
range_select = _renamed(
    nisa.range_select,
    "dst src=on_true_tile bound0 bound1 fill_value=on_false_value comp_op0 comp_op1", None,
    "Copy the elements whose number compares with both bounds, else write `fill_value`.",
)  # fmt: skip
select_reduce = _renamed(
    nisa.select_reduce, "dst predicate on_true",
    {"on_false": 0.0, "reduce_res": None, "reduce_cmd": None, "reduce_op": nl.maximum},
    "Copy where the predicate is not 0, else write `on_false`; reduce_res takes the reduction.",
)  # fmt: skip


# --- functions whose arguments are converted -----------------------------------------------------


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
    chosen = engine.value if engine is not None else enums.engine.unknown
    return nisa.tensor_scalar(
        dst=dst, data=src, op0=op0, operand0=operand0, reverse0=reverse0, op1=op1,
        operand1=operand1, reverse1=reverse1, engine=chosen, name=name,
    )  # fmt: skip


tensor_scalar_bitvec = tensor_scalar_arith


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
