"""Operators made of others that the table has, where PyTorch has no decomposition of its own.

Each is written with PyTorch's functions and takes what its operator takes. Sources are PyTorch's
documentation of the functions, and calculus.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from types import NotImplementedType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, global_decomposition_table
from torch.overrides import enable_reentrant_dispatch

from glia.plugins.torch.aten.operator_table import entered

aten = torch.ops.aten

Decomposition = Callable[..., Any]
_KEPT = NotImplementedType()  # PyTorch's sign that a call is not decomposed
_Function = TypeVar("_Function", bound=Decomposition)

DERIVED: dict[Any, Decomposition] = {}
"""What stands for a call of an operator overload."""


def derives(*operators: Any) -> Callable[[_Function], _Function]:
    """Enter a function as what stands for operator overloads."""
    return entered(DERIVED, operators)


@functools.cache
def of_pytorch() -> dict[Any, Decomposition]:
    """PyTorch's own decompositions."""
    return {**global_decomposition_table["post_autograd"], **core_aten_decompositions()}


# --- gradients -----------------------------------------------------------------------------------


def _gradient(function: Decomposition, x: Tensor, grad: Tensor) -> Tensor:
    """The gradient of a function of one tensor, by differentiating what it is made of."""
    with enable_reentrant_dispatch(), torch.enable_grad():
        leaf = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(function(leaf), leaf, grad)
    return found


@derives(aten.multi_margin_loss_backward.default)
def _multi_margin_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    p: float,
    margin: float,
    weight: Tensor | None = None,
    reduction: int = 1,
) -> Tensor:
    forward = of_pytorch()[aten.multi_margin_loss.default]
    return _gradient(lambda x: forward(x, target, p, margin, weight, reduction), x, grad)


@derives(aten.multilabel_margin_loss_backward.default)
def _multilabel_margin_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    forward = of_pytorch()[aten.multilabel_margin_loss_forward.default]
    return _gradient(lambda x: forward(x, target, reduction)[0], x, grad)


def _norm_gradient(difference: Tensor, p: float, grad: Tensor, norm: Tensor) -> Tensor:
    """The gradient of the p-norm along the last dimension; 0 at 0, as PyTorch chooses."""
    grad, norm = grad.unsqueeze(-1), norm.unsqueeze(-1)
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return grad * difference.sign()
    if math.isinf(p):
        return grad * difference.sign() * (difference.abs() == norm)
    size = difference.abs()
    nonzero = torch.where(norm == 0, 1, norm)
    if p == 2:
        return grad * difference / nonzero
    power = torch.where(size == 0, 0, torch.where(size == 0, 1, size) ** (p - 1))
    return grad * difference.sign() * power / nonzero ** (p - 1)


@derives(aten._cdist_backward.default)
def _cdist_backward(grad: Tensor, x: Tensor, y: Tensor, p: float, norm: Tensor) -> Tensor:
    """The gradient of the first operand."""
    difference = x.unsqueeze(-2) - y.unsqueeze(-3)
    return _norm_gradient(difference, p, grad, norm).sum(-2)


@derives(aten._pdist_backward.default)
def _pdist_backward(grad: Tensor, x: Tensor, p: float, norm: Tensor) -> Tensor:
    """Each pair's gradient, for its first row, and negated for its second."""
    if norm.numel() == 0:
        return torch.zeros_like(x)
    left, right = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device)
    part = _norm_gradient(x[left] - x[right], p, grad, norm)
    return torch.zeros_like(x).index_add(0, left, part).index_add(0, right, -part)


def _bags(indices: Tensor, offsets: Tensor) -> Tensor:
    """The bag of each element: the last that begins before it.

    Gradients have an argument for this too, but it is empty where PyTorch's CPU needs none.
    """
    element = torch.arange(indices.shape[0], device=indices.device)
    return (offsets <= element[:, None]).sum(1) - 1


@derives(aten._embedding_bag_per_sample_weights_backward.default)
def _embedding_bag_weights_backward(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    bags: Tensor,
    mode: int,
    padding: int = -1,
) -> Tensor:
    """The product of each row with the gradient of its bag; bags of weights are sums (mode 0)."""
    found = (grad[_bags(indices, offsets)] * weight[indices]).sum(1)
    return torch.where(indices == padding, 0, found)


