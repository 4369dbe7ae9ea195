"""`list-operators` lists what compiles: a program for each operator, and refusals of the others."""

from __future__ import annotations

import numpy as np
import pytest

import glia
from glia.base.errors import CompileError
from glia.frontend.hlo import IMPORTERS, operator_names, operators
from support.hlo_text import entry, from_text, module

UNARY = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cbrt",
    "ceil",
    "cosh",
    "cosine",
    "erf",
    "exponential",
    "exponential-minus-one",
    "floor",
    "log",
    "log-plus-one",
    "logistic",
    "negate",
    "round-nearest-afz",
    "round-nearest-even",
    "rsqrt",
    "sign",
    "sine",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "copy",
]
BINARY = [
    "add",
    "atan2",
    "divide",
    "maximum",
    "minimum",
    "multiply",
    "power",
    "remainder",
    "subtract",
]
UNARY_INTEGER = ["count-leading-zeros", "not", "popcnt"]
BINARY_INTEGER = [
    "and",
    "or",
    "xor",
    "mulhi",
    "shift-left",
    "shift-right-arithmetic",
    "shift-right-logical",
]
PART_OF_OTHERS = {  # pieces of asynchronous operations, which are one operator
    opcode for opcode in IMPORTERS if opcode.endswith(("-start", "-done", "-update"))
}
UNLISTED = {"set-dimension-size"}  # compiles only where it sets the size there is
REGIONS = """HloModule test

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

larger {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=GE
}

double {
  x = f32[4] parameter(0)
  ROOT y = f32[4] add(x, x)
}

count {
  i = s32[] parameter(0)
  one = s32[] constant(1)
  ROOT j = s32[] add(i, one)
}

small {
  i = s32[] parameter(0)
  ten = s32[] constant(10)
  ROOT r = pred[] compare(i, ten), direction=LT
}

running {
  x = f32[] parameter(0)
  total = f32[] parameter(1)
  sum = f32[] add(x, total)
  ROOT r = (f32[], f32[]) tuple(sum, sum)
}

ENTRY main {
%s
}
"""
X, MATRIX = "  x = f32[4] parameter(0)\n", "  x = f32[4,4] parameter(0)\n"
ZERO = "  zero = f32[] constant(0)\n"
COMPLEX = "  x = f32[4] parameter(0)\n  z = c64[4] complex(x, x)\n"
PAIRS = 'channel_id=1, frontend_attributes={_xla_send_recv_source_target_pairs="{{0,0}}"}'
SENT = f"""  t = token[] after-all()
  s = (f32[4], u32[], token[]) send(x, t), {PAIRS}
  d = token[] send-done(s), channel_id=1
  r = (f32[4], u32[], token[]) recv(t), {PAIRS}
  g = (f32[4], token[]) recv-done(r), channel_id=1
  ROOT y = f32[4] get-tuple-element(g), index=0"""
