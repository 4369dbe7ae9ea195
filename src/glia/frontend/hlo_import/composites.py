"""Composite operations in primitive ones: normalisations, activations, top-k, arg-max."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from glia.base.dtype import F32, PRED, DType
from glia.frontend.hlo_import.module_context import Importer, Site
from glia.frontend.hlo_import.node_builder import NodeBuilder, Value
from glia.graph import ops
from glia.graph.ir import Node, TensorType, TupleType


def _statistics_dtype(x: Node) -> DType:
    """The dtype for means and variances: at least f32."""
    return F32 if x.dtype.is_float and x.dtype.bits < 32 else x.dtype


def _broadcast_along(build: NodeBuilder, vector: Node, like: Node, dimension: int) -> Node:
    """A vector laid along one dimension of a tensor."""
    return build.broadcast(vector, like.shape, (dimension,))


def _broadcast_back(
    build: NodeBuilder, reduced: Node, like: Node, dimensions: Sequence[int]
) -> Node:
    """A reduction's result repeated over the dimensions that were reduced."""
    kept = [d for d in range(len(like.shape)) if d not in dimensions]
    return build.broadcast(reduced, like.shape, kept)


def softmax(build: NodeBuilder, x: Node, dimension: int) -> Node:
    """exp(x - max) / sum(exp(x - max)) along one dimension."""
    wide = build.convert(x, _statistics_dtype(x))
    peak = _broadcast_back(
        build, build.reduce(wide, "maximum", -np.inf, [dimension]), wide, [dimension]
    )
    power = build.map("exp", build.map("subtract", wide, peak))
    total = _broadcast_back(build, build.reduce(power, "add", 0, [dimension]), wide, [dimension])
    return build.convert(build.map("divide", power, total), x.dtype)


def rms_norm(build: NodeBuilder, x: Node, weight: Node, epsilon: Node, dimension: int) -> Node:
    """x / sqrt(mean(x^2) + epsilon) * weight along one dimension, in the dtype of x."""
    wide = build.convert(x, _statistics_dtype(x))
    total = build.reduce(build.map("square", wide), "add", 0, [dimension])
    mean = build.map("divide", total, build.splat(x.shape[dimension], total))
    shifted = build.map(
        "add", mean, build.broadcast_scalar(build.convert(epsilon, wide.dtype), mean)
    )
    scale = _broadcast_back(build, build.map("rsqrt", shifted), wide, [dimension])
    weights = _broadcast_along(build, build.convert(weight, wide.dtype), wide, dimension)
    return build.map("multiply", build.map("multiply", wide, scale), weights)


def gelu(build: NodeBuilder, x: Node) -> Node:
    """x * (1 + erf(x / sqrt(2))) / 2."""
    wide = build.convert(x, _statistics_dtype(x))
    inner = build.map("erf", build.map("multiply", wide, build.splat(math.sqrt(0.5), wide)))
    return build.convert(_multiply_by_gate(build, wide, inner), x.dtype)


def gelu_tanh(build: NodeBuilder, x: Node) -> Node:
    """x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) / 2."""
    wide = build.convert(x, _statistics_dtype(x))
    cube = build.map("multiply", build.map("square", wide), wide)
    inner = build.map("add", wide, build.map("multiply", cube, build.splat(0.044715, wide)))
    scaled = build.map("multiply", inner, build.splat(math.sqrt(2 / math.pi), wide))
    return build.convert(_multiply_by_gate(build, wide, build.map("tanh", scaled)), x.dtype)


def _multiply_by_gate(build: NodeBuilder, x: Node, gate: Node) -> Node:
    half = build.map("multiply", x, build.splat(0.5, x))
    return build.map("multiply", half, build.map("add", gate, build.splat(1, gate)))


def silu(build: NodeBuilder, x: Node) -> Node:
    """x * logistic(x)."""
    wide = build.convert(x, _statistics_dtype(x))
    return build.convert(build.map("multiply", wide, build.map("logistic", wide)), x.dtype)


