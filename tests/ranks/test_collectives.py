"""Every collective among any groups gives compiled what the ranks of the graph's evaluator get."""

from __future__ import annotations

import numpy as np
import pytest

from glia.compiler import compile_graph
from glia.graph.participants import evaluate_participants
from glia.options import CompileOptions
from glia.runtime.model import load
from ranks.collective_graphs import draw

COMPILED = tuple(sorted({"trn1", "trn1n", "inf2", "trn2", "trn3"}))


def _assert_close(found, expected, what: object) -> None:
    for rank, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for one, other in zip(ours, theirs, strict=True):
            assert one.dtype == other.dtype and one.shape == other.shape
            if one.dtype.kind in "biu" or "int" in one.dtype.name:
                np.testing.assert_array_equal(one, other, err_msg=f"rank {rank} of {what}")
            else:
                is_narrow = one.dtype.itemsize <= 2
                kind = np.complex64 if one.dtype.kind == "c" else np.float32
                np.testing.assert_allclose(
                    one.astype(kind), other.astype(kind), rtol=0.02 if is_narrow else 1e-5,
                    atol=0.02 if is_narrow else 1e-5, err_msg=f"rank {rank} of {what}",
                )  # fmt: skip


def _options(target: str) -> CompileOptions:
    return CompileOptions(target=target, auto_cast="none", verify=True)


@pytest.mark.parametrize("seed", range(60))
def test_a_compiled_collective_gives_what_its_graph_gives(seed: int) -> None:
    case = draw(seed)
    target = COMPILED[seed % len(COMPILED)]
    expected = evaluate_participants(case.graph, case.inputs)
    model = load(compile_graph(case.graph, _options(target)), device="reference")
    assert model.ranks == len(case.inputs)
    _assert_close(model.run_ranks(case.inputs), expected, case)
