"""Every program of the corpus means the same as nests, before and after each tile pass."""

from __future__ import annotations

from functools import cache

import pytest

from glia.base.errors import CompileError
from glia.base.options import CompileOptions
from glia.frontend.hlo import import_hlo
from glia.pipeline import run_pipeline
from glia.tile.evaluate import evaluate
from glia.tile.ir import Apply, Program
from glia.tile.legal import verify
from glia.tile.passes.collapse_axes import collapse_axes
from glia.tile.passes.expand_scalars import expand_scalars
from glia.tile.passes.scalar_terms import is_direct
from glia.tile.text import parse_program, print_program
from levels import corpus

OPTIONS = CompileOptions(auto_cast="none")


@cache
def nests_of(program: corpus.Program) -> Program | None:
    """The program as nests; None where its element types have no device form."""
    graph = import_hlo(corpus.hlo_bytes(program))
    try:
        return run_pipeline(graph, OPTIONS, stop_after="build")
    except CompileError as error:
        assert error.code == "NCC_ESPP004"
        return None


BUILT = [program for program in corpus.PROGRAMS if nests_of(program) is not None]


def built(program: corpus.Program) -> Program:
    """The nests of a program that has them."""
    found = nests_of(program)
    assert found is not None
    return found


def test_only_types_wider_than_32_bits_have_no_nests() -> None:
    assert len(BUILT) >= len(corpus.PROGRAMS) - 4


@pytest.mark.parametrize("program", BUILT, ids=repr)
def test_nests_are_legal_and_compute_what_jax_computes(program: corpus.Program) -> None:
    verify(built(program))
    corpus.assert_close(program, evaluate(built(program), list(program.arguments)))


@pytest.mark.parametrize("program", BUILT, ids=repr)
def test_passes_keep_nests_legal_and_their_value(program: corpus.Program) -> None:
    fewer = collapse_axes(built(program))
    verify(fewer)
    expanded = expand_scalars(fewer)
    verify(expanded)
    corpus.assert_close(program, evaluate(expanded, list(program.arguments)))


@pytest.mark.parametrize("program", BUILT, ids=repr)
def test_engines_have_every_function_after_expansion(program: corpus.Program) -> None:
    for nest in expand_scalars(built(program)).nests():
        stack = [nest.body, *([nest.finish] if nest.finish else [])]
        while stack:
            part = stack.pop()
            if isinstance(part, Apply):
                operand = part.args[-1].dtype
                known = part.function in ("convert", "sin") or is_direct(part.function, operand)
                assert known, f"{part.function} on {operand}"
                stack.extend(part.args)


@pytest.mark.parametrize("program", BUILT, ids=repr)
def test_text_reads_back_as_what_was_printed(program: corpus.Program) -> None:
    for each in (built(program), expand_scalars(collapse_axes(built(program)))):
        text = print_program(each, with_locations=True)
        again = parse_program(text, each.constants)
        assert print_program(again, with_locations=True) == text