def top_k(
    build: NodeBuilder, x: Node, k: int, index_dtype: DType, largest: bool
) -> tuple[Node, Node]:
    """The k largest (or smallest) elements of the last dimension in order, and their indices."""
    rank = len(x.shape)
    if rank < 1 or not 0 <= k <= x.shape[-1]:
        raise build.reject(f"top-k with k = {k} of {x.type}")
    last = rank - 1
    indices = build.make(ops.Iota, TensorType(index_dtype, x.shape), last)
    function = ("greater" if largest else "less") + ("_total_order" if x.dtype.is_float else "")
    dtypes = (x.dtype, x.dtype, index_dtype, index_dtype)
    comparator = build.scalar_graph(
        "precedes", dtypes, lambda a, b, _i, _j: build.map(function, a, b)
    )
    ordered = build.results(ops.Sort, (x, indices), last, True, comparator)
    limit = (*x.shape[:-1], k)
    start, stride = (0,) * rank, (1,) * rank
    values, positions = (build.make(ops.Slice, each, start, limit, stride) for each in ordered)
    return values, positions


def arg_extreme(
    build: NodeBuilder, x: Node, dimension: int, index_dtype: DType, function: str
) -> Node:
    """The first index of the greatest ("greater") or least ("less") element; NaN wins."""
    indices = build.make(ops.Iota, TensorType(index_dtype, x.shape), dimension)

    def better(a: Node, i: Node, b: Node, j: Node) -> tuple[Node, Node]:
        wins = build.map(function, b, a)
        ties = build.map("equal", b, a)
        if x.dtype.is_float:
            a_nan, b_nan = (build.map("not_equal", v, v) for v in (a, b))
            wins = build.map("or", wins, build.map("and", b_nan, build.map("not", a_nan)))
            ties = build.map("or", ties, build.map("and", a_nan, b_nan))
        earlier = build.map("and", ties, build.map("less", j, i))
        take = build.map("or", wins, earlier)
        return build.map("select", take, b, a), build.map("select", take, j, i)

    dtypes = (x.dtype, index_dtype, x.dtype, index_dtype)
    body = build.scalar_graph(f"arg_{function}", dtypes, better)
    inits = (
        build.constant(_losing_value(x.dtype, function), x.dtype),
        build.constant(x.shape[dimension] - 1 if x.shape[dimension] else 0, index_dtype),
    )
    return build.results(ops.Reduce, (x, indices), inits, (dimension,), body)[1]


def _losing_value(dtype: DType, function: str) -> object:
    """The value that loses every comparison: -inf (or the least integer) for "greater"."""
    if dtype is PRED:
        return function == "less"
    if dtype.is_float:
        return -np.inf if function == "greater" else np.inf
    limits = np.iinfo(dtype.numpy)
    return limits.min if function == "greater" else limits.max


def _topk(site: Site) -> Value:
    """HLO topk."""
    (x,) = site.tensors(1)
    return top_k(site, x, site.proto.k, top_k_types(site)[1].dtype, site.proto.largest)


def top_k_types(site: Site) -> tuple[TensorType, TensorType]:
    """The declared types of values and indices."""
    declared = site.type
    if isinstance(declared, TupleType) and len(declared.elements) == 2:
        values, indices = declared.elements
        if isinstance(values, TensorType) and isinstance(indices, TensorType):
            return values, indices
    raise site.reject(f"the result must be (values, indices), not {declared}")


def _feature_dimensions(site: Site, x: Node) -> tuple[int, list[int]]:
    """The feature dimension and every other one."""
    feature = site.proto.feature_index
    if not 0 <= feature < len(x.shape):
        raise site.malformed(f"feature dimension {feature} of {x.type}")
    return feature, [d for d in range(len(x.shape)) if d != feature]


def _normalize(site: Site, x: Node, mean: Node, variance: Node, feature: int) -> tuple[Node, Node]:
    """(x - mean) / sqrt(variance + epsilon), and the reciprocal root as a vector."""
    shifted = site.map("add", variance, site.splat(site.proto.epsilon, variance))
    root = site.map("rsqrt", shifted)
    centred = site.map("subtract", x, _broadcast_along(site, mean, x, feature))
    return site.map("multiply", centred, _broadcast_along(site, root, x, feature)), root


