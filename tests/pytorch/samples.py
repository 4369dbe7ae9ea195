"""Functions of PyTorch traced into ATen graphs, and PyTorch's own samples of its operators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.common_utils import noncontiguous_like
from torch.utils import _pytree as pytree

import glia
from glia.frontend.hlo import import_hlo
from glia.graph.evaluate import evaluate
from glia.plugins.torch.lowering import HloProgram, Output, decompositions, fresh_seed, lower
from glia.plugins.torch.tensors import DTYPES, to_numpy, to_torch

LARGEST = 20_000  # elements of a sample's tensors: larger ones show nothing that smaller do not
WIDE = (torch.float64, torch.complex128)  # no engine computes with them

Tensors = Sequence[torch.Tensor]


def traced(function: Callable[..., Any], tensors: Tensors) -> torch.fx.GraphModule:
    """The ATen graph of a function of tensors, without what it writes to these."""
    graph = _functional(function, tensors)
    if any(_writes_a_result(node) for node in graph.graph.nodes):  # of a decomposition
        graph = _functional(graph, tensors)
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        if node.args[0].op == "placeholder":
            node.replace_all_uses_with(node.args[1])
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    return graph


def _functional(function: Callable[..., Any], tensors: Tensors) -> torch.fx.GraphModule:
    plain = torch.func.functionalize(function, remove="mutations")
    return make_fx(plain, decomposition_table=decompositions(), tracing_mode="fake")(*tensors)


def _writes_a_result(node: torch.fx.Node) -> bool:
    """Whether a call writes to what is not an input."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema and schema.is_mutable and node.args[0].op != "placeholder")


def lowered(function: Callable[..., Any], tensors: Tensors) -> HloProgram:
    """The HLO module of a function of tensors."""
    return lower(traced(function, tensors), "sample")


def evaluated(program: HloProgram, tensors: Tensors) -> list[np.ndarray]:
    """The results of a module on tensors, by the evaluator of graphs."""
    arrays = [to_numpy(each) for each in tensors]
    if program.is_random:
        arrays.append(fresh_seed())
    return _in_order(program, evaluate(import_hlo(program.hlo), arrays))


def compiled(program: HloProgram, tensors: Tensors, **options: Any) -> list[np.ndarray]:
    """The results of a module on tensors, compiled and run."""
    model = glia.load(glia.compile(program.hlo, **options))
    arrays = [to_numpy(each) for each in tensors]
    if program.is_random:
        arrays.append(fresh_seed())
    return _in_order(program, model(*arrays))


def _in_order(program: HloProgram, outputs: Sequence[np.ndarray]) -> list[Any]:
    return [outputs[r.place] if isinstance(r, Output) else r for r in program.results]


REFUSALS = (RuntimeError, ValueError, NotImplementedError, TypeError, IndexError)


@dataclass(frozen=True)
class Sample:
    """Tensors, and a function of them that calls one operator and returns its tensors.

    `leaves` are the places of the tensors that have gradients.
    """

    function: Callable[..., tuple[torch.Tensor, ...]]
    tensors: tuple[torch.Tensor, ...]
    leaves: tuple[int, ...] = ()

    def expected(self) -> tuple[torch.Tensor, ...] | None:
        """What PyTorch computes; None where it refuses, or the device has no such dtype."""
        try:
            found = self.function(*(each.detach().clone() for each in self.tensors))
        except REFUSALS:
            return None
        return found if all(each.dtype in DTYPES for each in found) else None

    def gradient(self) -> Sample | None:
        """The gradient of the results' weighted sum; None where there is none.

        PyTorch's operator refuses some samples, and others because of their strides.
        """

        def of_leaves(tensors: Tensors, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
            filled = list(tensors)
            for place, leaf in zip(self.leaves, leaves, strict=True):
                filled[place] = leaf
            return tuple(each for each in self.function(*filled) if each.is_floating_point())

        def backward(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            function = functools.partial(of_leaves, tensors)
            found, pulled = torch.func.vjp(function, *(tensors[place] for place in self.leaves))
            weights = [torch.full_like(each, 0.5).cumsum(0) if each.dim() else
                       torch.ones_like(each) for each in found]  # fmt: skip
            return tuple(pulled(tuple(weights)))

        if not self.leaves:
            return None
        try:
            has_results = of_leaves(self.tensors, *map(self.tensors.__getitem__, self.leaves))
        except REFUSALS:
            return None
        return Sample(backward, self.tensors) if has_results else None


def samples(operator: Any, dtype: torch.dtype, most: int) -> Iterator[Sample]:
    """The first samples of an operator in PyTorch's own collection, some with other strides."""
    count = 0
    differentiable = operator.supports_autograd and dtype.is_floating_point
    for given in operator.sample_inputs("cpu", dtype, requires_grad=differentiable):
        flat, structure = pytree.tree_flatten((given.input, given.args, given.kwargs))
        places = [i for i, each in enumerate(flat) if isinstance(each, torch.Tensor)]
        leaves = tuple(n for n, i in enumerate(places) if flat[i].requires_grad)
        tensors = tuple(flat[i].detach() for i in places)
        if sum(t.numel() for t in tensors) > LARGEST or any(t.dtype in WIDE for t in tensors):
            continue
        if any(t.layout is not torch.strided for t in tensors):
            continue
        if count % 2:
            tensors = tuple(noncontiguous_like(t) if t.numel() > 1 else t for t in tensors)
        yield Sample(_call(operator, flat, structure, places), tensors, leaves)
        count += 1
        if count == most:
            return


def _call(
    operator: Any, flat: list[Any], structure: Any, places: list[int]
) -> Callable[..., tuple[torch.Tensor, ...]]:
    def call(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        filled = list(flat)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(filled, structure)
        found = pytree.tree_leaves(operator.op(first, *args, **kwargs))
        return tuple(each for each in found if isinstance(each, torch.Tensor))

    return call


def assert_close(found: Sequence[np.ndarray], expected: Tensors, slack: float = 1) -> None:
    """Raise AssertionError unless results are what PyTorch computes, as exactly as dtypes allow.

    `slack` is for functions of which PyTorch's own error is greater, by so much.
    """
    assert len(found) == len(expected)
    for array, tensor in zip(found, expected, strict=True):
        given = to_torch(np.asarray(array), tensor.dtype)
        if not (tensor.is_floating_point() or tensor.is_complex()):
            assert torch.equal(given, tensor)
            continue
        # The sizes of what was added up are not known here: an element is as exact as the greatest
        finite = tensor[torch.isfinite(tensor)].abs().float()
        greatest = max(1.0, float(finite.max())) if finite.numel() else 1.0
        share = {torch.bfloat16: 2e-2, torch.float16: 3e-3}.get(tensor.dtype, 1e-4) * slack
        torch.testing.assert_close(
            given, tensor.detach(), rtol=share, atol=share * greatest, equal_nan=True
        )
