"""A legal group computes, block by block, what its nests compute one after the other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from glia.base.errors import InternalError
from glia.base.scanner import TextError
from glia.tile.group_legal import why_illegal
from glia.tile.legal import verify
from glia.tile.text import parse_program, print_program
from law.tile.grouped_nests import (
    SHAPE,
    draw_pieces,
    draw_program,
    evaluate_by_blocks,
    evaluate_plain,
)

SEEDS = 300

SOFTMAX = """
program "p" {
  input x f32[300,64]
  output y f32[300,64]
  temporary t f32[300]
  temporary e f32[300,64]
  temporary s f32[300]
  group g on_chip [t e s] {
    for 300 by 128 copies 2 {
      member max.0 [i] schedule vector partition=i tiles=[i:128] order=[]
      member exp.0 [a] schedule vector partition=a tiles=[a:128] order=[]
      member sum.0 [i] schedule vector partition=i tiles=[i:128] order=[]
      for 64 by 32 copies 1 {
        member div.0 [i j] schedule vector partition=i tiles=[i:128 j:32] order=[]
      }
    }
  }
  nest max.0 [i:300 | k:64 maximum f32]
    t[i] = x[i, k]
  nest exp.0 [a:300 b:64]
    e[a, b] = exp.f32(subtract.f32(x[a, b], t[a]))
  nest sum.0 [i:300 | k:64 add f32]
    s[i] = e[i, k]
  nest div.0 [i:300 j:64]
    y[i, j] = divide.f32(e[i, j], s[i])
}
"""


def test_legal_groups_compute_the_same_by_blocks_and_others_are_refused_for_a_reason() -> None:
    legal = differing = 0
    for seed in range(SEEDS):
        random = np.random.default_rng(seed)
        program = draw_program(random)
        inputs = [random.integers(0, 99, SHAPE, np.int32) for _ in program.inputs]
        plain = evaluate_plain(program, inputs)
        blocked = evaluate_by_blocks(program, inputs)
        is_equal = all(map(np.array_equal, plain, blocked))
        if why_illegal(program.groups[0], program):
            differing += not is_equal
        else:
            legal += 1
            assert is_equal, print_program(program)
    assert legal > SEEDS / 10 and differing > SEEDS / 10


def test_pieces_that_are_kept_together_make_a_box_without_gaps() -> None:
    legal = differing = 0
    for seed in range(SEEDS):
        random = np.random.default_rng(seed)
        program = draw_pieces(random)
        inputs = [random.integers(0, 99, SHAPE, np.int32)]
        plain = evaluate_plain(program, inputs)
        blocked = evaluate_by_blocks(program, inputs)
        is_equal = all(map(np.array_equal, plain, blocked))
        if why_illegal(program.groups[0], program):
            differing += not is_equal
        else:
            legal += 1
            assert is_equal, print_program(program)
    assert legal > SEEDS / 10 and differing > SEEDS / 10


def test_group_is_legal_and_reads_back() -> None:
    program = parse_program(SOFTMAX)
    verify(program)
    assert parse_program(print_program(program)) == program
    assert [member.nest for _, member in program.groups[0].members()] == [
        "max.0", "exp.0", "sum.0", "div.0",
    ]  # fmt: skip


def swapped(old: str, new: str) -> Callable[[], str]:
    """The text with one change."""
    assert SOFTMAX.count(old) == 1, old
    return lambda: SOFTMAX.replace(old, new)


EARLY = swapped("x[a, b], t[a]", "x[a, b], s[a]")().replace(
    "nest max.0", "nest zero.0 [i:300]\n    s[i] = 0.0:f32\n  nest max.0"
)

TWICE = (
    swapped("s[i] = e[i, k]", "t[i] = e[i, k]")()
    .replace(", s[i])", ", t[i])")
    .replace("  temporary s f32[300]\n", "")
    .replace("[t e s]", "[t e]")
)

TWO_GROUPS = swapped(
    "      for 64 by 32 copies 1 {\n"
    "        member div.0 [i j] schedule vector partition=i tiles=[i:128 j:32] order=[]\n"
    "      }\n    }\n  }\n",
    "    }\n  }\n  group h on_chip [] {\n    for 300 by 128 copies 2 {\n"
    "      member div.0 [i] schedule vector partition=i tiles=[i:128 j:64] order=[]\n    }\n  }\n",
)()

BROKEN = {
    "names a nest that is missing": swapped("member sum.0", "member sum.1"),
    "two groups are named g": lambda: TWO_GROUPS.replace("group h", "group g"),
    "is in another group": swapped("group g", "group h on_chip [] { for 300 by 1 copies 1 { "
        "member max.0 [i] schedule vector partition=i tiles=[] order=[] } }\n  group g"),
    "are no consecutive statements": swapped("member exp.0 [a]", "member div.0 [i]"),
    "does not have one axis": swapped("member exp.0 [a]", "member exp.0 [a b]"),
    "b is no parallel axis of exp.0": swapped("member exp.0 [a]", "member exp.0 [b]"),
    "k is no parallel axis of sum.0": swapped("member sum.0 [i]", "member sum.0 [k]"),
    "of at least one": swapped("300 by 128 copies 2", "300 by 128 copies 0"),
    "combines with what is there": swapped("    e[a, b] = exp", "    e[a, b] add= exp"),
    "touch the same elements of t": swapped("x[a, b], t[a]", "x[a, b], t[0]"),
    "touch the same elements of e": swapped("s[i] = e[i, k]", "s[i] = e[-1*i + 299, k]"),
    "x is no buffer that a group may keep": swapped("on_chip [t e s]", "on_chip [t e s x]"),
    "e has writers in different loops": swapped(
        "y[i, j] = divide.f32(e[i, j], s[i])", "e[i, j] = s[i]"),
    "the writers of t write in an iteration is no box": lambda: TWICE,
    "reads s before it is written": lambda: EARLY,
}  # fmt: skip


def test_groups_with_names_of_their_own_are_legal() -> None:
    verify(parse_program(TWO_GROUPS))


@pytest.mark.parametrize("message", BROKEN, ids=lambda text: text.replace(" ", "-"))
def test_broken_group_is_refused(message: str) -> None:
    with pytest.raises(InternalError, match=message):
        verify(parse_program(BROKEN[message]()))


def test_reads_beyond_what_an_iteration_writes_are_no_reads_on_chip() -> None:
    text = SOFTMAX.replace("temporary e f32[300,64]", "temporary e f32[300,65]")
    program = parse_program(text.replace("s[i] = e[i, k]", "s[i] = e[i, k + 1]"))
    assert "reads more of e" in why_illegal(program.groups[0], program)


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("for 300 by", "for 300 in", "expected 'by'"),
        ("on_chip [t e s] {", "on_chip [t e s", "expected a name"),
        ("member max.0", "nest max.0 [i", "expected 'member'"),
        ("for 300", "for many", "expected an integer"),
    ],
)
def test_group_text_that_does_not_parse_says_where(old: str, new: str, message: str) -> None:
    with pytest.raises(TextError, match=message):
        parse_program(SOFTMAX.replace(old, new, 1))
