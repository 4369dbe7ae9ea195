"""The verifier of the tile level refuses every program that breaks one of its rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from glia.base.affine import Affine
from glia.base.dtype import F32
from glia.base.errors import InternalError
from glia.base.scanner import TextError
from glia.tile.ir import Nest, Program, Reduction
from glia.tile.legal import verify
from glia.tile.text import parse_program, print_program

TEXT = """
program "p" {
  input x f32[8,6]
  input w f32[6,4]
  input i s32[8]
  output y f32[8,4]
  temporary t f32[8,4]
  temporary more pred[]
  temporary which s32[]
  temporary other s32[]
  temporary none pred[]
  nest dot.0 [m:8 n:4 | k:6 add f32]
    t[m, n] = multiply.f32(x[m, k], w[k, n])
    finish add.f32(acc.f32, 1.0:f32)
  nest copy.0 [a:8 b:4]
    y[a, b] = t[0, b] at (0: i[a] <= 7)
  nest add.0 [a:7 b:4]
    y[0, b] at (0: i[a] <= 7 or drop) add= t[a + 1, b]
  nest pad.0 [a:8 b:4]
    t[a, b] = x[a + -1, b + 1] where (a + -1 < 8) else 0.0
  nest less.0 []
    more[] = less.pred(x[0, 0], 1.0:f32)
  while while.0 more {
  } {
    nest less.1 []
      more[] = not.pred(more[])
  }
  nest index.0 []
    which[] = 1:s32
  branch branch.0 which
  {
  }
}
"""


def legal() -> Program:
    """A program with one of everything."""
    return parse_program(TEXT)


def test_program_with_one_of_everything_is_legal_and_reads_back() -> None:
    verify(legal())
    assert parse_program(print_program(legal())) == legal()


def swapped(old: str, new: str) -> Callable[[], Program]:
    """The program with one change in its text."""
    assert TEXT.count(old) == 1, old
    return lambda: parse_program(TEXT.replace(old, new))


def with_nest(position: int, **changes: object) -> Callable[[], Program]:
    """The program with one nest changed in what the text form cannot say."""

    def make() -> Program:
        program = legal()
        nest = program.body[position]
        assert isinstance(nest, Nest)
        body = list(program.body)
        body[position] = replace(nest, **changes)  # type: ignore[arg-type]
        return replace(program, body=tuple(body))

    return make


BROKEN = {
    "leaves dimension 0 of x": swapped("multiply.f32(x[m, k]", "multiply.f32(x[m + 1, k]"),
    "leaves dimension 1 of x": swapped("b + 1] where", "b + 3] where"),
    "leaves dimension 0 of t": swapped("t[0, b] at", "t[1, b] at"),
    "leaves dimension 1 of y": swapped("y[a, b] = t", "y[a, b + 1] = t"),
    "names an axis it cannot": swapped("acc.f32, 1.0:f32", "acc.f32, x[0, k]"),
    "is read before it is written": swapped("multiply.f32(x[m, k]", "multiply.f32(t[m, n]"),
    "has rank 2": swapped("multiply.f32(x[m, k]", "multiply.f32(x[m]"),
    "an element is written twice": swapped("t[a, b] = x", "t[0, b] = x"),
    "two nests are called": swapped("nest less.1", "nest less.0"),
    "is stored to": swapped("which[] = 1:s32", "which[] = 1.0:f32"),
    "must clamp its offset": swapped("at (0: i[a] <= 7)\n", "at (0: i[a] <= 7 or drop)\n"),
    "an offset is not an integer": swapped("<= 7)\n", "<= 7, 1: x[0, 0] <= 0)\n"),
    "takes 2 args": swapped("less.pred(x[0, 0], 1.0:f32)", "less.pred(x[0, 0])"),
    "gives pred": swapped("more[] = less.pred", "which[] = less.s32"),
    "no scalar function": swapped("not.pred(more", "invert.pred(more"),
    "two axes have one name": swapped("[a:7 b:4]", "[a:7 a:4]"),
    "an axis is empty": swapped("[a:7 b:4]", "[a:0 b:4]"),
    "the reduction is not a monoid": with_nest(0, reduction=Reduction(("k",), "power", F32)),
    "the target is read-only": swapped("t[a, b] = x", "x[a, b] = x"),
    "selector is not written": swapped("    which[] = 1:s32", "    other[] = 1:s32"),
    "predicate is not written": swapped("    more[] = less.pred(", "    none[] = less.pred("),
    "nothing writes the outputs": swapped("  input x", "  output z f32[1]\n  input x"),
    "an accumulator without": swapped("more[] = not.pred(more[])", "more[] = acc.pred"),
    "finish without reduction": with_nest(1, finish=legal().nests().__next__().finish),
    "a reduced axis is missing": with_nest(0, axes=legal().nests().__next__().axes[:2]),
    "is not a pred scalar": swapped("while while.0 more", "while while.0 i"),
}  # fmt: skip


@pytest.mark.parametrize("message", BROKEN, ids=lambda text: text.replace(" ", "-"))
def test_broken_rule_is_named_with_its_nest(message: str) -> None:
    program = BROKEN[message]()
    with pytest.raises(InternalError, match=message):
        verify(program)


def test_constant_without_value_is_refused() -> None:
    text = TEXT.replace("  temporary t f32", "  constant c f32[2]\n  temporary t f32")
    with pytest.raises(InternalError, match="only constants have values"):
        verify(parse_program(text))


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("f32[8,6]", "f33[8,6]", "no dtype"),
        ("input w", "input x", "declared twice"),
        ("nest copy.0", "next copy.0", "expected a statement"),
        ("x[m, k]", "q[m, k]", "dtype"),
        ("while while.0 more", "while while.0 gone", "expected a buffer"),
        ("[m:8 n:4", "[m 8 n:4", "expected an axis"),
        ("else 0.0", "else zero", "no number"),
        ("x[a + -1,", "x[a + 1.5,", "expected an integer"),
        ("at (0: i[a] <= 7)", "at (0.0: i[a] <= 7)", "expected an integer"),
        ('program "p"', "program p", "expected a string"),
        ("  branch branch.0 which", "  branch 3 which", "expected a name"),
    ],
)
def test_text_that_does_not_parse_says_where(old: str, new: str, message: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(TextError, match=message):
        parse_program(TEXT.replace(old, new))


@pytest.mark.parametrize(
    "flat, deep",
    [
        ("not.pred(more[])", "not.pred(" * 5000 + "more[]" + ")" * 5000),
        ("(0: i[a] <= 7)", "(0: i[a] at " * 5000 + "(0: i[a] <= 7)" + "<= 7)" * 5000),
    ],
)
def test_deeply_nested_text_is_refused_rather_than_overflowing_the_stack(
    flat: str, deep: str
) -> None:
    with pytest.raises(TextError, match="nested more than"):
        parse_program(TEXT.replace(flat, deep))


def test_affine_text_keeps_signs() -> None:
    program = legal()
    loads = [nest.body for nest in program.nests() if nest.name == "pad.0"]
    assert loads[0].index[0] == Affine.of("a") + -1  # type: ignore[union-attr]
