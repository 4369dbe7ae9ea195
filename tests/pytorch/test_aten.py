"""Operators of ATen: what their HLO computes is what PyTorch computes on the CPU."""

from __future__ import annotations

import contextlib
import operator as python_operator
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.testing._internal.common_methods_invocations import op_db

from glia.frontend.errors import DynamicShape, UnknownDType, UnsupportedOperator
from glia.plugins.torch.aten.families import TABLE
from glia.plugins.torch.errors import DataDependentValue
from glia.plugins.torch.lowering import lower
from house.source import REPOSITORY
from pytorch.samples import Sample, assert_close, compiled, evaluated, lowered, samples, traced

aten = torch.ops.aten

SAMPLES = {torch.float32: 2, torch.bfloat16: 1, torch.int64: 1, torch.bool: 1}
MORE = 12  # samples in the nightly tests

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
    "sort", "topk", "argsort", "msort", "kthvalue", "nn.functional.dropout",
}  # fmt: skip

# PyTorch rounds coordinates to narrow floats, between which elements are picked
COARSE = {"grid_sampler_2d", "grid_sampler_3d", "nn.functional.grid_sample"}

# PyTorch's gradient is of exponentials of differences of the samples, which are 10,000
ROUGH = {"logcumsumexp": 20.0}

UNTRACEABLE = (
    DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode,
)  # fmt: skip

# Of PyTorch's collection, and not traced: why
NOT_TRACED = {
    "jiterator_": "compiles for other devices only",
    "tensor_split": "reads its indices from memory while it is traced",
    "to_sparse": "graphs have no sparse tensors",
}