BODIES = {
    "is-finite": X + "  ROOT y = pred[4] is-finite(x)",
    "real": COMPLEX + "  ROOT y = f32[4] real(z)",
    "imag": COMPLEX + "  ROOT y = f32[4] imag(z)",
    "complex": X + "  ROOT z = c64[4] complex(x, x)",
    "compare": X + "  ROOT y = pred[4] compare(x, x), direction=LT",
    "select": X + "  p = pred[4] compare(x, x), direction=LT\n  ROOT y = f32[4] select(p, x, x)",
    "clamp": X + "  ROOT y = f32[4] clamp(x, x, x)",
    "convert": X + "  ROOT y = s32[4] convert(x)",
    "bitcast-convert": X + "  ROOT y = s32[4] bitcast-convert(x)",
    "reduce-precision": X
    + "  ROOT y = f32[4] reduce-precision(x), exponent_bits=5, mantissa_bits=4",
    "map": X + "  ROOT y = f32[4] map(x, x), dimensions={0}, to_apply=add",
    "broadcast": X + "  ROOT y = f32[2,4] broadcast(x), dimensions={1}",
    "reshape": X + "  ROOT y = f32[2,2] reshape(x)",
    "transpose": MATRIX + "  ROOT y = f32[4,4] transpose(x), dimensions={1,0}",
    "bitcast": X + "  ROOT y = f32[2,2] bitcast(x)",
    "slice": X + "  ROOT y = f32[2] slice(x), slice={[1:3]}",
    "reverse": X + "  ROOT y = f32[4] reverse(x), dimensions={0}",
    "pad": X + ZERO + "  ROOT y = f32[6] pad(x, zero), padding=1_1",
    "concatenate": X + "  ROOT y = f32[8] concatenate(x, x), dimensions={0}",
    "iota": "  ROOT y = s32[4] iota(), iota_dimension=0",
    "dynamic-slice": X
    + "  i = s32[] parameter(1)\n  ROOT y = f32[2] dynamic-slice(x, i), dynamic_slice_sizes={2}",
    "dynamic-update-slice": X
    + "  i = s32[] parameter(1)\n  u = f32[2] parameter(2)\n"
    + "  ROOT y = f32[4] dynamic-update-slice(x, u, i)",
    "gather": MATRIX
    + "  i = s32[3,1] parameter(1)\n  ROOT y = f32[3,4] gather(x, i), offset_dims={1}, "
    + "collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}",
    "scatter": MATRIX
    + "  i = s32[3,1] parameter(1)\n  u = f32[3,4] parameter(2)\n"
    + "  ROOT y = f32[4,4] scatter(x, i, u), update_window_dims={1}, inserted_window_dims={0}, "
    + "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add",
    "sort": X + "  ROOT y = f32[4] sort(x), dimensions={0}, to_apply=larger",
    "get-dimension-size": X + "  ROOT y = s32[] get-dimension-size(x), dimensions={0}",
    "set-dimension-size": X
    + "  n = s32[] constant(4)\n  ROOT y = f32[4] set-dimension-size(x, n), dimensions={0}",
    "dot": MATRIX
    + "  ROOT y = f32[4,4] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    "ragged-dot": MATRIX
    + "  w = f32[2,4,4] parameter(1)\n  g = s32[2] parameter(2)\n"
    + "  ROOT y = f32[4,4] ragged-dot(x, w, g), lhs_contracting_dims={1}, "
    + "rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}",
    "convolution": "  x = f32[1,6,6,2] parameter(0)\n  k = f32[3,3,2,4] parameter(1)\n"
    "  ROOT y = f32[1,4,4,4] convolution(x, k), window={size=3x3}, dim_labels=b01f_01io->b01f",
    "reduce": X + ZERO + "  ROOT y = f32[] reduce(x, zero), dimensions={0}, to_apply=add",
    "reduce-window": X
    + ZERO
    + "  ROOT y = f32[3] reduce-window(x, zero), window={size=2}, to_apply=add",
    "select-and-scatter": X
    + ZERO
    + "  s = f32[2] parameter(1)\n  ROOT y = f32[4] select-and-scatter(x, s, zero), "
    + "window={size=2 stride=2}, select=larger, scatter=add",
    "rng-bit-generator": "  k = u64[2] parameter(0)\n"
    "  ROOT y = (u64[2], u32[4]) rng-bit-generator(k), algorithm=rng_default",
    "rng": ZERO
    + "  one = f32[] constant(1)\n  ROOT y = f32[4] rng(zero, one), distribution=rng_uniform",
    "fft": COMPLEX + "  ROOT y = c64[4] fft(z), fft_type=FFT, fft_length={4}",
    "triangular-solve": MATRIX
    + "  ROOT y = f32[4,4] triangular-solve(x, x), left_side=true, lower=true, "
    + "transpose_a=NO_TRANSPOSE",
    "cholesky": MATRIX + "  ROOT y = f32[4,4] cholesky(x), lower=true",
    "topk": X + "  ROOT y = (f32[2], s32[2]) topk(x), k=2, largest=true",
    "batch-norm-inference": MATRIX
    + "  s = f32[4] parameter(1)\n  ROOT y = f32[4,4] batch-norm-inference(x, s, s, s, s), "
    + "epsilon=0.001, feature_index=1",
    "batch-norm-training": MATRIX
    + "  s = f32[4] parameter(1)\n  ROOT y = (f32[4,4], f32[4], f32[4]) "
    + "batch-norm-training(x, s, s), epsilon=0.001, feature_index=1",
    "batch-norm-grad": MATRIX
    + "  s = f32[4] parameter(1)\n  ROOT y = (f32[4,4], f32[4], f32[4]) "
    + "batch-norm-grad(x, s, s, s, x), epsilon=0.001, feature_index=1",
    "constant": "  ROOT y = f32[4] constant({1, 2, 3, 4})",
    "parameter": "  ROOT x = f32[4] parameter(0)",
    "tuple": X + "  ROOT y = (f32[4], f32[4]) tuple(x, x)",
    "get-tuple-element": X
    + "  t = (f32[4], f32[4]) tuple(x, x)\n  ROOT y = f32[4] get-tuple-element(t), index=1",
    "call": X + "  ROOT y = f32[4] call(x), to_apply=double",
    "fusion": X + "  ROOT y = f32[4] fusion(x), kind=kLoop, calls=double",
    "while": "  i = s32[] parameter(0)\n  ROOT y = s32[] while(i), condition=small, body=count",
    "conditional": X
    + "  p = pred[] parameter(1)\n  ROOT y = f32[4] conditional(p, x, x), "
    + "true_computation=double, false_computation=double",
    "opt-barrier": X + "  ROOT y = f32[4] opt-barrier(x)",
    "add-dependency": X + "  t = token[] after-all()\n  ROOT y = f32[4] add-dependency(x, t)",
    "after-all": X + "  t = token[] after-all()\n  ROOT y = f32[4] add-dependency(x, t)",
    "domain": X
    + '  ROOT y = f32[4] domain(x), domain={kind="sharding", entry={maximal device=0}, '
    + "exit={maximal device=0}}",
    "scan": X
    + ZERO
    + "  ROOT y = (f32[4], f32[]) scan(x, zero), dimensions={0}, num_carries=1, to_apply=running",
    "custom-call": X + '  ROOT y = f32[4] custom-call(x), custom_call_target="AwsNeuronGelu"',
    "all-gather": X + "  ROOT y = f32[4] all-gather(x), replica_groups={{0}}, dimensions={0}",
    "all-reduce": X + "  ROOT y = f32[4] all-reduce(x), replica_groups={{0}}, to_apply=add",
    "all-to-all": X + "  ROOT y = f32[4] all-to-all(x), replica_groups={{0}}, dimensions={0}",
    "collective-broadcast": X + "  ROOT y = f32[4] collective-broadcast(x), replica_groups={{0}}",
    "collective-permute": X
    + "  ROOT y = f32[4] collective-permute(x), source_target_pairs={{0,0}}",
    "reduce-scatter": X
    + "  ROOT y = f32[4] reduce-scatter(x), replica_groups={{0}}, dimensions={0}, to_apply=add",
    "partition-id": "  ROOT y = u32[] partition-id()",
    "replica-id": "  ROOT y = u32[] replica-id()",
    **dict.fromkeys(("send", "recv"), X + SENT),
}
# Operators of XLA that no importer takes: they talk to the host or hold another device's state.
REFUSED = [
    "infeed",
    "outfeed",
    "dynamic-reshape",
    "ragged-all-to-all",
    "rng-get-and-update-state",
    "stochastic-convert",
    "no-such-operator",
]


