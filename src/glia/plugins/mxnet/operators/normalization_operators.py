"""Normalisation by statistics of a batch, a layer, an instance or a group; softmax."""

from __future__ import annotations

from collections.abc import Sequence

from glia.base.dtype import S32
from glia.graph.ir import TensorType
from glia.plugins.hlo_module import HloValue
from glia.plugins.hlo_writer import Window, product
from glia.plugins.mxnet.operators.operator_table import NodeCall, lowers


@lowers("BatchNorm", "BatchNorm_v1")
def _batch_norm(
    at: NodeCall,
    x: HloValue,
    scale: HloValue,
    shift: HloValue,
    mean: HloValue,
    spread: HloValue,
) -> HloValue:
    """By the means and variances that training has left."""
    attributes = at.attributes
    attributes.flag("use_global_stats")
    attributes.fixed("output_mean_var", "False")
    dimension = at.dimension(attributes.integer("axis", 1), x.rank)
    epsilon, is_unscaled = attributes.number("eps", 1e-3), attributes.flag("fix_gamma", True)
    wide = at.wide(x)
    factor = at.unary("rsqrt", at.plus(at.wide(spread), epsilon))
    if not is_unscaled:
        factor = at.multiply(factor, at.wide(scale))
    offset = at.subtract(at.wide(shift), at.multiply(at.wide(mean), factor))
    scaled = at.multiply(wide, at.vector_along(factor, wide, dimension))
    return at.convert(at.add(scaled, at.vector_along(offset, wide, dimension)), x.dtype)


def _normalized(at: NodeCall, x: HloValue, dimensions: Sequence[int], epsilon: float) -> HloValue:
    """x less its mean, over the root of its variance, both along dimensions."""
    centred = at.subtract(x, at.repeated_over(at.mean(x, dimensions), x, dimensions))
    spread = at.mean(at.multiply(centred, centred), dimensions)
    root = at.unary("rsqrt", at.plus(spread, epsilon))
    return at.multiply(centred, at.repeated_over(root, x, dimensions))


def _affine(
    at: NodeCall, x: HloValue, scale: HloValue, shift: HloValue, dimension: int
) -> HloValue:
    scaled = at.multiply(x, at.vector_along(scale, x, dimension))
    return at.add(scaled, at.vector_along(shift, x, dimension))


@lowers("LayerNorm")
def _layer_norm(at: NodeCall, x: HloValue, scale: HloValue, shift: HloValue) -> HloValue:
    at.attributes.fixed("output_mean_var", "False")
    dimension = at.dimension(at.attributes.integer("axis", -1), x.rank)
    wide = at.wide(x)
    normal = _normalized(at, wide, [dimension], at.attributes.number("eps", 1e-5))
    return at.convert(_affine(at, normal, scale, shift, dimension), x.dtype)


@lowers("InstanceNorm")
def _instance_norm(at: NodeCall, x: HloValue, scale: HloValue, shift: HloValue) -> HloValue:
    wide = at.wide(x)
    normal = _normalized(at, wide, range(2, x.rank), at.attributes.number("eps", 1e-3))
    return at.convert(_affine(at, normal, scale, shift, 1), x.dtype)