OPERATORS = {
    f"{each.name}.{each.variant_test_name}".rstrip("."): each
    for each in op_db
    if not each.name.startswith(tuple(NOT_TRACED))
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


def test_the_page_says_how_many_core_operators_there_are() -> None:
    counts = f"{len(core_operators()) - len(NOT_IN_THE_TABLE)} of the {len(core_operators())}"
    assert counts in (REPOSITORY / "docs" / "pytorch.md").read_text(encoding="utf-8")


def in_part(names: Iterable[str]) -> list[Any]:
    """A tenth of the names; the others are for the nightly tests."""
    listed = sorted(names)
    return [n if i % 10 == 0 else pytest.param(n, marks=pytest.mark.nightly)
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
    except (DataDependentValue, DynamicShape, UnknownDType, *UNTRACEABLE):
        return None
    return None


@pytest.mark.parametrize("name", in_part(OPERATORS))
def test_an_operator_computes_what_pytorch_computes(name: str) -> None:
    assert_as_pytorch(name, SAMPLES)


@pytest.mark.nightly
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_computes_what_pytorch_computes_in_more_samples(name: str) -> None:
    assert_as_pytorch(name, dict.fromkeys(SAMPLES, MORE))
    for gradient, expected in gradients(name, MORE // 2):
        assert_gradient(name, gradient, expected)


def assert_as_pytorch(name: str, counts: Mapping[torch.dtype, int]) -> None:
    """Raise AssertionError unless samples are what PyTorch computes: so many of each dtype."""
    for dtype, count in counts.items():
        for sample, expected in chosen(name, dtype, count):
            program = program_of(sample)
            if program is None:
                continue
            found = evaluated(program, sample.tensors)
            if program.is_random or OPERATORS[name].name in OPEN:
                assert [each.shape for each in found] == [tuple(e.shape) for e in expected]
            else:
                assert_close(found, expected)


def gradients(name: str, most: int = 1) -> Iterator[tuple[Sample, Any]]:
    """The gradients of an operator's first samples with what PyTorch computes for them."""
    if OPERATORS[name].supports_autograd:
        for sample, _ in chosen(name, torch.float32, most):
            gradient = sample.gradient()
            expected = gradient.expected() if gradient else None
            if gradient and expected:
                yield gradient, expected


DIFFERENTIABLE = [name for name, each in OPERATORS.items() if each.supports_autograd]


@pytest.mark.parametrize("name", in_part(DIFFERENTIABLE))
def test_a_gradient_is_what_pytorch_computes(name: str) -> None:
    for gradient, expected in gradients(name):
        assert_gradient(name, gradient, expected)


def assert_gradient(name: str, gradient: Sample, expected: Any) -> None:
    """Raise AssertionError unless a gradient that is lowered is what PyTorch computes."""
    program = program_of(gradient)
    if program and not program.is_random:
        found = evaluated(program, gradient.tensors)
        assert_close(found, expected, ROUGH.get(name, 1))


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_operator_computes_what_pytorch_computes(name: str) -> None:
    for sample, expected in chosen(name, torch.float32, 1):
        program = program_of(sample)
        if program and not program.is_random and OPERATORS[name].name not in OPEN:
            assert_close(compiled(program, sample.tensors), expected)


@pytest.mark.parametrize("dimension", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_weight_norm_is_what_pytorch_computes(dimension: int, dtype: Any) -> None:
    direction, lengths = torch.linspace(-1, 2, 24).reshape(2, 3, 4), torch.tensor([0.5, -2, 1, 3])
    shape = [1, 1, 1]
    shape[dimension] = direction.shape[dimension]
    given = (direction.to(dtype), lengths[: shape[dimension]].reshape(shape).to(dtype))
    sample = Sample(lambda v, g: (torch._weight_norm(v, g, dimension),), given, (0, 1)).gradient()
    assert sample is not None
    program = program_of(sample)
    expected = sample.expected()
    assert program is not None and expected is not None
    assert_close(evaluated(program, given), expected)


def test_a_view_of_memory_beside_its_tensor_is_refused() -> None:
    with pytest.raises(UnsupportedOperator, match="beside its tensor"):
        lowered(lambda x: (torch.as_strided(x[:, :2] * 1, (2, 2), (3, 1)),), [torch.ones(2, 4)])


def test_a_view_of_memory_takes_elements_by_their_address() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    for function in (
        lambda x: (torch.as_strided(x.permute(2, 0, 1), (3, 2), (5, 1), 2),),
        lambda x: (torch.as_strided_scatter(x, torch.ones(3, 2), (3, 2), (5, 1), 2),),
    ):
        assert_close(evaluated(lowered(function, [x]), [x]), function(x))


# --- called as they are --------------------------------------------------------------------------

IMAGE = torch.linspace(-2, 2, 2 * 4 * 6 * 6).reshape(2, 4, 6, 6).sin()
ROWS, VOLUME = IMAGE[0], IMAGE[:, None]
NUMBERS = torch.arange(-6, 6).reshape(3, 4)
CHANNELS = [torch.linspace(0.5, 2, 4), torch.linspace(-1, 1, 4)]
STATISTICS = [torch.linspace(-1, 1, 4), torch.linspace(0.5, 2, 4)]
MOMENTS = [IMAGE.reshape(2, 2, -1).mean(2), IMAGE.reshape(2, 2, -1).var(2).rsqrt()]

# Core operators that PyTorch's samples do not call, but what these are made of. A dict last is of
# arguments by name.
CALLS: dict[Any, tuple[Any, ...]] = {
    aten._native_batch_norm_legit.default: (IMAGE, *CHANNELS, *STATISTICS, True, 0.1, 1e-5),
    aten._native_batch_norm_legit.no_stats: (IMAGE, *CHANNELS, True, 0.1, 1e-5),
    aten._native_batch_norm_legit_no_training.default: (
        IMAGE, *CHANNELS, *STATISTICS, 0.1, 1e-5,
    ),
    aten.adaptive_avg_pool1d.default: (ROWS, [4]),
    aten.avg_pool1d.default: (ROWS, [3], [2], [1]),
    aten.bitwise_and.Scalar: (NUMBERS, 5),
    aten.bitwise_or.Scalar: (NUMBERS, 5),
    aten.bitwise_xor.Scalar: (NUMBERS, 5),
    aten.div.Scalar_mode: (NUMBERS, 4, {"rounding_mode": "floor"}),
    aten.fmod.Scalar: (NUMBERS, 4),
    aten.native_dropout.default: (IMAGE, 0.5, False),
    aten.native_group_norm_backward.default: (
        IMAGE.cos(), IMAGE, *MOMENTS, CHANNELS[0], 2, 4, 36, 2, [True, True, True],
    ),
    aten.reflection_pad2d.default: (IMAGE, [1, 2, 3, 1]),
    aten.reflection_pad3d.default: (VOLUME, [1, 2, 3, 1, 2, 1]),
    aten.replication_pad3d.default: (VOLUME, [1, 2, 3, 1, 2, 1]),
    aten.upsample_bilinear2d.vec: (IMAGE, [9, 13], False, None),
    aten.upsample_nearest2d.vec: (IMAGE, [9, 13], None),
    aten.var.dim: (IMAGE, [1, 3], False),
}  # fmt: skip
RANDOM = {"aten.randperm.default"}  # tested below


def one_call(
    operator: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> torch.fx.GraphModule:
    """A graph of nothing but a call, whose tensors are its inputs."""
    graph = torch.fx.Graph()
    given = []
    for place, value in enumerate(arguments):
        is_tensor = isinstance(value, torch.Tensor)
        given.append(graph.placeholder(f"x{place}") if is_tensor else value)
        if is_tensor:
            given[-1].meta["val"] = value
    call = graph.call_function(operator, tuple(given), named)
    found = call.meta["val"] = operator(*cloned(arguments), **named)
    parts = range(len(found)) if isinstance(found, tuple) else ()
    taken = [graph.call_function(python_operator.getitem, (call, place)) for place in parts]
    graph.output(tuple(taken) or (call,))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def cloned(arguments: tuple[Any, ...]) -> list[Any]:
    """Arguments of a call that may write to its tensors."""
    return [each.clone() if isinstance(each, torch.Tensor) else each for each in arguments]


@pytest.mark.parametrize("operator", CALLS, ids=str)
def test_a_core_operator_called_as_it_is_computes_what_pytorch_computes(operator: Any) -> None:
    *positional, last = CALLS[operator]
    named = last if isinstance(last, dict) else {}
    arguments = tuple(positional if named else CALLS[operator])
    tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
    found = evaluated(lower(one_call(operator, arguments, named), "call"), tensors)
    expected = operator(*cloned(arguments), **named)
    assert_close(found, expected if isinstance(expected, tuple) else [expected])


@pytest.mark.nightly
def test_each_core_operator_is_called_by_a_sample_or_as_it_is() -> None:
    called = {str(each) for each in CALLS} | RANDOM
    for name in OPERATORS:
        runs = [each for dtype, count in SAMPLES.items() for each in chosen(name, dtype, count)]
        for sample, _ in [*runs, *gradients(name)]:
            with contextlib.suppress(*UNTRACEABLE):
                called |= targets(traced(sample.function, sample.tensors))
    core = {str(each) for each in core_operators()}
    assert core - called - NOT_IN_THE_TABLE.keys() == set()


def targets(module: torch.fx.GraphModule) -> set[str]:
    """The operators that a graph calls."""
    return {str(node.target) for node in module.graph.nodes if node.op == "call_function"}


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
