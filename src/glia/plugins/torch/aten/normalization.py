"""Normalisation of layers, groups and batches, and attention as one operator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from glia.base.dtype import S32
from glia.graph.ir import TensorType
from glia.plugins.hlo_module import HloValue
from glia.plugins.hlo_writer import product
from glia.plugins.torch.aten.operator_table import OperatorCall, lowers, normalized
from glia.plugins.torch.aten.reduce_scan_sort import mean, over_reduced

aten = torch.ops.aten


def _moments(
    at: OperatorCall, x: HloValue, dimensions: Sequence[int]
) -> tuple[HloValue, HloValue, HloValue]:
    """x less its mean, the mean, and the biased variance along dimensions."""
    middle = mean(at, x, dimensions)
    centred = at.subtract(x, over_reduced(at, middle, x, dimensions))
    return centred, middle, mean(at, at.multiply(centred, centred), dimensions)


def _root(at: OperatorCall, variance: HloValue, epsilon: float) -> HloValue:
    """1 / sqrt(variance + epsilon)."""
    return at.unary("rsqrt", at.add(variance, at.filled_like(epsilon, variance)))


def _affine(
    at: OperatorCall,
    x: HloValue,
    weight: HloValue | None,
    bias: HloValue | None,
    dimensions: Sequence[int],
) -> HloValue:
    """x * weight + bias, which lie along dimensions of x."""
    if weight is not None:
        x = at.multiply(x, at.broadcast(at.convert(weight, x.dtype), x.shape, dimensions))
    if bias is not None:
        x = at.add(x, at.broadcast(at.convert(bias, x.dtype), x.shape, dimensions))
    return x


def _as_declared(at: OperatorCall, first: int, *values: HloValue) -> tuple[HloValue, ...]:
    """Values as the results from `first` on."""
    return tuple(_as_result(at, each, first + place) for place, each in enumerate(values))


def _as_result(at: OperatorCall, x: HloValue, index: int) -> HloValue:
    kind = at.results[index]
    return at.reshape(at.convert(x, kind.dtype), kind.shape)


@lowers(aten.native_layer_norm.default)
def _layer_norm(
    at: OperatorCall,
    x: HloValue,
    shape: Sequence[int],
    weight: HloValue | None,
    bias: HloValue | None,
    epsilon: float,
) -> tuple[HloValue, ...]:
    inner = list(range(x.rank - len(shape), x.rank))
    wide = at.wide(x)
    centred, middle, spread = _moments(at, wide, inner)
    root = _root(at, spread, epsilon)
    normal = at.multiply(centred, over_reduced(at, root, wide, inner))
    found = (_affine(at, normal, weight, bias, inner), middle, root)
    return _as_declared(at, 0, *found)


@lowers(aten.native_layer_norm_backward.default)
def _layer_norm_backward(
    at: OperatorCall,
    grad: HloValue,
    x: HloValue,
    shape: Sequence[int],
    middle: HloValue,
    root: HloValue,
    weight: HloValue | None,
    bias: HloValue | None,
    wanted: Sequence[bool],
) -> tuple[HloValue | None, ...]:
    inner = list(range(x.rank - len(shape), x.rank))
    outer = list(range(x.rank - len(shape)))
    wide, grad = at.wide(x), at.wide(grad)
    roots = at.expand(at.wide(root), wide.shape)
    normal = at.multiply(at.subtract(wide, at.expand(at.wide(middle), wide.shape)), roots)
    by_x = by_weight = by_bias = None
    if wanted[0]:
        scaled = _affine(at, grad, weight, None, inner)
        first = over_reduced(at, mean(at, scaled, inner), wide, inner)
        second = over_reduced(at, mean(at, at.multiply(scaled, normal), inner), wide, inner)
        rest = at.subtract(at.subtract(scaled, first), at.multiply(normal, second))
        by_x = at.convert(at.multiply(rest, roots), x.dtype)
    if wanted[1] and weight is not None:
        by_weight = at.convert(at.sum(at.multiply(grad, normal), outer), weight.dtype)
    if wanted[2] and bias is not None:
        by_bias = at.convert(at.sum(grad, outer), bias.dtype)
    return by_x, by_weight, by_bias


@lowers(aten._weight_norm_interface_backward.default)
def _weight_norm_backward(
    at: OperatorCall,
    grad: HloValue,
    direction: HloValue,
    lengths: HloValue,
    norms: HloValue,
    dimension: int,
) -> tuple[HloValue, ...]:
    """The gradients of direction and lengths in direction / norms * lengths."""
    wide, grad = at.wide(direction), at.wide(grad)
    kept = normalized(dimension, wide.rank)
    others = [d for d in range(wide.rank) if d != kept]
    norms = at.reshape(at.convert(norms, wide.dtype), [wide.shape[kept]])
    along = at.divide(at.sum(at.multiply(grad, wide), others), norms)
    scales = at.divide(at.reshape(at.convert(lengths, wide.dtype), norms.shape), norms)
    shares = over_reduced(at, at.divide(along, norms), wide, others)
    across = at.subtract(grad, at.multiply(wide, shares))
    by_direction = at.multiply(across, over_reduced(at, scales, wide, others))
    return _as_declared(at, 0, by_direction, along)


@lowers(aten.native_group_norm.default)
def _group_norm(
    at: OperatorCall,
    x: HloValue,
    weight: HloValue | None,
    bias: HloValue | None,
    batch: int,
    channels: int,
    _pixels: int,
    groups: int,
    epsilon: float,
) -> tuple[HloValue, ...]:
    wide = at.wide(x)
    parts = at.reshape(wide, (batch, groups, product(x.shape) // max(1, batch * groups)))
    centred, middle, spread = _moments(at, parts, [2])
    root = _root(at, spread, epsilon)
    normal = at.reshape(at.multiply(centred, over_reduced(at, root, parts, [2])), x.shape)
    found = (_affine(at, normal, weight, bias, [1]), middle, root)
    return _as_declared(at, 0, *found)


@lowers(aten.native_group_norm_backward.default)
def _group_norm_backward(
    at: OperatorCall,
    grad: HloValue,
    x: HloValue,
    middle: HloValue,
    root: HloValue,
    weight: HloValue | None,
    batch: int,
    channels: int,
    pixels: int,
    groups: int,
    wanted: Sequence[bool],
) -> tuple[HloValue | None, ...]:
    wide, grad = at.wide(x), at.wide(grad)
    shape = (batch, groups, channels // groups * pixels)
    parts = at.reshape(wide, shape)
    roots = at.broadcast(at.reshape(at.wide(root), shape[:2]), shape, (0, 1))
    middles = at.broadcast(at.reshape(at.wide(middle), shape[:2]), shape, (0, 1))
    normal = at.multiply(at.subtract(parts, middles), roots)
    by_x = by_weight = by_bias = None
    others = [d for d in range(x.rank) if d != 1]
    if wanted[0]:
        scaled = at.reshape(_affine(at, grad, weight, None, [1]), shape)
        first = over_reduced(at, mean(at, scaled, [2]), parts, [2])
        second = over_reduced(at, mean(at, at.multiply(scaled, normal), [2]), parts, [2])
        rest = at.subtract(at.subtract(scaled, first), at.multiply(normal, second))
        by_x = at.convert(at.reshape(at.multiply(rest, roots), x.shape), x.dtype)
    if wanted[1] and weight is not None:
        product_ = at.multiply(grad, at.reshape(normal, x.shape))
        by_weight = at.convert(at.sum(product_, others), weight.dtype)
    if wanted[2]:
        by_bias = at.convert(at.sum(grad, others), x.dtype if weight is None else weight.dtype)
    return by_x, by_weight, by_bias


# --- batches -------------------------------------------------------------------------------------


@lowers(aten._native_batch_norm_legit_no_training.default)
def _batch_norm_inference(
    at: OperatorCall,
    x: HloValue,
    weight: HloValue | None,
    bias: HloValue | None,
    middle: HloValue,
    spread: HloValue,
    _momentum: float,
    epsilon: float,
) -> tuple[HloValue, ...]:
    """The normalised tensor, and two results without elements."""
    wide = at.wide(x)
    root = _root(at, at.wide(spread), epsilon)
    scale = root if weight is None else at.multiply(root, at.convert(weight, root.dtype))
    centred = at.subtract(wide, at.broadcast(at.wide(middle), wide.shape, (1,)))
    found = _affine(at, centred, scale, bias, [1])
    rest = [at.splat(0, kind) for kind in at.results[1:]]
    return (at.finished(found), *rest)


@lowers(aten._native_batch_norm_legit.no_stats)
def _batch_norm_without_statistics(
    at: OperatorCall,
    x: HloValue,
    weight: HloValue | None,
    bias: HloValue | None,
    _training: bool,
    _momentum: float,
    epsilon: float,
) -> tuple[HloValue, ...]:
    return _batch_norm_training(at, x, weight, bias, epsilon)[0]


@lowers(aten._native_batch_norm_legit_functional.default)
def _batch_norm_functional(
    at: OperatorCall,
    x: HloValue,
    weight: HloValue | None,
    bias: HloValue | None,
    running_mean: HloValue,
    running_variance: HloValue,
    training: bool,
    momentum: float,
    epsilon: float,
) -> tuple[HloValue, ...]:
    """With the new running mean and (unbiased) variance as further results."""
    if not training:
        part = at.sibling(*at.results[:3])
        found = _batch_norm_inference(
            part, x, weight, bias, running_mean, running_variance, momentum, epsilon
        )
        return (*found, *_as_declared(at, 3, running_mean, running_variance))
    results, middle, spread = _batch_norm_training(at, x, weight, bias, epsilon)
    count = product(x.shape) // x.shape[1]
    unbiased = at.multiply(spread, at.filled_like(count / max(1, count - 1), spread))
    means = _running(at, running_mean, middle, momentum)
    variances = _running(at, running_variance, unbiased, momentum)
    return (*results, *_as_declared(at, 3, means, variances))


@lowers(aten._native_batch_norm_legit.default)
def _batch_norm_with_statistics(at: OperatorCall, *arguments: Any) -> tuple[HloValue, ...]:
    """Its running statistics are arguments that it writes, which the graph has made results of."""
    x, weight, bias, running_mean, running_variance, training, momentum, epsilon = arguments
    if training:
        return _batch_norm_training(at, x, weight, bias, epsilon)[0]
    return _batch_norm_inference(
        at, x, weight, bias, running_mean, running_variance, momentum, epsilon
    )


def _running(at: OperatorCall, old: HloValue, new: HloValue, momentum: float) -> HloValue:
    """(1 - momentum) * old + momentum * new."""
    wide = at.wide(old)
    kept_part = at.multiply(wide, at.filled_like(1 - momentum, wide))
    return at.convert(at.add(kept_part, at.multiply(new, at.filled_like(momentum, new))), old.dtype)


def _batch_norm_training(
    at: OperatorCall, x: HloValue, weight: HloValue | None, bias: HloValue | None, epsilon: float
) -> tuple[tuple[HloValue, ...], HloValue, HloValue]:
    """(normalised, mean, root), and the mean and biased variance in their wide dtype."""
    wide = at.wide(x)
    others = [d for d in range(x.rank) if d != 1]
    centred, middle, spread = _moments(at, wide, others)
    root = _root(at, spread, epsilon)
    normal = at.multiply(centred, at.broadcast(root, wide.shape, (1,)))
    found = (_affine(at, normal, weight, bias, [1]), middle, root)
    return _as_declared(at, 0, *found), middle, spread


# --- attention -----------------------------------------------------------------------------------


@lowers(aten._scaled_dot_product_flash_attention_for_cpu.default)
def _attention(
    at: OperatorCall,
    query: HloValue,
    key: HloValue,
    value: HloValue,
    _dropout: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: HloValue | None = None,
    scale: float | None = None,
) -> tuple[HloValue, HloValue]:
    """softmax(query key^T * scale + mask) value, and the logarithm of the softmax's divisor."""
    key, value = (_repeated_heads(at, each, query.shape[1]) for each in (key, value))
    weights, peak, total = _attention_weights(at, query, key, is_causal, attn_mask, scale)
    power = at.convert(weights, query.dtype)
    last = value.rank - 1
    batch = list(range(last - 1))
    found = at.dot(power, value, (last, last - 1), batch)
    logarithm = at.add(peak, at.unary("log", total))
    logarithm = _as_result(at, logarithm, 1)
    return at.finished(found), logarithm