def _batch_norm_inference(site: Site) -> Value:
    """(x - mean) / sqrt(variance + epsilon) * scale + offset."""
    x, *vectors = site.tensors(5)
    feature, _ = _feature_dimensions(site, x)
    wide, scale, offset, mean, variance = (
        site.convert(v, _statistics_dtype(x)) for v in (x, *vectors)
    )
    normal, _ = _normalize(site, wide, mean, variance, feature)
    scaled = site.map("multiply", normal, _broadcast_along(site, scale, wide, feature))
    return site.convert(
        site.map("add", scaled, _broadcast_along(site, offset, wide, feature)), x.dtype
    )


def _batch_norm_training(site: Site) -> Value:
    """The normalised tensor with its mean and (biased) variance for each feature."""
    x, *vectors = site.tensors(3)
    feature, others = _feature_dimensions(site, x)
    wide, scale, offset = (site.convert(v, _statistics_dtype(x)) for v in (x, *vectors))
    mean = _mean(site, wide, others)
    centred = site.map("subtract", wide, _broadcast_along(site, mean, wide, feature))
    variance = _mean(site, site.map("square", centred), others)
    normal, _ = _normalize(site, wide, mean, variance, feature)
    scaled = site.map("multiply", normal, _broadcast_along(site, scale, wide, feature))
    result = site.map("add", scaled, _broadcast_along(site, offset, wide, feature))
    return tuple(
        site.convert(each, v.dtype)
        for each, v in zip((result, mean, variance), (x, *vectors), strict=True)
    )


def _mean(build: NodeBuilder, x: Node, dimensions: Sequence[int]) -> Node:
    total = build.reduce(x, "add", 0, dimensions)
    return build.map("divide", total, build.splat(_element_count(x, dimensions), total))


def _element_count(x: Node, dimensions: Sequence[int]) -> int:
    return math.prod(x.shape[d] for d in dimensions)


def _batch_norm_grad(site: Site) -> Value:
    """Gradients of batch-norm-training by x, scale and offset.

    With n elements to a feature, root = 1 / sqrt(variance + epsilon), normal = (x - mean) * root:
    grad_offset = sum(grad), grad_scale = sum(grad * normal),
    grad_x = scale * root * (grad - grad_offset / n - normal * grad_scale / n).
    """
    x, *vectors, grad = site.tensors(5)
    feature, others = _feature_dimensions(site, x)
    wide, scale, mean, variance, wide_grad = (
        site.convert(v, _statistics_dtype(x)) for v in (x, *vectors, grad)
    )
    normal, root = _normalize(site, wide, mean, variance, feature)
    grad_offset = site.reduce(wide_grad, "add", 0, others)
    grad_scale = site.reduce(site.map("multiply", wide_grad, normal), "add", 0, others)
    count = site.splat(_element_count(x, others), grad_offset)
    mean_grad = _broadcast_along(site, site.map("divide", grad_offset, count), wide, feature)
    mean_scaled = _broadcast_along(site, site.map("divide", grad_scale, count), wide, feature)
    centred = site.map("subtract", wide_grad, mean_grad)
    inner = site.map("subtract", centred, site.map("multiply", normal, mean_scaled))
    outer = _broadcast_along(site, site.map("multiply", scale, root), wide, feature)
    grad_x = site.map("multiply", outer, inner)
    kinds = (x.dtype, vectors[0].dtype, vectors[0].dtype)
    found = zip((grad_x, grad_scale, grad_offset), kinds, strict=True)
    return tuple(site.convert(each, dtype) for each, dtype in found)


EXPANDED: dict[str, Importer] = {
    "topk": _topk,
    "batch-norm-inference": _batch_norm_inference,
    "batch-norm-training": _batch_norm_training,
    "batch-norm-grad": _batch_norm_grad,
}
