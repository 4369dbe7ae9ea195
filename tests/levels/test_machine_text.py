"""The machine level's text form says everything and parses back."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from glia.base.affine import Affine
from glia.base.scanner import TextError
from glia.isa import INSTRUCTIONS
from glia.isa.examples import examples
from glia.isa.kit import Instr
from glia.isa.operand import Signal, Wait
from glia.machine.ir import Program
from glia.machine.text import parse_program, print_instruction, print_program
from support.machine_programs import matmul, programs

PROGRAMS = programs()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_a_program_parses_back(program: Program) -> None:
    text = print_program(program)
    parsed = parse_program(text, program.constants)
    assert parsed == program
    assert print_program(parsed) == text


@pytest.mark.parametrize("instr", examples().values(), ids=lambda i: i.mnemonic())
def test_every_instruction_parses_back(instr: Instr) -> None:
    marked = dataclasses.replace(
        instr, waits=(Wait("s", Affine.build({"i": 2}, -3)),), signals=(Signal("t", 16),)
    )
    tiles = {pattern.tile.name: pattern.tile for _, _, pattern in instr.operands()}
    program = Program("one", "trn2", tiles, (), (), {}, (instr, marked))
    assert parse_program(print_program(program)) == program


def test_every_instruction_is_in_the_corpus() -> None:
    assert set(examples()) == set(INSTRUCTIONS)


def test_an_instruction_shows_its_operands_and_attributes() -> None:
    assert print_instruction(examples()["tensor_reduce"]) == (
        'tensor_reduce(dst=column[0 :+64; 0 | 1*1]:f32, data=a[0 :+64; 0 | 1*32]:f32, op="add")'
    )


@pytest.mark.parametrize(
    "old,new,message",
    [
        ("nc_matmul(", "nc_matmull(", "'nc_matmull' is not an instruction"),
        ("stationary=left[", "stationary=lost[", "tile lost is not declared"),
        ("accumulate=", "acumulate=", "nc_matmul has no further field 'acumulate'"),
        (":f32, src", ":f33, src", "'f33' is not known here"),
        ("tile y ", "tile x ", "tile x is declared twice"),
        ("tile left SBUF", "tile left DRAM", "'DRAM' is not known here"),
        ("loop k 2 {", "loop k two {", "expected an integer, found 'two'"),
    ],
)  # fmt: skip
def test_a_broken_text_is_refused(old: str, new: str, message: str) -> None:
    text = print_program(matmul(256, 256, 512))
    assert old in text
    broken = text.replace(old, new, 1)
    with pytest.raises(TextError, match=message):
        parse_program(broken)


def test_a_missing_operand_is_refused() -> None:
    text = 'program "p" target "trn2"\ntile t SBUF f32 1 1\nreciprocal(dst=t[0 :+1; 0 | 1*1]:f32)'
    with pytest.raises(TextError, match="data"):
        parse_program(text)


@pytest.mark.parametrize("cut", range(20, 900, 61))
def test_a_text_cut_short_is_refused_or_shorter(cut: int) -> None:
    text = print_program(matmul(256, 256, 512))
    assert cut < len(text) - 4
    try:
        parsed = parse_program(text[:cut])
    except TextError:
        return
    assert parsed != parse_program(text)


def test_a_constant_needs_its_contents() -> None:
    program = PROGRAMS[-1]
    with pytest.raises(TextError, match="a table has no contents"):
        parse_program(print_program(program))
    other = {"a table": np.zeros(12, np.float32)}
    assert parse_program(print_program(program), other).constants == other


@pytest.mark.parametrize("value", ["5", '("a.py", 1)', '("a.py", "b", 1)'])
def test_a_source_line_that_is_none_is_refused(value: str) -> None:
    program = matmul(8, 8, 8)
    text = print_program(program).replace("nc_matmul(", f"nc_matmul(loc={value}, ", 1)
    with pytest.raises(TextError, match="a file, a line and a name"):
        parse_program(text)