@derives(aten._embedding_bag_backward.default)
def _embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    bags: Tensor,
    sizes: Tensor,
    maxima: Tensor,
    count: int,
    by_frequency: bool,
    mode: int,
    sparse: bool,
    weights: Tensor | None,
    padding: int = -1,
) -> Tensor | NotImplementedType:
    """Each bag's gradient for its rows, in a sum (mode 0) or mean (1); or for its maxima's (2)."""
    if sparse:
        return _KEPT
    zeros = torch.zeros((count, grad.shape[1]), dtype=grad.dtype, device=grad.device)
    if mode == 2:
        return zeros.scatter_add(0, maxima, torch.where(sizes[:, None] == 0, 0, grad))
    bag = _bags(indices, offsets)
    used = indices != padding
    share = used.to(grad.dtype)
    if mode == 1:
        share = share / torch.zeros_like(grad[:, 0]).index_add(0, bag, share).clamp(min=1)[bag]
    if by_frequency:
        share = share / (indices == indices[:, None]).sum(1)
    if weights is not None:
        share = share * weights
    return zeros.index_add(0, indices, grad[bag] * share[:, None])


@derives(aten.masked_scatter_backward.default)
def _masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: Sequence[int]) -> Tensor:
    """The elements that a mask chose, in their order, and zeros after them."""
    count = math.prod(sizes)
    chosen = mask.expand_as(grad).flatten()
    place = torch.where(chosen, chosen.long().cumsum(0) - 1, count)
    beyond = torch.zeros(max(count, grad.numel()) + 1, dtype=grad.dtype, device=grad.device)
    return beyond.scatter(0, place, grad.flatten())[:count].reshape(sizes)


# --- pooling -------------------------------------------------------------------------------------


