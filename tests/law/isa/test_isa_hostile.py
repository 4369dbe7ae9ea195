"""Whatever the fields of an instruction hold, its rules answer and do not fail."""

from __future__ import annotations

import typing
from dataclasses import replace

import pytest

from glia.arch import ARCHS
from glia.base.affine import Affine
from glia.isa.examples import chip, examples, hbm
from glia.machine.binary.decode import type_check
from glia.machine.legal_instruction import violations

EXAMPLES = examples()
ODD = (
    -1, 0, 7, 2**40, -(2**40), "", "zeta", (), (0,), (-1, -1, -1), (0, 0), (64,), (64, 64), ((),),
    ((0,),), ((0, 1), (1,)), ((0, 1), (0, 1)), None, True, False, 1.5, float("nan"), float("inf"),
    (1.0, 2.0), Affine.of("i"),
)  # fmt: skip
PATTERNS = (
    chip("x", 1, 1), chip("x", 128, 1), chip("x", 3), chip("x", 1, 2, 2, 2, 2), hbm("x", 1),
    chip("x", 32, 4, memory="PSUM"), hbm("x", 2, 3, 4, 5, 6),
)  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_rules_answer_for_any_attribute_of_its_type(name: str) -> None:
    instr = EXAMPLES[name]
    hints = typing.get_type_hints(type(instr))
    for attribute in instr.attribute_names:
        is_allowed = type_check(hints[attribute])
        for value in ODD:
            if is_allowed(value):
                for arch in ARCHS:
                    assert isinstance(violations(replace(instr, **{attribute: value}), arch), list)


@pytest.mark.parametrize("name", EXAMPLES)
def test_rules_answer_for_any_pattern(name: str) -> None:
    instr = EXAMPLES[name]
    for operand, declared in instr.operand_declarations.items():
        for pattern in PATTERNS:
            value = (pattern,) if declared.is_several else pattern
            for arch in ARCHS:
                assert isinstance(violations(replace(instr, **{operand: value}), arch), list)


@pytest.mark.parametrize("position,size", [((0,), (64,)), ((0, 0, 0), (64, 64, 64)), ((), (64,))])
def test_a_tile_of_the_array_has_two_sides(
    position: tuple[int, ...], size: tuple[int, ...]
) -> None:
    for name in ("nc_matmul", "nc_matmul_mx"):
        instr = replace(EXAMPLES[name], tile_position=position, tile_size=size)
        assert any("tile_position and tile_size" in text for text in violations(instr, ARCHS[-1]))