def _repeated_heads(at: OperatorCall, x: HloValue, heads: int) -> HloValue:
    """x with each of its heads, dimension 1, for as many heads of the query as share it."""
    batch, own, *rest = x.shape
    if own == heads:
        return x
    repeated = at.broadcast(x, [batch, own, heads // own, *rest], [0, 1, 3, 4])
    return at.reshape(repeated, [batch, heads, *rest])


def _summed_heads(at: OperatorCall, x: HloValue, heads: int) -> HloValue:
    """The sums of x over the heads of the query that share one: the gradient of repeating."""
    batch, all_heads, *rest = x.shape
    if all_heads == heads:
        return x
    return at.sum(at.reshape(x, [batch, heads, all_heads // heads, *rest]), [2])


def _attention_weights(
    at: OperatorCall,
    query: HloValue,
    key: HloValue,
    is_causal: bool,
    mask: HloValue | None,
    scale: float | None,
) -> tuple[HloValue, HloValue, HloValue]:
    """The softmax, its greatest logits and its divisors."""
    logits = _attention_logits(at, query, key, is_causal, mask, scale)
    last = [logits.rank - 1]
    peak = at.reduce("maximum", logits, at.lowest(logits.dtype), last)
    is_masked = at.compare_to("EQ", peak, -math.inf)
    peak = at.select(is_masked, at.filled_like(0, peak), peak)
    power = at.unary("exponential", at.subtract(logits, over_reduced(at, peak, logits, last)))
    total = at.sum(power, last)
    divisor = at.select(at.compare_to("EQ", total, 0), at.filled_like(1, total), total)
    return at.divide(power, over_reduced(at, divisor, logits, last)), peak, total


def _attention_logits(
    at: OperatorCall,
    query: HloValue,
    key: HloValue,
    is_causal: bool,
    mask: HloValue | None,
    scale: float | None,
) -> HloValue:
    last = query.rank - 1
    batch = list(range(last - 1))
    logits = at.wide(at.dot(query, key, (last, last), batch))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    logits = at.multiply(logits, at.filled_like(factor, logits))
    if mask is not None:
        logits = at.add(logits, at.expand(at.convert(mask, logits.dtype), logits.shape))
    if not is_causal:
        return logits
    kind = TensorType(S32, logits.shape)
    is_seen = at.compare("GE", at.iota(kind, logits.rank - 2), at.iota(kind, logits.rank - 1))
    return at.select(is_seen, logits, at.filled_like(-math.inf, logits))


@lowers(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def _attention_backward(
    at: OperatorCall,
    grad: HloValue,
    query: HloValue,
    key: HloValue,
    value: HloValue,
    out: HloValue,
    logarithm: HloValue,
    _dropout: float,
    is_causal: bool,
    *,
    attn_mask: HloValue | None = None,
    scale: float | None = None,
) -> tuple[HloValue, HloValue, HloValue]:
    """The gradients by query, key and value; the softmax is computed again."""
    last = query.rank - 1
    batch = list(range(last - 1))
    all_keys, all_values = (_repeated_heads(at, each, query.shape[1]) for each in (key, value))
    weights, _, _ = _attention_weights(at, query, all_keys, is_causal, attn_mask, scale)
    grad, wide_value = at.wide(grad), at.wide(all_values)
    by_value = at.dot(weights, grad, (last - 1, last - 1), batch)
    by_weights = at.dot(grad, wide_value, (last, last), batch)
    total = at.sum(at.multiply(by_weights, weights), [last])
    centred = at.subtract(by_weights, over_reduced(at, total, by_weights, [last]))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    by_logits = at.multiply(at.multiply(weights, centred), at.filled_like(factor, weights))
    by_query = at.dot(by_logits, at.wide(all_keys), (last, last - 1), batch)
    by_key = at.dot(by_logits, at.wide(query), (last - 1, last - 1), batch)
    found = ((by_query, query), (by_key, key), (by_value, value))
    first, second, third = (
        at.convert(_summed_heads(at, each, of.shape[1]), of.dtype) for each, of in found
    )
    return first, second, third
