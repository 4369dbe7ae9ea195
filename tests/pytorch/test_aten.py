"""Operators of ATen: what their HLO computes is what PyTorch computes on the CPU."""

from __future__ import annotations

import operator as python_operator
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.testing._internal.common_methods_invocations import op_db

from glia.frontend.errors import DynamicShape, UnknownDType, UnsupportedOperator
from glia.plugins.torch.aten.families import TABLE
from pytorch.samples import Sample, assert_close, compiled, evaluated, lowered, samples

aten = torch.ops.aten

SAMPLES = {torch.float32: 2, torch.bfloat16: 1, torch.int64: 1, torch.bool: 1}

# Of core ATen, and not in the table: why
NOT_IN_THE_TABLE = {
    "aten._local_scalar_dense.default": "a number of the host that is data",
    "aten.atan2.out": "graphs have no operators that write",
    "aten.resize_.default": "graphs have no operators that write",
    "aten.sym_is_contiguous.default": "fixed when the graph is made",
    "aten.sym_numel.default": "fixed when the graph is made",
    "aten.sym_size.int": "fixed when the graph is made",
    "aten.sym_storage_offset.default": "fixed when the graph is made",
    "aten.sym_stride.int": "fixed when the graph is made",
}

# Contents, or an order, that PyTorch leaves open
OPEN = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
    "sort", "topk", "argsort", "msort", "nn.functional.dropout",
    "as_strided", "as_strided_copy", "as_strided_scatter",  # samples read beside their tensor
}  # fmt: skip

# PyTorch rounds coordinates to narrow floats, between which elements are picked
COARSE = {"grid_sampler_2d"}

UNTRACEABLE = (DataDependentOutputException, GuardOnDataDependentSymNode)

OPERATORS = {
    f"{each.name}.{each.variant_test_name}".rstrip("."): each
    for each in op_db
    if not each.name.startswith("jiterator")  # compiles for other devices only
}
COMPILED = sorted(OPERATORS)[::7]


@cache
def core_operators() -> tuple[Any, ...]:
    """Every overload of ATen that PyTorch calls core."""
    return tuple(_core_operators())


def _core_operators() -> Iterator[Any]:
    for name in torch._C._dispatch_get_all_op_names():
        library, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if library == "aten":
            found = getattr(getattr(aten, packet, None), overload or "default", None)
            if found is not None and torch.Tag.core in found.tags:
                yield found


def test_the_table_has_every_core_operator() -> None:
    missing = {str(each) for each in core_operators() if each not in TABLE}
    assert missing == NOT_IN_THE_TABLE.keys()


def in_part(names: Iterable[str]) -> list[Any]:
    """A third of the names; the others are for the nightly tests."""
    listed = sorted(names)
    return [n if i % 3 == 0 else pytest.param(n, marks=pytest.mark.nightly)
            for i, n in enumerate(listed)]  # fmt: skip


def chosen(name: str, dtype: torch.dtype, most: int) -> Iterator[tuple[Sample, Any]]:
    """Samples of an operator with what PyTorch computes for them."""
    operator = OPERATORS[name]
    if dtype in operator.supported_dtypes("cpu"):
        for sample in samples(operator, dtype, most):
            expected = sample.expected()
            if expected and operator.name in COARSE and dtype is torch.bfloat16:
                exact = Sample(sample.function, tuple(each.float() for each in sample.tensors))
                expected = tuple(each.to(dtype) for each in exact.expected() or ())
            if expected:
                yield sample, expected


def program_of(sample: Sample) -> Any:
    """The HLO module of a sample; None where the graph or an operator outside core is refused."""
    core = {str(each) for each in core_operators()}
    try:
        return lowered(sample.function, sample.tensors)
    except UnsupportedOperator as refusal:
        assert str(refusal.facts["opcode"]) not in core
    except (DynamicShape, UnknownDType, *UNTRACEABLE, RuntimeError):
        return None
    return None


@pytest.mark.parametrize("name", in_part(OPERATORS))
def test_an_operator_computes_what_pytorch_computes(name: str) -> None:
    for dtype, count in SAMPLES.items():
        for sample, expected in chosen(name, dtype, count):
            program = program_of(sample)
            if program is None:
                continue
            found = evaluated(program, sample.tensors)
            if program.is_random or OPERATORS[name].name in OPEN:
                assert [each.shape for each in found] == [tuple(e.shape) for e in expected]
            else:
                assert_close(found, expected)


DIFFERENTIABLE = [name for name, each in OPERATORS.items() if each.supports_autograd]


@pytest.mark.parametrize("name", in_part(DIFFERENTIABLE))
def test_a_gradient_is_what_pytorch_computes(name: str) -> None:
    for sample, _ in chosen(name, torch.float32, 1):
        gradient = sample.gradient()
        expected = gradient.expected() if gradient else None
        program = program_of(gradient) if gradient and expected else None
        if gradient and expected and program and not program.is_random:
            assert_close(evaluated(program, gradient.tensors), expected)


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_operator_computes_what_pytorch_computes(name: str) -> None:
    for sample, expected in chosen(name, torch.float32, 1):
        program = program_of(sample)
        if program and not program.is_random and OPERATORS[name].name not in OPEN:
            assert_close(compiled(program, sample.tensors), expected)


# --- random numbers ------------------------------------------------------------------------------


def random_results(function: Any, *tensors: torch.Tensor) -> list[np.ndarray]:
    torch.manual_seed(0)
    return evaluated(lowered(lambda *given: (function(*given),), tensors), tensors)


X = torch.zeros(100, 100)


@pytest.mark.parametrize(
    ("function", "mean", "deviation"),
    [
        (torch.rand_like, 0.5, 12**-0.5),
        (torch.randn_like, 0.0, 1.0),
        (lambda x: torch.nn.functional.dropout(x + 1, 0.25), 1.0, (1 / 3) ** 0.5),
        (lambda x: torch.bernoulli(x + 0.3), 0.3, 0.21**0.5),
        (lambda x: torch.randint(0, 10, (100, 100)).float(), 4.5, 8.25**0.5),
        (lambda x: x.clone().uniform_(2, 4), 3.0, 4 / 12**0.5 / 2),
        (lambda x: x.clone().normal_(2, 4), 2.0, 4.0),
    ],
)
def test_random_numbers_have_their_distribution(function: Any, mean: float, deviation: float):
    (found,) = random_results(function, X)
    error = deviation / np.sqrt(found.size)
    assert abs(found.mean() - mean) < 5 * error
    assert abs(found.std() - deviation) < 0.03 * deviation


def test_a_seed_repeats_random_numbers_and_another_gives_others() -> None:
    program = lowered(lambda x: (torch.rand_like(x),), [X])
    torch.manual_seed(1)
    (first,), (second,) = evaluated(program, [X]), evaluated(program, [X])
    torch.manual_seed(1)
    assert python_operator.eq(first.tobytes(), evaluated(program, [X])[0].tobytes())
    assert first.tobytes() != second.tobytes()


def test_a_permutation_has_every_index_once() -> None:
    (found,) = random_results(lambda x: torch.randperm(50), X)
    assert sorted(found.tolist()) == list(range(50)) != found.tolist()
