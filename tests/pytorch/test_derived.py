"""Operators that are made of others: where PyTorch's samples say little about them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from pytorch.gradients import assert_gradients
from pytorch.samples import assert_close, evaluated, lowered
from pytorch.test_resizing import assert_as_pytorch

WEIGHT = torch.linspace(-2, 3, 21).sin().reshape(7, 3)
INDICES = torch.tensor([1, 2, 2, 5, 0, 1])
SHARES = torch.linspace(0.2, 1.4, 6)
LOWER = torch.ones(5, 5, dtype=torch.bool).tril()


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}, {"include_last_offset": True}])
def test_bags_of_embeddings_have_their_gradients(mode: str, options: dict[str, Any]) -> None:
    offsets = torch.tensor([0, 0, 2, 6 if options.get("include_last_offset") else 5])

    def bags(w: torch.Tensor, i: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
        return functional.embedding_bag(i, w, o, mode=mode, **options)

    assert_as_pytorch(bags, WEIGHT, INDICES, offsets)


def test_weights_of_bags_have_their_gradients() -> None:
    def bags(w: torch.Tensor, i: torch.Tensor, o: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return functional.embedding_bag(i, w, o, mode="sum", per_sample_weights=s, padding_idx=5)

    assert_as_pytorch(bags, WEIGHT, INDICES, torch.tensor([0, 0, 2, 5]), SHARES)


def test_frequent_rows_of_bags_have_smaller_gradients() -> None:
    """As documented; PyTorch's CPU divides by the wrong row's frequency where rows repeat."""

    def total(w: torch.Tensor, i: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
        return functional.embedding_bag(i, w, o, mode="sum", scale_grad_by_freq=True).sum()

    given = [torch.zeros(7, 1), INDICES, torch.tensor([0, 3])]
    (found,) = evaluated(lowered(lambda *t: (torch.func.grad(total)(*t),), given), given)
    assert found.ravel().tolist() == [1, 1, 1, 0, 0, 1, 0]


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf])
def test_distances_have_their_gradients(p: float) -> None:
    rows = WEIGHT[:4].clone()
    rows[1] = rows[3]  # at distance 0
    assert_as_pytorch(lambda x, y: torch.cdist(x, y, p), rows, WEIGHT[2:])
    assert_as_pytorch(lambda x: functional.pdist(x, p), rows)


@pytest.mark.parametrize("sizes", [(3, 2), (1, 1), (6, 5), (4, 5)])
def test_uneven_parts_have_their_greatest_elements(sizes: tuple[int, int]) -> None:
    image = torch.linspace(0, 20, 2 * 3 * 6 * 5).sin().reshape(2, 3, 6, 5)
    assert_as_pytorch(lambda x: functional.adaptive_max_pool2d(x, sizes), image)


SPECIAL = torch.tensor([
    -math.inf, -7.25, -3.0, -2.5, -1.0, -0.75, -1e-3, -0.0, 0.0, 1e-3, 0.3, 0.5, 0.99, 1.0, 1.5,
    2.0, 2.01, 7.5, 30.0, 1e4, 1e30, math.inf, math.nan,
])  # fmt: skip


@pytest.mark.parametrize(
    "function", [torch.lgamma, torch.digamma, torch.signbit, lambda x: torch.erfinv(x / 7.25)]
)
def test_a_special_function_is_what_pytorch_computes_at_its_poles(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    for part in SPECIAL:  # one by one: a greatest one would widen what is allowed
        x = part.reshape(1)
        assert_close(evaluated(lowered(lambda x: (function(x),), [x]), [x]), [function(x)])


def test_the_derivative_of_digamma_is_what_pytorch_computes() -> None:
    x = torch.cat((torch.linspace(-5.9, -0.1, 24), torch.linspace(0.05, 40, 25)))
    assert_as_pytorch(torch.digamma, x)


NUMBERS = torch.tensor([[3.0, math.nan, 1.0, 1.0], [2.0, 5.0, 5.0, -1.0]])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.median(1).values,
        lambda x: x.nanmedian(1).values,
        lambda x: x.kthvalue(2, 1).values,
        lambda x: x.cummax(1).values,
        lambda x: x.cummin(1).values,
        lambda x: x.cummax(1).indices,
        lambda x: x.fmax(x.flip(1)),
    ],
)
def test_not_a_number_has_the_place_that_pytorch_gives_it(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    given = [NUMBERS]
    assert_close(evaluated(lowered(lambda x: (function(x),), given), given), [function(NUMBERS)])


@pytest.mark.parametrize("replacement", [False, True])
def test_choices_have_their_probabilities(replacement: bool) -> None:
    shares = torch.tensor([0.0, 1.0, 3.0, 4.0, 0.0]).expand(4000, 5)
    torch.manual_seed(0)
    (found,) = evaluated(
        lowered(lambda x: (torch.multinomial(x, 2, replacement),), [shares]), [shares]
    )
    first = [(found[:, 0] == place).mean() for place in range(5)]
    assert first[0] == first[4] == 0
    for share, expected in zip(first[1:4], (0.125, 0.375, 0.5), strict=True):
        assert abs(share - expected) < 0.03
    assert (found[:, 0] == found[:, 1]).any() == replacement


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_for_inference_is_what_pytorch_computes(norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        32, 4, 64, activation="gelu", batch_first=True, norm_first=norm_first
    )
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x, lengths = torch.randn(3, 7, 32), torch.tensor([5, 7, 3])
    hidden = torch.arange(7) >= lengths[:, None]
    with torch.no_grad():
        for options in ({}, {"src_key_padding_mask": hidden}):
            torch._dynamo.reset()
            found = torch.compile(model, backend="neuron")(x, **options)
            seen = ~hidden if options else slice(None)
            torch.testing.assert_close(found[seen], model(x, **options)[seen])


class GroupedAttention(torch.nn.Module):
    """Attention of six heads that share two keys and three values."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.options = options
        self.query = torch.nn.Parameter(torch.randn(2, 6, 5, 4))
        self.key = torch.nn.Parameter(torch.randn(2, 2, 5, 4))
        self.value = torch.nn.Parameter(torch.randn(2, 3, 5, 4))

    def forward(self) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(
            self.query, self.key, self.value, enable_gqa=True, **self.options
        )


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": LOWER}])
def test_heads_that_share_keys_and_values_are_what_pytorch_computes(
    options: dict[str, Any],
) -> None:
    assert_gradients(GroupedAttention(**options), ())