def program_of(opcode: str) -> bytes:
    """A module with one operation of this opcode."""
    body = BODIES.get(opcode)
    if body is not None:
        return from_text(REGIONS % body)
    is_integer = opcode in UNARY_INTEGER or opcode in BINARY_INTEGER
    kind = "s32" if is_integer else "f32"
    operands = "x, x" if opcode in BINARY or opcode in BINARY_INTEGER else "x"
    written = "add" if operands == "x, x" else "negate"
    message = module(
        entry(f"  x = {kind}[4] parameter(0)\n  ROOT y = {kind}[4] {written}({operands})")
    )
    message.computations[0].instructions[1].opcode = opcode
    data: bytes = message.SerializeToString()
    return data


@pytest.mark.parametrize("opcode", sorted({"parameter", *IMPORTERS} - PART_OF_OTHERS))
def test_what_is_listed_compiles(opcode: str) -> None:
    assert opcode in BODIES or opcode in {*UNARY, *BINARY, *UNARY_INTEGER, *BINARY_INTEGER}
    assert (set(operator_names(opcode)) <= set(operators())) is (opcode not in UNLISTED)
    assert glia.compile(program_of(opcode)).programs


def test_every_name_in_the_list_is_that_of_an_opcode_above() -> None:
    opcodes = {"parameter", *IMPORTERS} - PART_OF_OTHERS - UNLISTED
    assert {name for opcode in opcodes for name in operator_names(opcode)} == set(operators())


@pytest.mark.parametrize("opcode", REFUSED)
def test_what_is_not_listed_is_refused(opcode: str) -> None:
    assert not set(operator_names(opcode)) & set(operators())
    with pytest.raises(CompileError, match="NCC_EVRF001"):
        glia.compile(program_of(opcode))


@pytest.mark.parametrize("opcode", ["partition-id", "replica-id"])
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_numbers_of_ranks_are_no_inputs(opcode: str, target: str) -> None:
    alone = glia.load(glia.compile(program_of(opcode), target=target))
    assert not alone.inputs and alone()[0] == 0
    body = f"x = u32[4] parameter(0)\n i = u32[] {opcode}()\n"
    body += " b = u32[4] broadcast(i), dimensions={}\n ROOT y = u32[4] add(x, b)"
    added = glia.load(glia.compile(entry(body), target=target))
    x = np.arange(4, dtype=np.uint32)
    assert len(added.inputs) == 1
    np.testing.assert_array_equal(added(x)[0], x)
