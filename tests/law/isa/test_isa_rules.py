"""Every instruction has a legal example, and every rule is broken by a planted violation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from glia.arch import ARCHS, get_target
from glia.base.affine import Affine
from glia.base.dtype import BF16, F8E4M3FN, F16, F32, F64, S8, S16, S32, U32
from glia.isa import INSTRUCTIONS
from glia.isa.examples import chip, examples, hbm
from glia.isa.operand import Memory, Pattern, Tile
from glia.isa.rules import COMMON_RULES
from glia.machine.legal_instruction import violations
from support.isa_planted import cores, movement, vector

V3 = get_target("trn2").arch
EXAMPLES = examples()

psum = {"memory": "PSUM"}

# (instruction, changed fields, part of the sentence that must be reported[, target])
PLANTED: list[tuple[Any, ...]] = [
    ("tensor_tensor", {"data2": chip("b", 64, 16)}, "same number of partitions and of elements"),
    ("tensor_tensor", {"op": "sum"}, "op must be a binary operator"),
    ("tensor_tensor", {"op": "abs"}, "op must be a binary operator"),
    ("tensor_tensor", {"op": "divide"}, "op must be a binary operator"),
    ("tensor_tensor", {"op": "bitwise_and"}, "a bitvec operator needs integers"),
    (
        "tensor_tensor",
        {"data1": chip("a", 64, 32, **psum), "data2": chip("b", 64, 32, **psum)},
        "data1 and data2 must not both be in PSUM",
    ),
    ("tensor_scalar", {"dst": chip("out", 32, 32)}, "dst, data must have the same number"),
    ("tensor_scalar", {"operand0": chip("c", 64, 2)}, "operand0 must hold one element"),
    ("tensor_scalar", {"operand1": chip("c", 32, 1)}, "operand1 must hold one element"),
    ("tensor_scalar", {"op0": "power"}, "op0 must be an operator"),
    ("tensor_scalar", {"op1": "mod"}, "op1 must be an operator"),
    ("tensor_scalar", {"op1": "bitwise_or"}, "a bitvec operator needs integers"),
    ("tensor_scalar", {"operand0": None}, "a binary operator needs its operand"),
    ("tensor_scalar", {"on": "scalar", "op1": "subtract"}, "the Scalar Engine has"),
    ("scalar_tensor_tensor", {"operand1": chip("b", 64, 31)}, "dst, data, operand1 must have"),
    ("scalar_tensor_tensor", {"operand0": chip("c", 64, 2)}, "operand0 must hold one element"),
    ("scalar_tensor_tensor", {"op0": "nothing"}, "op0 must be an operator"),
    ("scalar_tensor_tensor", {"op1": "square"}, "op1 must be a binary operator"),
    ("scalar_tensor_tensor", {"op0": "bitwise_and"}, "op0 and op1 must be arithmetic"),
    (
        "scalar_tensor_tensor",
        {"data": chip("a", 64, 32, **psum), "operand1": chip("b", 64, 32, **psum)},
        "data and operand1 must not both be in PSUM",
    ),
    ("tensor_reduce", {"axes": 2}, "axes must count 1 to all free dimensions"),
    ("tensor_reduce", {"op": "abs"}, "op must be an operator that reduces"),
    ("tensor_reduce", {"op": "greater"}, "op must be an operator that reduces"),
    ("tensor_reduce", {"op": "bitwise_or"}, "a bitvec operator needs integers"),
    (
        "tensor_reduce",
        {
            "op": "bitwise_or",
            "negate": True,
            "data": chip("a", 64, 32, dtype=S32),
            "dst": chip("c", 64, 1, dtype=S32),
        },
        "negate needs an arithmetic operator",
    ),
    ("tensor_copy", {"src": chip("a", 64, 8)}, "dst, src must have the same number"),
    ("tensor_copy_predicated", {"src": chip("a", 64, 8)}, "dst, src, predicate must have"),
    ("tensor_copy_predicated", {"predicate": chip("p", 64, 32)}, "predicate must be one of"),
    ("reciprocal", {"data": chip("a", 64, 8)}, "dst, data must have the same number"),
    ("memset", {"dst": chip("out", 64, 32, dtype=S8), "value": 0.5}, "takes an integer value"),
    ("stream_shuffle", {"src": chip("a", 64, 31)}, "dst and src must have the same number of"),
    ("stream_shuffle", {"src": chip("a", 64, 32, dtype=S32)}, "dst, src must have the same dtype"),
    ("stream_shuffle", {"mask": (0,) * 31}, "mask must have 32 entries"),
    ("stream_shuffle", {"src": chip("a", 40, 32)}, "mask must name partitions that src has"),
    ("tensor_tensor_scan", {"data1": chip("b", 64, 8)}, "dst, data0, data1 must have the same"),
    ("tensor_tensor_scan", {"initial": chip("c", 64, 2)}, "initial must hold one element"),
    ("tensor_tensor_scan", {"op0": "abs"}, "op0 must be a binary operator"),
    ("tensor_tensor_scan", {"op1": "relu"}, "op1 must be a binary operator"),
    ("tensor_tensor_scan", {"op1": "left_shift"}, "op0 and op1 must be arithmetic"),
    ("bn_stats", {"data": chip("a", 32, 32)}, "dst, data must have the same number of part"),
    ("bn_stats", {"dst": chip("six", 64, 5)}, "dst must have 6 elements"),
    ("bn_stats", {"data": chip("a", 64, 513)}, "data must have 1 to 512 elements"),
    ("bn_aggr", {"data": chip("six", 32, 6)}, "dst, data must have the same number of part"),
    ("bn_aggr", {"dst": chip("pair", 64, 3)}, "dst must have 2 elements"),
    ("bn_aggr", {"data": chip("six", 64, 7)}, "data must hold whole triples"),
    ("max8", {"data": chip("a", 32, 32)}, "dst, data must have the same number of part"),
    ("max8", {"dst": chip("eight", 64, 7)}, "dst must have 8 elements"),
    ("max8", {"data": chip("a", 64, 7)}, "data must have 8 to 16384 elements"),
    ("find_index8", {"vals": chip("v", 32, 8)}, "dst, data, vals must have the same number"),
    ("find_index8", {"dst": chip("f", 64, 9, dtype=U32)}, "dst must have 8 elements"),
    ("find_index8", {"vals": chip("v", 64, 9)}, "vals must have 8 elements"),
    ("find_index8", {"data": chip("a", 64, 4)}, "data must have 8 to 16384 elements"),
    ("find_index8", {"dst": chip("f", 64, 8)}, "dst must be one of"),
    ("find_index8", {"data": chip("a", 64, 32, dtype=S16)}, "data must be one of"),
    ("match_replace8", {"dst": chip("out", 64, 31)}, "dst, data must have the same number"),
    ("match_replace8", {"vals": chip("v", 32, 8)}, "data, vals must have the same number"),
    ("match_replace8", {"vals": chip("v", 64, 9)}, "vals must have 8 elements"),
    ("match_replace8", {"data": chip("a", 64, 4)}, "data must have 8 to 16384 elements"),
    ("match_replace8", {"data": chip("a", 64, 32, dtype=S32)}, "data must be one of"),
    ("match_replace8", {"dst": chip("out", 64, 32, dtype=S32)}, "dst must be one of"),
    ("nc_matmul", {"moving": chip("b", 32, 32)}, "stationary and moving must have the same"),
    ("nc_matmul", {"dst": chip("sum", 32, 16, **psum)}, "dst must have a partition for each"),
    ("nc_matmul", {"stationary": chip("a", 64, 129)}, "stationary must have at most as many"),
    ("nc_matmul", {"moving": chip("b", 64, 513)}, "moving must have at most 512 columns"),
    ("nc_matmul", {"stationary": chip("a", 64, 32, dtype=S32)}, "stationary must be one of"),
    ("nc_matmul", {"moving": chip("b", 64, 32, dtype=S32)}, "moving must be one of"),
    ("nc_matmul", {"moving": chip("b", 64, 32, dtype=BF16)}, "float32 and tf32 multiply only"),
    ("nc_matmul", {"dst": chip("s", 32, 32, dtype=BF16, **psum)}, "dst must be float32"),
    ("nc_transpose", {"dst": chip("t", 64, 32, **psum)}, "dst must be [F, P]"),
    ("nc_transpose", {"dst": chip("t", 32, 64, dtype=F16, **psum)}, "dst, data must have the same"),
    (
        "nc_transpose",
        {"data": chip("a", 64, 129), "dst": chip("t", 129, 64, **psum)},
        "transposes at most 128 x 128",
    ),
    ("nc_transpose", {"dst": chip("t", 32, 64)}, "reads SBUF and writes PSUM"),
    (
        "nc_transpose",
        {"data": chip("a", 64, 32, dtype=S32), "dst": chip("t", 32, 64, dtype=S32, **psum)},
        "the Tensor Engine transposes floats only",
        "inf2",
    ),
    ("activation", {"dst": chip("out", 64, 31)}, "dst, data must have the same number"),
    ("activation", {"bias": chip("c", 64, 2)}, "bias must hold one element"),
    ("activation", {"scale": chip("c", 64, 2)}, "scale must hold one element"),
    ("activation", {"function": "zeta"}, "function must be an activation function"),
    ("iota", {"steps": (1, 2)}, "steps must have one entry"),
    ("affine_select", {"steps": ()}, "steps must have one entry"),
    ("affine_select", {"compare_op": "add"}, "compare_op must be a comparison"),
    ("affine_select", {"data": chip("a", 64, 31)}, "dst, data must have the same number"),
    ("tensor_partition_reduce", {"dst": chip("row", 2, 32)}, "dst must have one partition"),
    ("tensor_partition_reduce", {"op": "subtract"}, "op must be one of"),
    ("tensor_partition_reduce", {"op": "bitwise_or"}, "a bitwise operator needs integers"),
    ("dma_copy", {"src": hbm("x", 64, 31)}, "dst and src must have the same number of elements"),
    ("dma_gather", {"src": hbm("table", 100, 31)}, "dst must hold one row of src"),
    ("dma_gather", {"indices": chip("i", 32, 1, dtype=S32)}, "indices must hold one element"),
    ("dma_gather", {"indices": chip("i", 64, 1, dtype=S16)}, "indices must be one of"),
    ("dma_gather", {"out_of_bounds": "clamp"}, "out_of_bounds must be error or skip"),
    ("dma_scatter", {"dst": hbm("table", 100, 31)}, "src must hold one row of dst"),
    ("dma_scatter", {"indices": chip("i", 32, 1, dtype=S32)}, "indices must hold one element"),
    ("dma_scatter", {"indices": chip("i", 64, 1)}, "indices must be one of"),
    ("dma_scatter", {"combine": "maximum"}, "combine must be empty or add"),
    ("dma_scatter", {"out_of_bounds": ""}, "out_of_bounds must be error or skip"),
    ("register_load", {"src": chip("one", 1, 2, dtype=S32)}, "src must be one element"),
    ("register_load", {"src": chip("one", 1, 1)}, "src must be one of"),
    ("register_alu", {"op": "power"}, "op must be a register operator"),
    # the laws all instructions share
    ("reciprocal", {"data": chip("a", 129, 32)}, "span 1 to 128 partitions"),
    ("reciprocal", {"data": chip("a", 64, 32, partition=32)}, "must start at partition 0"),
    (
        "reciprocal",
        {"data": replace(chip("a", 64, 32), dims=((2, 64), (1, 32)))},
        "neighbouring partitions",
    ),
    ("reciprocal", {"data": chip("a", 64, 2, 2, 2, 2, 2)}, "at most 4 free dimensions"),
    ("reciprocal", {"data": chip("a", 64, 0)}, "at least one element"),
    (
        "reciprocal",
        {"dst": replace(chip("out", 64, 32, **psum), dims=((1, 64), (0, 32)))},
        "twice through a step of 0",
    ),
    ("tensor_tensor", {"on": "gpsimd", "dst": chip("o", 64, 32, **psum)}, "GpSimd reaches SBUF"),
    ("reciprocal", {"data": chip("a", 64, 32, dtype=F64)}, "must have a dtype of the device"),
    ("reciprocal", {"data": chip("a", 64, 32, dtype=F8E4M3FN)}, "need generation 4"),
    # structure: engines, memories, presence
    ("reciprocal", {"on": "tensor"}, "reciprocal runs on vector, not on tensor"),
    ("reciprocal", {"data": hbm("x", 64, 32)}, "data must be in SBUF or PSUM"),
    ("reciprocal", {"data": None}, "data is missing"),
    ("reciprocal", {"data": 1.0}, "data must be a pattern"),
    ("reciprocal", {"data": Affine.of("i")}, "a register or loop variable"),
    ("all_reduce", {"srcs": ()}, "srcs must be one or more patterns"),
    *cores.PLANTED,
    *movement.PLANTED,
    *vector.PLANTED,
]


LATER = {  # every other instruction of these engines is on all generations
    "activate2": (4,), "exponential": (4,), "rand2": (4,), "range_select": (3, 4),
    "rand_get_state": (3, 4), "rand_set_state": (3, 4),
}  # fmt: skip


def test_instructions_are_on_the_generations_that_are_documented() -> None:
    modules = (
        "glia.isa.instructions.vector",
        "glia.isa.instructions.scalar",
        "glia.isa.instructions.random",
        "glia.isa.instructions.sync",
    )
    declared = {
        name: instr.generations
        for name, instr in INSTRUCTIONS.items()
        if instr.__module__.startswith(modules)
    }
    assert declared == dict.fromkeys(declared, (1, 2, 3, 4)) | LATER
    for name, generations in LATER.items():
        for arch in ARCHS:
            is_there = not violations(EXAMPLES[name], arch)
            assert is_there == (arch.generation in generations)


def test_every_instruction_has_an_example() -> None:
    assert set(EXAMPLES) == set(INSTRUCTIONS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_is_legal_on_every_generation_that_has_it(name: str) -> None:
    instr = EXAMPLES[name]
    for arch in ARCHS:
        if arch.generation in instr.generations:
            assert violations(instr, arch) == []


@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: f"{p[0]}: {p[2]}")
def test_a_planted_violation_is_reported(planted: tuple[Any, ...]) -> None:
    broken = _broken_by(planted)
    assert any(planted[2] in text for text in broken), broken


def _broken_by(planted: tuple[Any, ...]) -> list[str]:
    """What a violation breaks on its target: trn2, or the newest where that lacks it."""
    name, changes, _, *target = planted
    if not target:
        target = ["trn2" if V3.generation in EXAMPLES[name].generations else "trn3"]
    return violations(replace(EXAMPLES[name], **changes), get_target(target[0]).arch)


def test_every_rule_is_broken_by_some_planted_violation() -> None:
    broken = {
        (planted[0], text.split(";")[0]) for planted in PLANTED for text in _broken_by(planted)
    }
    rules = {(name, rule.sentence) for name, c in INSTRUCTIONS.items() for rule in c.rules}
    assert rules - broken == set()
    shared = {rule.sentence for rule in COMMON_RULES}
    assert shared <= {sentence for _, sentence in broken}


def test_a_rule_can_be_broken_alone() -> None:
    """Otherwise it would say nothing that the others do not."""
    alone = {
        (planted[0], broken[0].split(";")[0])
        for planted in PLANTED
        if len(broken := _broken_by(planted)) == 1
    }
    rules = {(name, rule.sentence) for name, c in INSTRUCTIONS.items() for rule in c.rules}
    assert rules - alone == set()


def test_every_rule_and_cost_has_a_source() -> None:
    for instr in INSTRUCTIONS.values():
        assert instr.cost_source
        for rule in (*COMMON_RULES, *instr.rules):
            assert rule.sentence and rule.source


@pytest.mark.parametrize("count,starts", [(128, {0}), (65, {0}), (64, {0, 64}), (33, {0, 64}),
                                          (32, {0, 32, 64, 96}), (1, {0, 32, 64, 96})])  # fmt: skip
def test_start_partitions_are_as_documented(count: int, starts: set[int]) -> None:
    legal = {
        start for start in range(128) if not violations(_reciprocal(count, Affine.of(start)), V3)
    }
    assert legal == starts


def test_a_looped_start_partition_must_be_legal_in_every_iteration() -> None:
    assert not violations(_reciprocal(32, Affine.of("i") * 32), V3)
    assert violations(_reciprocal(32, Affine.of("i") * 16), V3)
    assert violations(_reciprocal(128, Affine.of("i") * 32), V3)


def _reciprocal(count: int, start: Affine) -> Any:
    tile = Tile("t", Memory.SBUF, F32, 128, 4)
    pattern = Pattern(tile, F32, ((1, count), (1, 4)), partition=start)
    return replace(EXAMPLES["reciprocal"], dst=pattern, data=pattern)


@pytest.mark.parametrize("name", EXAMPLES)
def test_cycles_are_positive_and_grow_with_the_elements(name: str) -> None:
    for arch in ARCHS:
        assert EXAMPLES[name].cycles(arch) > 0


def test_naming_a_queue_does_not_lift_the_laws_of_engines() -> None:
    wrong = replace(EXAMPLES["reciprocal"], data=chip("a", 64, 32, partition=32), queue="q0")
    assert any("must start at partition 0" in text for text in violations(wrong, V3))


def test_data_movement_starts_at_any_partition() -> None:
    moved = replace(EXAMPLES["dma_copy"], dst=chip("out", 64, 32, partition=7))
    assert violations(moved, V3) == []
