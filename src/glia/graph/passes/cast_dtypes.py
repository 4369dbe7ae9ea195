"""The precision policy: `--auto-cast` to narrower floats, and accumulation in float32.

With `matmult` the operands of contractions and convolutions are cast, their results stay float32.
With `all` every float32 value inside the graph is cast; parameters and results keep their types.
tf32 is no type of its own but float32 with fewer mantissa bits, so it only concerns contractions;
fp8 holds too little for elementwise work, so `all` with fp8 casts contractions to fp8 and the rest
to bfloat16. A contraction is cast where that pays (`cast_benefit`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from glia.arch import get_target
from glia.base.dtype import BF16, F8E4M3, F8E4M3FN, F16, F32, TF32, TF32_BITS, DType, float_limits
from glia.graph.ir import OPS, Graph, Node, Parameter
from glia.graph.ops import (
    Constant,
    Convert,
    Convolution,
    CustomCall,
    Dot,
    Get,
    Map,
    Reduce,
    ReducePrecision,
    ReduceWindow,
    results_of,
)
from glia.graph.ops.scalar_regions import monoid
from glia.graph.passes.cast_benefit import MOVES, CastBenefit, benefit_of
from glia.graph.passes.retype import Retyping, retype
from glia.graph.rules.constructors import apply, convert, monoid_region, splat_like
from glia.graph.rules.driver import RewriteRule, apply_rules, results_as_node, rule
from glia.options import CompileOptions

_TYPES = {"bf16": BF16, "fp16": F16}


def cast_dtypes(graph: Graph, options: CompileOptions) -> Graph:
    """The graph in the precision that the options ask for."""
    if options.auto_cast == "all" and options.auto_cast_type != "tf32":
        graph = _cast_everything(graph, _TYPES.get(options.auto_cast_type, BF16))
    if options.auto_cast != "none":
        graph = apply_rules(graph, _operand_rules(options))
    if options.mixed_precision_accumulation:
        graph = apply_rules(graph, RULES)
    return graph


def _operand_rules(options: CompileOptions) -> tuple[RewriteRule, ...]:
    """The rules that cast what the PE multiplies."""

    def narrow(x: Node) -> Node:
        return _narrow_operand(x, options)

    @rule
    def cast_dot(op: Dot) -> Node | None:
        """dot(a, b) = dot(narrow a, narrow b) with a float32 result, where that pays"""
        if not _casts(op, options):
            return None
        return dataclasses.replace(op, a=narrow(op.a), b=narrow(op.b))

    @rule
    def cast_convolution(op: Convolution) -> Node | None:
        """convolution(x, k) = convolution(narrow x, narrow k), f32 result, where that pays"""
        if not _casts(op, options):
            return None
        return dataclasses.replace(op, x=narrow(op.x), kernel=narrow(op.kernel))

    return cast_dot, cast_convolution


def _casts(op: Dot | Convolution, options: CompileOptions) -> bool:
    """Whether the operands of a contraction are cast."""
    benefit = contraction_benefit(op, options)
    return benefit is not None and benefit.pays


def contraction_benefit(op: Dot | Convolution, options: CompileOptions) -> CastBenefit | None:
    """What the cast that the options ask for saves and takes; None where they ask for none."""
    if options.auto_cast == "none" or not _is_castable(op, options):
        return None
    return benefit_of(op, operand_dtype(options), get_target(options.target).arch)


def _is_castable(op: Dot | Convolution, options: CompileOptions) -> bool:
    """Whether both operands are float32 (or what `all` made of it) and not yet narrowed."""
    dtypes = {operand.dtype for operand in op.operands}
    if options.auto_cast_type == "fp8_e4m3" and options.auto_cast == "all":
        return dtypes <= {F32, BF16}
    if dtypes != {F32} or op.result_dtype is not F32:
        return False
    return not all(map(_is_narrowed, op.operands))


def _is_narrowed(x: Node) -> bool:
    match x:
        case ReducePrecision(_, exponent, mantissa):
            return (exponent, mantissa) == TF32_BITS
    return False


def operand_dtype(options: CompileOptions) -> DType:
    """The dtype that operands of contractions are cast to."""
    if options.auto_cast_type != "fp8_e4m3":
        return _TYPES.get(options.auto_cast_type, TF32)
    core = get_target(options.target).arch
    return F8E4M3FN if core.capabilities.has_microscaling_dtypes else F8E4M3


def _narrow_operand(x: Node, options: CompileOptions) -> Node:
    narrow = operand_dtype(options)
    if narrow is TF32:
        return ReducePrecision(x, *TF32_BITS)
    if narrow.bits > 8:
        return convert(x, narrow)
    largest = float(float_limits(narrow.numpy).max)
    inside = apply("clamp", splat_like(-largest, x), x, splat_like(largest, x))
    return convert(inside, narrow)


def _cast_everything(graph: Graph, narrow: DType) -> Graph:
    """The graph in `narrow` instead of float32, but for parameters, results, and exceptions."""

    def enter(parameter: Parameter) -> tuple[Parameter, Node]:
        cast = parameter.dtype is F32
        return parameter, convert(parameter, narrow) if cast else parameter

    def leave(value: Node, outside: DType) -> Node:
        return convert(value, outside)

    return retype(graph, Retyping({F32: narrow}, _SPECIAL, enter, leave))


def _constant(node: Constant, _: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node | None:
    return convert(node, dtypes[F32]) if node.dtype is F32 else None


def _keep_in_float32(node: Node, operands: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node:
    """The operation in float32, its operands and result converted."""
    pairs = zip(operands, node.operands, strict=True)
    same = node.with_operands(convert(new, old.dtype) for new, old in pairs)
    results = [convert(x, dtypes.get(x.dtype, x.dtype)) for x in results_of(same)]
    return results_as_node(results)


def _keep_kernel(node: CustomCall, operands: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node:
    """A kernel call on its original dtypes; operands that were only moved are not rounded."""
    pairs = zip(operands, node.operands, strict=True)
    return _keep_in_float32(node, [_unnarrowed_source(new, old) for new, old in pairs], dtypes)


def _unnarrowed_source(new: Node, old: Node) -> Node:
    """`new`, the image of `old`, without the cast of an operand that was at most moved."""
    if isinstance(old, Parameter | Constant | CustomCall | Get):
        return new.x if isinstance(new, Convert) and new.x.dtype is old.dtype else new
    if isinstance(old, MOVES) and type(new) is type(old):
        return new.with_operands([_unnarrowed_source(new.x, old.x)])
    return new


def _accumulate_in_float32(
    node: Any, operands: Sequence[Node], dtypes: Mapping[DType, DType]
) -> Node | None:
    """A contraction that accumulates in float32 and rounds once."""
    if node.result_dtype is not F32:
        return None
    return convert(node.with_operands(operands), dtypes[F32])


def _keep_float32_parts(
    node: Map, operands: Sequence[Node], dtypes: Mapping[DType, DType]
) -> Node | None:
    """A function to or from complex numbers, whose parts stay float32; None for others."""
    involved = node.dtype.is_complex or any(arg.dtype.is_complex for arg in node.args)
    return _keep_in_float32(node, operands, dtypes) if involved else None


_SPECIAL: dict[type[Node], Any] = {
    Constant: _constant,
    Map: _keep_float32_parts,
    CustomCall: _keep_kernel,
    **dict.fromkeys((Dot, Convolution), _accumulate_in_float32),
    **{operation: _keep_in_float32 for operation in OPS.values() if operation.keeps_float32},
}


def _is_16_bit_float(dtype: DType) -> bool:
    return dtype.is_float and dtype.bits < 32


@rule
def accumulate_contraction(op: Dot | Convolution) -> Node | None:
    """dot to bf16 = convert(dot to f32)"""
    if not _is_16_bit_float(op.result_dtype):
        return None
    return Convert(dataclasses.replace(op, result_dtype=F32), op.result_dtype)


@rule
def accumulate_sum(op: Reduce | ReduceWindow) -> Node | None:
    """sum of bf16 = convert(sum of converted to f32); so for products, and in windows"""
    kind = monoid(op.body)
    if kind not in ("add", "multiply") or not _is_16_bit_float(op.dtype):
        return None
    wide = dataclasses.replace(op, xs=(convert(op.xs[0], F32),), inits=(convert(op.inits[0], F32),),
                               body=monoid_region(kind, F32))  # fmt: skip
    return convert(wide, op.dtype)


RULES = (accumulate_contraction, accumulate_sum)