@pytest.mark.parametrize("options", [{}, {"need_weights": False}, {"average_attn_weights": False}])
def test_attention_for_inference_is_what_pytorch_computes(options: dict[str, bool]) -> None:
    torch.manual_seed(0)
    model = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x = torch.randn(3, 7, 32)
    above = torch.ones(7, 7, dtype=torch.bool).triu(1)
    with torch.no_grad():
        for masks in ({}, {"attn_mask": above}, {"key_padding_mask": above[:3]}):
            torch._dynamo.reset()
            found = torch.compile(model, backend="neuron")(x, x, x, **options, **masks)
            for part, wanted in zip(found, model(x, x, x, **options, **masks), strict=True):
                torch.testing.assert_close(part, wanted)


class Grouped(torch.nn.Module):
    """Rows times the matrix of their group, as transformers has it."""

    def __init__(self) -> None:
        super().__init__()
        self.matrices = torch.nn.Parameter(WEIGHT[:6].reshape(3, 3, 2))

    def forward(self, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.ops.transformers.grouped_mm_fallback(rows, self.matrices, ends)
        return found


def test_products_of_groups_have_their_gradients() -> None:
    pytest.importorskip("transformers.integrations.moe")  # which makes the operators
    ends = torch.tensor([2, 2, 4], dtype=torch.int32)  # an empty group, and a row of none
    rows = torch.linspace(-1, 2, 15).reshape(5, 3).requires_grad_()
    assert_gradients(Grouped(), (rows, ends))