@lowers("GroupNorm")
def _group_norm(at: NodeCall, x: HloValue, scale: HloValue, shift: HloValue) -> HloValue:
    """Scale and shift have an element for each group."""
    at.attributes.fixed("output_mean_var", "False")
    groups, epsilon = at.attributes.integer("num_groups", 1), at.attributes.number("eps", 1e-5)
    if groups < 1 or x.rank < 2 or x.shape[1] % groups:
        raise at.attributes.refusal(
            "num_groups", f"does not divide the channels of {list(x.shape)}"
        )
    parted = at.reshape(at.wide(x), (x.shape[0], groups, product(x.shape[1:]) // groups))
    found = _affine(at, _normalized(at, parted, [2], epsilon), scale, shift, 1)
    return at.reshape(at.convert(found, x.dtype), x.shape)


@lowers("L2Normalization")
def _unit_length(at: NodeCall, x: HloValue) -> HloValue:
    mode = at.attributes.choice("mode", ("instance", "channel", "spatial"), "instance")
    first = 2 if mode == "spatial" else 1
    dimensions = [1] if mode == "channel" else list(range(first, x.rank))
    squares = at.sum(at.multiply(x, x), dimensions)
    length = at.unary("sqrt", at.plus(squares, at.attributes.number("eps", 1e-10)))
    return at.divide(x, at.repeated_over(length, x, dimensions))


@lowers("LRN")
def _across_channels(at: NodeCall, x: HloValue) -> HloValue:
    """x over a power of the sum of squares of channels near by."""
    attributes = at.attributes
    alpha, beta = attributes.number("alpha", 1e-4), attributes.number("beta", 0.75)
    offset, count = attributes.number("knorm", 2.0), attributes.integer("nsize")
    at.require(x.rank == 4, f"takes images, not {list(x.shape)}")
    if not 0 < count <= 2 * x.shape[1] + 1:
        raise attributes.refusal("nsize", f"is no number of channels near {x.shape[1]}")
    low = (0, count // 2, 0, 0)
    window = Window((1, count, 1, 1), (1,) * 4, low, (0, count - 1 - count // 2, 0, 0))
    wide = at.wide(x)
    zero = at.constant(0, wide.dtype)
    near = at.reduce_window("add", at.multiply(wide, wide), zero, window)
    base = at.plus(at.scaled(near, alpha / count), offset)
    factor = at.binary("power", base, at.filled_like(-beta, base))
    return at.convert(at.multiply(wide, factor), x.dtype)


# --- softmax -------------------------------------------------------------------------------------


def _softmax(at: NodeCall, x: HloValue, dimension: int, is_logarithm: bool = False) -> HloValue:
    highest = at.reduce("maximum", x, at.lowest(x.dtype), [dimension])
    centred = at.subtract(x, at.repeated_over(highest, x, [dimension]))
    powers = at.unary("exponential", centred)
    total = at.sum(powers, [dimension])
    if is_logarithm:
        return at.subtract(centred, at.repeated_over(at.unary("log", total), x, [dimension]))
    return at.divide(powers, at.repeated_over(total, x, [dimension]))


def _softmax_of_node(
    at: NodeCall, x: HloValue, lengths: HloValue | None, sign: int, is_logarithm: bool = False
) -> HloValue:
    attributes = at.attributes
    dimension = at.dimension(attributes.integer("axis", -1), x.rank)
    temperature = attributes.number("temperature", 1.0)
    dtype = attributes.dtype("dtype", x.dtype)
    has_lengths = attributes.flag("use_length")
    at.require(has_lengths == (lengths is not None), "has lengths that use_length denies")
    wide = at.scaled(at.wide(x), sign / temperature)
    if lengths is None:
        return at.convert(_softmax(at, wide, dimension, is_logarithm), dtype)
    inside = at.compare("LT", at.iota(TensorType(S32, x.shape), dimension),
                        at.repeated_over(at.convert(lengths, S32), x, [dimension]))  # fmt: skip
    masked = at.select(inside, wide, at.filled_like(-1e30, wide))
    found = _softmax(at, masked, dimension, is_logarithm)
    return at.convert(at.select(inside, found, at.filled_like(0, found)), dtype)


@lowers("softmax")
def _softmax_node(at: NodeCall, x: HloValue, lengths: HloValue | None = None) -> HloValue:
    return _softmax_of_node(at, x, lengths, 1)


@lowers("softmin")
def _softmin(at: NodeCall, x: HloValue) -> HloValue:
    return _softmax_of_node(at, x, None, -1)


@lowers("log_softmax")
def _log_softmax(at: NodeCall, x: HloValue) -> HloValue:
    return _softmax_of_node(at, x, None, 1, is_logarithm=True)


@lowers("SoftmaxActivation")
def _softmax_activation(at: NodeCall, x: HloValue) -> HloValue:
    mode = at.attributes.choice("mode", ("instance", "channel"), "instance")
    return _softmax(at, x, 1) if mode == "channel" else _over_instance(at, x)


def _over_instance(at: NodeCall, x: HloValue) -> HloValue:
    flat = at.reshape(x, (x.shape[0], product(x.shape[1:])))
    return at.reshape(_softmax(at, flat, 1), x.shape)


@lowers("SoftmaxOutput", "Softmax")
def _softmax_output(at: NodeCall, x: HloValue, label: HloValue | None = None) -> HloValue:
    """The label has a meaning in training only."""
    if at.attributes.flag("preserve_shape"):
        return _softmax(at, x, x.rank - 1)
    return _softmax(at, x, 1) if at.attributes.flag("multi_output") else _over_instance(at, x)