@derives(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def _adaptive_max_pool(x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The greatest of each part, and its place in the flat image.

    Parts are as wide as the widest: narrower ones have their last element several times.
    """
    rank = len(sizes)
    extents = x.shape[-rank:]
    flat = torch.zeros((), dtype=torch.int64, device=x.device)
    for extent, size in zip(extents, sizes, strict=True):
        flat = flat[..., None, None] * extent + _part_places(extent, size, x.device)
    order = [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)]
    places = flat.permute(order).reshape(*sizes, -1)  # [sizes, elements of a part]
    parts = x.flatten(-rank)[..., places]
    values, best = parts.max(-1)
    return values, places.expand_as(parts).gather(-1, best[..., None])[..., 0]


def _part_places(extent: int, size: int, device: torch.device) -> Tensor:
    """The elements of each part of a dimension: [size, width of the widest]."""
    starts = [place * extent // size for place in range(size)]
    ends = [-(-(place + 1) * extent // size) for place in range(size)]
    width = max(end - start for start, end in zip(starts, ends, strict=True))
    first = torch.arange(size, device=device) * extent // size
    last = ((torch.arange(size, device=device) + 1) * extent + size - 1) // size - 1
    return torch.minimum(first[:, None] + torch.arange(width, device=device), last[:, None])


# --- products ------------------------------------------------------------------------------------


@derives(aten._trilinear.default)
def _trilinear(
    x: Tensor,
    y: Tensor,
    z: Tensor,
    x_expanded: Sequence[int],
    y_expanded: Sequence[int],
    z_expanded: Sequence[int],
    summed: Sequence[int],
    unrolled: int = 1,
) -> Tensor:
    """The product of three tensors, expanded at some dimensions, summed over others."""
    rank = x.dim() + len(x_expanded)
    letters = "abcdefghijklmnopqrstuvwxyz"[:rank]

    def subscripts(expanded: Sequence[int]) -> str:
        return "".join(letter for d, letter in enumerate(letters) if d not in expanded)

    terms = ",".join(map(subscripts, (x_expanded, y_expanded, z_expanded)))
    return torch.einsum(f"{terms}->{subscripts(summed)}", x, y, z)


@derives(aten.addbmm.default)
def _addbmm(x: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if not x.is_floating_point():
        alpha, beta = int(alpha), int(beta)
    total = alpha * torch.bmm(left, right).sum(0)
    return total if beta == 0 else total + beta * x


# --- transformers: what PyTorch's layers call for inference --------------------------------------


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.nn.functional.linear(x, weight, bias)


_OF_QUERIES, _OF_KEYS = 0, 1  # kinds of masks; any other has all dimensions


def _scores(
    query: Tensor, key: Tensor, mask: Tensor | None, kind: int | None, heads: int
) -> Tensor:
    """The softmax of products of queries and keys [batch, heads, tokens, features]."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is None:
        return scores.softmax(-1)
    if kind == _OF_KEYS:
        mask = mask[:, None, None, :]
    elif kind != _OF_QUERIES and mask.dim() == 3:
        mask = mask.reshape(-1, heads, *mask.shape[1:])
    hidden = mask if mask.dtype is torch.bool else mask == -math.inf
    scores = scores if mask.dtype is torch.bool else scores + torch.where(hidden, 0, mask)
    return scores.masked_fill(hidden, -math.inf).softmax(-1)


@derives(aten._native_multi_head_attention.default)
def _multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    width: int,
    heads: int,
    inner_weight: Tensor,
    inner_bias: Tensor | None,
    outer_weight: Tensor,
    outer_bias: Tensor | None,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attention over [batch, tokens, width], and its weights where they are asked for."""
    weights = inner_weight.chunk(3)
    biases = inner_bias.chunk(3) if inner_bias is not None else (None,) * 3
    parts = []
    for x, weight, bias in zip((query, key, value), weights, biases, strict=True):
        y = _linear(x, weight, bias)
        parts.append(y.reshape(*y.shape[:2], heads, width // heads).transpose(1, 2))
    shares = _scores(parts[0], parts[1], mask, mask_type, heads)
    mixed = (shares @ parts[2]).transpose(1, 2).reshape(query.shape)
    found = _linear(mixed, outer_weight, outer_bias)
    if not need_weights:
        return found, None
    return found, shares.mean(1) if average_attn_weights else shares


@derives(aten._transformer_encoder_layer_fwd.default)
def _transformer_encoder_layer(
    x: Tensor,
    width: int,
    heads: int,
    inner_weight: Tensor,
    inner_bias: Tensor,
    outer_weight: Tensor,
    outer_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    gain_1: Tensor,
    shift_1: Tensor,
    gain_2: Tensor,
    shift_2: Tensor,
    up_weight: Tensor,
    up_bias: Tensor,
    down_weight: Tensor,
    down_bias: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """Attention and a perceptron, each added to its input, normalised before or after."""

    def attended(y: Tensor) -> Tensor:
        attention = (inner_weight, inner_bias, outer_weight, outer_bias)
        shape = (width, heads, *attention, mask, False, True, mask_type)
        return _multi_head_attention(y, y, y, *shape)[0]

    def mapped(y: Tensor) -> Tensor:
        inner = _linear(y, up_weight, up_bias)
        active = torch.nn.functional.gelu(inner) if use_gelu else inner.relu()
        return _linear(active, down_weight, down_bias)

    for step, gain, shift in ((attended, gain_1, shift_1), (mapped, gain_2, shift_2)):
        norm = functools.partial(
            torch.nn.functional.layer_norm,
            normalized_shape=(width,), weight=gain, bias=shift, eps=eps,
        )  # fmt: skip
        x = x + step(norm(x)) if norm_first else norm(x + step(x))
    return x


# --- order statistics ----------------------------------------------------------------------------


def _at_rank(
    x: Tensor, rank: Callable[[Tensor], Tensor | int], dimension: int, keepdim: bool
) -> tuple[Tensor, Tensor]:
    """The elements that are at a place of the order along a dimension, and their indices."""
    if not x.dim():
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    values, indices = x.sort(dim=dimension, stable=True)
    place = rank(x)
    if isinstance(place, int):
        values, indices = (each.narrow(dimension, place, 1) for each in (values, indices))
    else:
        place = place.unsqueeze(dimension)
        values, indices = (each.gather(dimension, place) for each in (values, indices))
    if not keepdim:
        values, indices = (each.squeeze(dimension) for each in (values, indices))
    return values, indices


@derives(aten.kthvalue.default)
def _kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _at_rank(x, lambda _: k - 1, dim, keepdim)


def _middle(x: Tensor, dim: int) -> Tensor | int:
    """The place of the median in the order; that of NaN, which is last, where there is one."""
    extent = x.shape[dim]
    if not x.is_floating_point():
        return (extent - 1) // 2
    return torch.where(x.isnan().any(dim), extent - 1, (extent - 1) // 2)


def _middle_of_numbers(x: Tensor, dim: int) -> Tensor | int:
    """The place of the median of what is not NaN."""
    if not x.is_floating_point():
        return (x.shape[dim] - 1) // 2
    return torch.div((~x.isnan()).sum(dim) - 1, 2, rounding_mode="floor").clamp(min=0)


def _median_along(
    place: Callable[[Tensor, int], Tensor | int],
    x: Tensor,
    dim: int,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    return _at_rank(x, lambda x: place(x, dim), dim, keepdim)


def _median_of_all(place: Callable[[Tensor, int], Tensor | int], x: Tensor) -> Tensor:
    return _median_along(place, x.flatten(), 0)[0]


for _packet, _place in ((aten.median, _middle), (aten.nanmedian, _middle_of_numbers)):
    derives(_packet.dim)(functools.partial(_median_along, _place))
    derives(_packet.default)(functools.partial(_median_of_all, _place))


# --- elementwise ---------------------------------------------------------------------------------


@derives(aten._efficientzerotensor.default)
def _efficientzerotensor(size: Sequence[int], **options: Any) -> Tensor:
    return torch.zeros(size, **options)


def _numbers_first(x: Tensor, y: Tensor, choose: Decomposition) -> Tensor:
    """A choice of two elements, and a number before NaN."""
    if not torch.result_type(x, y).is_floating_point:
        return choose(x, y)
    return torch.where(x.isnan(), y, torch.where(y.isnan(), x, choose(x, y)))


@derives(aten.polar.default)
def _polar(size: Tensor, angle: Tensor) -> Tensor:
    return torch.complex(size * angle.cos(), size * angle.sin())


@derives(aten.fmax.default)
def _fmax(x: Tensor, y: Tensor) -> Tensor:
    return _numbers_first(x, y, torch.maximum)


@derives(aten.fmin.default)
def _fmin(x: Tensor, y: Tensor) -> Tensor:
    return _numbers_first(x, y, torch.minimum)


@derives(aten.hypot.default)
def _hypot(x: Tensor, y: Tensor) -> Tensor:
    """The hypotenuse, scaled so that no square is beyond the range."""
    x, y = x.abs(), y.abs()
    longer, shorter = torch.maximum(x, y), torch.minimum(x, y)
    share = shorter / torch.where(longer == 0, 1, longer)
    found = longer * torch.sqrt(1 + share * share)
    return torch.where(torch.isinf(longer) | torch.isinf(shorter), math.inf, found)


@derives(aten.signbit.default)
def _signbit(x: Tensor) -> Tensor:
    """Whether the sign bit is set: of a zero, it is in the reciprocal's sign."""
    if not x.is_floating_point():
        return x < 0
    return torch.where(x == 0, torch.reciprocal(x) < 0, x < 0)


@derives(aten.copysign.Tensor, aten.copysign.Scalar)
def _copysign(x: Tensor, y: Tensor | float) -> Tensor:
    negative = torch.signbit(y) if isinstance(y, Tensor) else math.copysign(1, y) < 0
    size = x.abs() if x.is_floating_point() else x.float().abs()
    return torch.where(torch.as_tensor(negative, device=x.device), -size, size)


# --- special functions ---------------------------------------------------------------------------

# Lanczos's approximation with g = 7 and nine terms
_LANCZOS = (
    676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip


def _wide(function: Decomposition) -> Decomposition:
    """A function computed in float32, as PyTorch computes it for narrower floats and integers."""

    @functools.wraps(function)
    def widened(x: Tensor) -> Tensor:
        found: Tensor = function(x.float())
        return found.to(x.dtype) if x.is_floating_point() else found

    return widened


@derives(aten.lgamma.default)
@_wide
def _lgamma(x: Tensor) -> Tensor:
    """The logarithm of the absolute value of the gamma function, reflected below one half."""
    reflected = x < 0.5
    z = torch.where(reflected, -x, x - 1)
    total = torch.full_like(z, 0.99999999999980993)
    for place, term in enumerate(_LANCZOS, 1):
        total = total + term / (z + place)
    shifted = z + 7.5
    power = math.log(7.5) + torch.log1p(z / 7.5)
    found = (z + 0.5 - shifted / power) * power + 0.5 * math.log(2 * math.pi) + total.log()
    found = torch.where(reflected, math.log(math.pi) - _sine_of_pi(x).log() - found, found)
    pole = (x <= 0) & (x == x.floor())
    return torch.where(pole | torch.isinf(x), math.inf, found)


def _sine_of_pi(x: Tensor) -> Tensor:
    """The absolute value of the sine of pi * x."""
    part = x.abs() - x.abs().floor()
    return torch.sin(math.pi * torch.minimum(part, 1 - part))


def _beyond_ten(x: Tensor, term: Decomposition) -> tuple[Tensor, Tensor]:
    """x raised by ones to 10 or more, and the sum of the terms of what it was on the way."""
    total = torch.zeros_like(x)
    for _ in range(10):
        total = torch.where(x < 10, total + term(x), total)
        x = torch.where(x < 10, x + 1, x)
    return x, total


@derives(aten.digamma.default)
@_wide
def _digamma(x: Tensor) -> Tensor:
    """The derivative of lgamma: its recurrence up to 10, and beyond it the asymptotic series."""
    negative = x < 0
    z, shift = _beyond_ten(torch.where(negative, 1 - x, x), lambda z: 1 / z)
    square = 1 / (z * z)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))
    found = z.log() - 0.5 / z - series - shift
    found = torch.where(torch.isinf(z), z, found)
    part = x - x.floor()
    reflected = found - math.pi / torch.tan(math.pi * torch.where(part > 0.5, part - 1, part))
    found = torch.where(negative, reflected, found)
    found = torch.where(negative & (x == x.floor()), math.nan, found)
    return torch.where(x == 0, torch.copysign(torch.full_like(x, math.inf), -x), found)


@derives(aten.polygamma.default)
def _polygamma(n: int, x: Tensor) -> Tensor | NotImplementedType:
    """The derivatives of digamma: the function itself (0) and the first."""
    if n == 0:
        return torch.digamma(x)
    return _trigamma(x) if n == 1 else _KEPT


@_wide
def _trigamma(x: Tensor) -> Tensor:
    """The derivative of digamma: its recurrence up to 10, and beyond it the asymptotic series."""
    negative = x < 0.5
    z, shift = _beyond_ten(torch.where(negative, 1 - x, x), lambda z: 1 / (z * z))
    square = 1 / (z * z)
    series = 1 / 6 - square * (1 / 30 - square * (1 / 42 - square / 30))
    found = (1 + square * series) / z + square / 2 + shift
    return torch.where(negative, (math.pi / _sine_of_pi(x)) ** 2 - found, found)


# M. Giles, Approximating the erfinv function (2010), single precision: near the middle, and far
_ERFINV_NEAR = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
    -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
_ERFINV_FAR = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
    -0.0076224613, 0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip


@derives(aten.erfinv.default)
@_wide
def _erfinv(x: Tensor) -> Tensor:
    """The inverse of erf; infinite at -1 and 1, NaN beyond."""
    w = -torch.log1p(-x * x)
    near, far = w - 2.5, torch.sqrt(w) - 3
    found = torch.where(w < 5, _polynomial(near, _ERFINV_NEAR), _polynomial(far, _ERFINV_FAR)) * x
    return torch.where(x.abs() == 1, x * math.inf, found)


def _polynomial(x: Tensor, terms: Sequence[float]) -> Tensor:
    """The polynomial of x with these coefficients, the highest power first."""
    total = torch.full_like(x, terms[0])
    for term in terms[1:]:
        total = total * x + term
    return total


# --- search and choice ---------------------------------------------------------------------------


@derives(aten.searchsorted.Tensor)
def _searchsorted(
    edges: Tensor,
    x: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """How many edges are below, or not above, each element of the same row."""
    if sorter is not None:
        edges = edges.gather(-1, sorter)
    borders = edges.unsqueeze(-2) if edges.dim() > 1 else edges
    beside = x.unsqueeze(-1)
    below = borders <= beside if right or side == "right" else borders < beside
    if x.is_floating_point():
        below = below | beside.isnan()
    return below.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


@derives(aten.searchsorted.Scalar)
def _searchsorted_scalar(edges: Tensor, x: float, **options: Any) -> Tensor:
    return _searchsorted(edges, torch.full((), x, dtype=edges.dtype), **options)


@derives(aten.multinomial.default)
def _multinomial(
    x: Tensor, count: int, replacement: bool = False, *, generator: None = None
) -> Tensor:
    """Indices drawn with probabilities that are proportional to each row of x.

    Without replacement, the elements that the first of competing exponential clocks choose.
    """
    if not replacement:
        clocks = -torch.log(1 - torch.rand_like(x, dtype=torch.float32))
        return (x / clocks.clamp(min=torch.finfo(torch.float32).tiny)).topk(count).indices
    ends = x.float().cumsum(-1)
    uniform = torch.rand((*x.shape[:-1], count), device=x.device) * ends[..., -1:]
    found = (ends.unsqueeze(-2) <= uniform.unsqueeze(-1)).sum(-1)
    last = torch.where(x > 0, torch.arange(x.shape[-1], device=x.device), 0).amax(-1, keepdim=True)
    return torch.minimum(found, last)


@derives(aten.take.default)
def _elements(x: Tensor, indices: Tensor) -> Tensor:
    """Elements by their place in memory order."""
    return x.reshape(-1)[indices]


@derives(aten.put.default)
def _with_elements(x: Tensor, indices: Tensor, values: Tensor, accumulate: bool = False) -> Tensor:
    """x with elements replaced, or added to, by their place in memory order."""
    places = (indices.reshape(-1),)
    flat = x.reshape(-1).index_put(places, values.reshape(-1), accumulate=accumulate)
    return flat.reshape(x.shape)
