"""HLO operations that combine many elements: contractions, reductions, windows, solvers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glia.base.dtype import S32
from glia.frontend.hlo_import.module_context import Importer, Site
from glia.frontend.hlo_import.node_builder import Value
from glia.graph import ops
from glia.graph.ir import Node, TensorType, TupleType

_FFT_KINDS = ("fft", "ifft", "rfft", "irfft")
_TRANSPOSES = {1: "no", 2: "transpose", 3: "adjoint"}
_ALGORITHMS = ("default", "three_fry", "philox")
_DISTRIBUTIONS = {1: "uniform", 2: "normal"}


def _dot(site: Site) -> Value:
    a, b = site.tensors(2)
    numbers = site.proto.dot_dimensions
    return site.make(
        ops.Dot,
        a,
        b,
        tuple(numbers.a_batch),
        tuple(numbers.b_batch),
        tuple(numbers.a_contract),
        tuple(numbers.b_contract),
        site.tensor_type.dtype,
    )


def _ragged_dot(site: Site) -> Value:
    """Rows of a in consecutive groups, each multiplied with the matrix of its group in b."""
    a, b, sizes = site.tensors(3)
    numbers = site.proto.ragged_dot_dimensions
    dot, ragged, group = numbers.dot, tuple(numbers.a_ragged), tuple(numbers.b_group)
    fits = len(ragged) == 1 and 0 <= ragged[0] < len(a.shape) and len(sizes.shape) == 1
    if not fits or not sizes.dtype.is_integer:
        raise site.reject(f"ragged-dot of {a.type}, {b.type} and sizes {sizes.type}")
    if ragged[0] in dot.a_batch or (ragged[0] in dot.a_contract) == bool(group) or len(group) > 1:
        raise site.reject(f"ragged-dot with ragged dimension {ragged[0]}, groups {list(group)}")
    dimensions = (dot.a_batch, dot.b_batch, dot.a_contract, dot.b_contract)
    lists = [tuple(each) for each in dimensions]
    if group:
        return _ragged_rows(site, (a, b), lists, ragged[0], group[0], sizes)
    return _ragged_depth(site, (a, b), lists, ragged[0], sizes)


def _members(site: Site, sizes: Node, extent: int) -> Node:
    """pred[groups, extent]: which positions of the ragged dimension belong to which group."""
    groups = sizes.shape[0]
    sizes = site.convert(sizes, S32)
    triangle = site.constant(np.tri(groups, dtype=np.int32), S32)
    ends = site.reduce(
        site.map("multiply", triangle, site.broadcast(sizes, (groups, groups), (1,))), "add", 0, [1]
    )
    starts = site.map("subtract", ends, sizes)
    shape = (groups, extent)
    place = site.make(ops.Iota, TensorType(S32, shape), 1)
    begun = site.map("greater_equal", place, site.broadcast(starts, shape, (0,)))
    return site.map("and", begun, site.map("less", place, site.broadcast(ends, shape, (0,))))


def _ragged_rows(
    site: Site,
    operands: tuple[Node, Node],
    lists: list[tuple[int, ...]],
    ragged: int,
    group: int,
    sizes: Node,
) -> Node:
    """Every row times every group's matrix, of which the row's own group is kept."""
    a, b = operands
    products = site.make(ops.Dot, a, b, *lists, site.tensor_type.dtype)
    assert isinstance(products, ops.Dot)
    batch = len(products.a_batch)
    row = batch + products.free_a.index(ragged)
    column = batch + len(products.free_a) + products.free_b.index(group)
    members = _members(site, sizes, a.shape[ragged])
    swapped = site.transpose(members, (1, 0))
    kept = site.map(
        "select",
        site.broadcast(swapped, products.shape, (row, column)),
        products,
        site.splat(0, products),
    )
    return site.reduce(kept, "add", 0, [column])


def _ragged_depth(
    site: Site,
    operands: tuple[Node, Node],
    lists: list[tuple[int, ...]],
    ragged: int,
    sizes: Node,
) -> Node:
    """One product for each group, of the part of the contracted dimension that is its own."""
    a_batch, b_batch, a_contract, b_contract = lists
    a, b = operands
    members = _members(site, sizes, a.shape[ragged])
    groups = sizes.shape[0]

    def parts(x: Node, dimension: int) -> Node:
        shape = (groups, *x.shape)
        mask = site.broadcast(members, shape, (0, dimension + 1))
        wide = site.broadcast(x, shape, tuple(range(1, len(shape))))
        return site.map("select", mask, wide, site.splat(0, wide))

    def later(dimensions: Sequence[int]) -> tuple[int, ...]:
        return tuple(d + 1 for d in dimensions)

    return site.make(
        ops.Dot,
        parts(a, ragged),
        parts(b, b_contract[a_contract.index(ragged)]),
        (0, *later(a_batch)),
        (0, *later(b_batch)),
        later(a_contract),
        later(b_contract),
        site.tensor_type.dtype,
    )


def _convolution(site: Site) -> Value:
    """A convolution with its operands transposed to the canonical layout and its result back."""
    x, kernel = site.tensors(2)
    numbers = site.proto.convolution_dimensions
    window = site.proto.window.dimensions
    if not len(numbers.input_spatial) == len(numbers.output_spatial) == len(window):
        raise site.malformed(f"{len(window)} window dimensions do not fit the spatial dimensions")
    convolved = site.make(
        ops.Convolution,
        site.transpose(x, [numbers.input_batch, numbers.input_feature, *numbers.input_spatial]),
        site.transpose(
            kernel,
            [numbers.kernel_output_feature, numbers.kernel_input_feature, *numbers.kernel_spatial],
        ),
        *_window_padding(window),
        tuple(d.window_reversal for d in window),
        site.proto.feature_group_count or 1,
        site.proto.batch_group_count or 1,
        site.tensor_type.dtype,
    )
    layout = [numbers.output_batch, numbers.output_feature, *numbers.output_spatial]
    if sorted(layout) != list(range(len(layout))):
        raise site.malformed(f"output dimensions {layout[:8]} are not a permutation")
    return site.transpose(convolved, [layout.index(d) for d in range(len(layout))])


def _window_padding(window: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """stride, low, high, base dilation, window dilation of every dimension (0 means 1)."""
    return (
        tuple(d.stride or 1 for d in window),
        tuple(d.padding_low for d in window),
        tuple(d.padding_high for d in window),
        tuple(d.base_dilation or 1 for d in window),
        tuple(d.window_dilation or 1 for d in window),
    )


def _operands_and_inits(site: Site) -> tuple[Any, Any]:
    """The operands split into tensors and as many initial values."""
    operands = site.tensors()
    if not operands or len(operands) % 2:
        raise site.malformed(f"{len(operands)} operands, expected tensors and initial values")
    middle = len(operands) // 2
    return operands[:middle], operands[middle:]


def _reduce(site: Site) -> Value:
    xs, inits = _operands_and_inits(site)
    dimensions = tuple(sorted(site.proto.dimensions))
    results = site.results(ops.Reduce, xs, inits, dimensions, site.region())
    return results[0] if isinstance(site.type, TensorType) else results


def _reduce_window(site: Site) -> Value:
    xs, inits = _operands_and_inits(site)
    window = site.proto.window.dimensions
    sizes = tuple(d.size for d in window)
    results = site.results(
        ops.ReduceWindow, xs, inits, sizes, *_window_padding(window), site.region()
    )
    return results[0] if isinstance(site.type, TensorType) else results


def _select_and_scatter(site: Site) -> Value:
    x, source, init = site.tensors(3)
    window = site.proto.window.dimensions
    stride, low, high, *_ = _window_padding(window)
    if any(d.window_dilation > 1 or d.base_dilation > 1 for d in window):
        raise site.reject("select-and-scatter has no dilation")
    return site.make(
        ops.SelectAndScatter,
        x,
        source,
        init,
        tuple(d.size for d in window),
        stride,
        low,
        high,
        site.region(0, 2),
        site.region(1, 2),
    )


def _rng_bit_generator(site: Site) -> Value:
    (state,) = site.tensors(1)
    declared = site.type
    if not isinstance(declared, TupleType) or len(declared.elements) != 2:
        raise site.reject(f"the result must be (state, bits), not {declared}")
    bits = declared.elements[1]
    if site.proto.rng_algorithm not in range(len(_ALGORITHMS)):
        raise site.malformed(f"random algorithm {site.proto.rng_algorithm}")
    if not isinstance(bits, TensorType):
        raise site.reject(f"the bits must be a tensor, not {bits}")
    return site.results(ops.RngBits, state, bits, _ALGORITHMS[site.proto.rng_algorithm])


def _rng(site: Site) -> Value:
    a, b = site.tensors(2)
    distribution = _DISTRIBUTIONS.get(site.proto.distribution)
    if distribution is None:
        raise site.malformed(f"random distribution {site.proto.distribution}")
    return site.make(ops.RngUniform, a, b, site.tensor_type, distribution)


def _fft(site: Site) -> Value:
    (x,) = site.tensors(1)
    if site.proto.fft_type not in range(len(_FFT_KINDS)):
        raise site.malformed(f"FFT type {site.proto.fft_type}")
    return site.make(ops.Fft, x, _FFT_KINDS[site.proto.fft_type], tuple(site.proto.fft_length))


def _triangular_solve(site: Site) -> Value:
    a, b = site.tensors(2)
    options = site.proto.triangular_solve
    transpose = _TRANSPOSES.get(options.transpose)
    if transpose is None:
        raise site.malformed(f"transpose option {options.transpose}")
    flags = (options.left_side, options.lower, options.unit_diagonal)
    return site.make(ops.TriangularSolve, a, b, *flags, transpose)


def _cholesky(site: Site) -> Value:
    (x,) = site.tensors(1)
    return site.make(ops.Cholesky, x, site.proto.cholesky.lower)


CONTRACTION: dict[str, Importer] = {
    "dot": _dot,
    "ragged-dot": _ragged_dot,
    "convolution": _convolution,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "select-and-scatter": _select_and_scatter,
    "rng-bit-generator": _rng_bit_generator,
    "rng": _rng,
    "fft": _fft,
    "triangular-solve": _triangular_solve,
    "cholesky": _cholesky,
}
