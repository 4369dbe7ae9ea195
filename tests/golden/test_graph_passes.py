"""What graphs look like after the graph passes; `--bless` accepts a change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from glia.frontend.hlo import import_hlo
from glia.graph.expand.complex import expand_complex
from glia.graph.expand.fft import expand_fft
from glia.graph.expand.reduce import expand_reduce
from glia.graph.expand.reduce_window import expand_reduce_window
from glia.graph.expand.scatter import expand_scatter
from glia.graph.expand.sorting.sort import expand_sort
from glia.graph.passes.canonicalize import canonicalize
from glia.graph.passes.cast_dtypes import cast_dtypes
from glia.graph.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from glia.graph.passes.propagate_constants import propagate_constants
from glia.graph.passes.simplify import simplify
from glia.graph.text import print_graph
from glia.options import CompileOptions

Golden = Callable[[str, str], None]


def layer_norm(x: Any, scale: Any) -> Any:
    """Normalise rows."""
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale


def attention(q: Any, k: Any, v: Any) -> Any:
    """Causal attention over [batch, position, head, feature]."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def affine_scan(x: Any) -> Any:
    """A reduction with a computation of its own."""
    return lax.reduce((x, x), (1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (1,))


def zeros(*shapes: Sequence[int], dtype: Any = np.float32) -> list[np.ndarray[Any, Any]]:
    """One array per shape; only their types matter."""
    return [np.zeros(shape, dtype) for shape in shapes]


BASIC = (canonicalize, simplify, propagate_constants, eliminate_common_subexpressions, simplify)

PROGRAMS: dict[str, tuple[Callable[..., Any], list[Any], Sequence[Any]]] = {
    "layer_norm": (layer_norm, zeros((8, 16), (16,)), BASIC),
    "attention_in_bf16": (attention, zeros(*[(2, 6, 3, 8)] * 3), (*BASIC, cast_dtypes, simplify)),
    "argmax": (lambda x: jnp.argmax(x, 1), zeros((3, 9)), (canonicalize, expand_reduce, simplify)),
    "affine_scan": (affine_scan, zeros((3, 5)), (canonicalize, expand_reduce, simplify)),
    "sort_of_four": (lambda x: lax.sort(x), zeros((4,), dtype=np.int32), (expand_sort, simplify)),
    "cumulative_sum": (
        lambda x: lax.cumsum(x, 0), zeros((70,)), (canonicalize, expand_reduce_window, simplify)
    ),
    "real_fft_of_six": (
        jnp.fft.rfft, zeros((6,)), (canonicalize, expand_fft, expand_complex, simplify)
    ),
    "scatter_multiply_add": (
        lambda x, i: x.at[i].apply(lambda v: v * 2 + 1), [*zeros((5,)), np.zeros(3, np.int32)],
        (canonicalize, expand_scatter, simplify),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_graph_after_passes(name: str, golden: Golden) -> None:
    function, arrays, passes = PROGRAMS[name]
    lowered = jax.jit(function).lower(*arrays).compiler_ir("hlo")
    graph = import_hlo(lowered.as_serialized_hlo_module_proto())
    options = CompileOptions(auto_cast="matmult", auto_cast_type="bf16")
    for each in passes:
        graph = each(graph, options)
    golden(f"graph/{name}", print_graph(graph))
