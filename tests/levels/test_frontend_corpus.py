"""The HLO importer and the graph evaluator agree with JAX on every program of the corpus."""

from __future__ import annotations

import pytest

from glia.frontend.hlo import import_hlo
from glia.graph.evaluate import evaluate
from glia.graph.legal import verify
from support.corpus import PROGRAMS, Program, assert_close, hlo_bytes


@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_imported_program_computes_what_jax_computes(program: Program) -> None:
    graph = import_hlo(hlo_bytes(program))
    verify(graph)
    assert_close(program, evaluate(graph, list(program.arguments)))
