"""Every program of the corpus means the same as nests, before and after each tile pass."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from glia.base.scanner import TextError
from glia.frontend.hlo import import_hlo
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.tile.evaluate import evaluate
from glia.tile.expand.expand_scalars import expand_scalars
from glia.tile.expand.scalar_terms import is_direct
from glia.tile.ir import SCANS, Apply, Program
from glia.tile.legal import verify
from glia.tile.text import parse_program, print_program
from support import corpus

Array = np.ndarray[Any, Any]
OPTIONS = CompileOptions(auto_cast="none")


PROGRAMS = corpus.PROGRAMS


@cache
def built(program: corpus.Program) -> Program:
    """The program as nests."""
    graph = import_hlo(corpus.hlo_bytes(program))
    return run_pipeline(graph, OPTIONS, stop_after="build")


def parts(array: Array) -> Array:
    """A complex array as pairs of floats, as the device holds it."""
    if array.dtype.kind != "c":
        return array
    return np.ascontiguousarray(array).view(np.float32).reshape(*array.shape, 2)


def assert_computes(program: corpus.Program, nests: Program) -> None:
    """The nests give what JAX gives."""
    found = evaluate(nests, [parts(array) for array in program.arguments])
    wanted = corpus.expected(program)
    joined = [
        np.ascontiguousarray(a).view(np.complex64).reshape(b.shape) if b.dtype.kind == "c" else a
        for a, b in zip(found, wanted, strict=True)
    ]
    corpus.assert_close(program, joined)


@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_nests_are_legal_and_compute_what_jax_computes(program: corpus.Program) -> None:
    verify(built(program))
    assert_computes(program, built(program))


@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_passes_keep_nests_legal_and_their_value(program: corpus.Program) -> None:
    expanded = expand_scalars(built(program))
    verify(expanded)
    assert_computes(program, expanded)


@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_engines_have_every_function_after_expansion(program: corpus.Program) -> None:
    for nest in expand_scalars(built(program)).nests():
        stack = [nest.body, *([nest.finish] if nest.finish else [])]
        seen: set[int] = set()
        while stack:
            part = stack.pop()
            if isinstance(part, Apply) and id(part) not in seen:
                seen.add(id(part))
                operand = part.args[-1].dtype
                known = part.function in ("convert", "sin", *SCANS)
                known |= is_direct(part.function, operand)
                assert known, f"{part.function} on {operand}"
                stack.extend(part.args)


@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_text_reads_back_as_what_was_printed(program: corpus.Program) -> None:
    for each in (built(program), expand_scalars(built(program))):
        text = print_program(each, with_locations=True)
        again = parse_program(text, each.constants)
        assert print_program(again, with_locations=True) == text


def test_a_string_with_a_control_character_is_no_program() -> None:
    with pytest.raises(TextError, match="no string"):
        parse_program('program "a\x01" {')
