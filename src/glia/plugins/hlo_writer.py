"""HLO operations as methods: each adds one instruction and infers the type of its result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glia.base.dtype import C64, F32, PRED, DType, float_limits, integer_limits
from glia.frontend.hlo_import.hlo_proto import messages
from glia.graph.ir import TensorType
from glia.plugins.hlo_module import Computation, HloValue

Number = bool | int | float | complex

_KINDS_OF_ORDER = {"float": "FLOAT", "signed": "SIGNED", "unsigned": "UNSIGNED", "pred": "UNSIGNED"}
_FFT_NUMBERS = {"fft": 0, "ifft": 1, "rfft": 2, "irfft": 3}
_THREE_FRY = 1


@dataclass(frozen=True)
class Window:
    """The window of a convolution or of pooling, with a value for each of its dimensions."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    x_dilation: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    is_reversed: bool = False

    def proto(self) -> Any:
        """The window in a module."""
        found = messages()["Window"]()
        for d, size in enumerate(self.size):
            found.dimensions.add(
                size=size,
                stride=self.stride[d],
                padding_low=self.low[d],
                padding_high=self.high[d],
                base_dilation=self.x_dilation[d] if self.x_dilation else 1,
                window_dilation=self.dilation[d] if self.dilation else 1,
                window_reversal=self.is_reversed,
            )
        return found

    def positions(self, extents: Sequence[int]) -> tuple[int, ...]:
        """How many positions the window has along dimensions of these extents."""
        found = []
        for d, extent in enumerate(extents):
            starts = self._start_range(d, extent) + self.high[d]
            found.append(max(0, starts // self.stride[d] + 1))
        return tuple(found)

    def reaching(self, extents: Sequence[int], positions: Sequence[int]) -> Window:
        """The window with so much above these extents as so many positions need."""
        high = tuple(
            (count - 1) * self.stride[d] - self._start_range(d, extents[d])
            for d, count in enumerate(positions)
        )
        return replace(self, high=high)

    def _start_range(self, d: int, extent: int) -> int:
        """How far the window moves along a dimension of an extent that nothing lies above."""
        step = self.x_dilation[d] if self.x_dilation else 1
        reach = (self.size[d] - 1) * (self.dilation[d] if self.dilation else 1) + 1
        return max(0, (extent - 1) * step + 1) + self.low[d] - reach


class HloWriter:
    """Adds operations to a computation. Tensors of an operation have one dtype unless it says so.

    Operands of binary operations have one shape; `expand` repeats a tensor to another.
    """

    def __init__(self, computation: Computation) -> None:
        self.computation = computation

    # --- constants -------------------------------------------------------------------------------

    def constant(self, array: Any, dtype: DType) -> HloValue:
        """A constant of any shape."""
        return self.computation.constant(np.asarray(array).astype(dtype.numpy))

    def splat(self, value: Number, kind: TensorType) -> HloValue:
        """One number everywhere."""
        return self.broadcast(self.constant(value, kind.dtype), kind.shape, ())

    def filled_like(self, value: Number, x: HloValue) -> HloValue:
        """One number everywhere, of the type of x."""
        return self.splat(value, x.type)

    def lowest(self, dtype: DType) -> HloValue:
        """The scalar that no value is less than: -inf, or the least integer."""
        if dtype.is_float:
            return self.constant(-np.inf, dtype)
        return self.constant(False if dtype is PRED else integer_limits(dtype.numpy).min, dtype)

    def highest(self, dtype: DType) -> HloValue:
        """The scalar that no value is greater than: inf, or the greatest integer."""
        if dtype.is_float:
            return self.constant(np.inf, dtype)
        return self.constant(True if dtype is PRED else integer_limits(dtype.numpy).max, dtype)

    def greatest_finite(self, dtype: DType) -> float:
        """The greatest finite number of a float dtype."""
        return float(float_limits(dtype.numpy).max)

    def iota(self, kind: TensorType, dimension: int) -> HloValue:
        """Each element's index along a dimension."""
        return self.computation.add("iota", kind, dimensions=[dimension])

    # --- element by element ----------------------------------------------------------------------

    def unary(self, opcode: str, x: HloValue, dtype: DType | None = None) -> HloValue:
        """A function of every element, of the dtype of x unless another is given."""
        return self.computation.add(opcode, TensorType(dtype or x.dtype, x.shape), [x])

    def binary(self, opcode: str, x: HloValue, y: HloValue) -> HloValue:
        """A function of pairs of elements."""
        return self.computation.add(opcode, x.type, [x, y])

    def add(self, x: HloValue, y: HloValue) -> HloValue:
        return self.binary("add", x, y)

    def subtract(self, x: HloValue, y: HloValue) -> HloValue:
        return self.binary("subtract", x, y)

    def multiply(self, x: HloValue, y: HloValue) -> HloValue:
        return self.binary("multiply", x, y)

    def divide(self, x: HloValue, y: HloValue) -> HloValue:
        return self.binary("divide", x, y)

    def compare(self, direction: str, x: HloValue, y: HloValue) -> HloValue:
        """EQ, NE, LT, LE, GT or GE of pairs of elements, as pred."""
        return self.computation.add(
            "compare",
            TensorType(PRED, x.shape),
            [x, y],
            comparison_direction=direction,
            comparison_type=_KINDS_OF_ORDER.get(x.dtype.kind.value, "FLOAT"),
        )

    def compare_to(self, direction: str, x: HloValue, value: Number) -> HloValue:
        """A comparison of every element with one number."""
        return self.compare(direction, x, self.filled_like(value, x))

    def select(self, predicate: HloValue, on_true: HloValue, on_false: HloValue) -> HloValue:
        """Elements of one of two tensors."""
        return self.computation.add("select", on_true.type, [predicate, on_true, on_false])

    def convert(self, x: HloValue, dtype: DType) -> HloValue:
        """x in another dtype; complex numbers lose their imaginary part."""
        if x.dtype is dtype:
            return x
        if x.dtype.is_complex and not dtype.is_complex:
            x = self.unary("real", x, F32)
        return self.unary("convert", x, dtype)

    def bitcast(self, x: HloValue, dtype: DType) -> HloValue:
        """The bits of x as elements of another dtype of their width."""
        return self.unary("bitcast-convert", x, dtype)

    # --- shapes ----------------------------------------------------------------------------------

    def broadcast(self, x: HloValue, shape: Sequence[int], dimensions: Sequence[int]) -> HloValue:
        """x whose dimension i is dimension `dimensions[i]` of a shape, repeated over the others."""
        shape = tuple(shape)
        if x.shape == shape and tuple(dimensions) == tuple(range(len(shape))):
            return x
        kind = TensorType(x.dtype, shape)
        return self.computation.add("broadcast", kind, [x], dimensions=dimensions)

    def expand(self, x: HloValue, shape: Sequence[int]) -> HloValue:
        """x per_dimension to a shape by the rules of NumPy."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        lead = len(shape) - x.rank
        kept = [d for d in range(x.rank) if x.shape[d] != 1 or shape[lead + d] == 1]
        narrow = self.reshape(x, [x.shape[d] for d in kept])
        return self.broadcast(narrow, shape, [lead + d for d in kept])

    def reshape(self, x: HloValue, shape: Sequence[int]) -> HloValue:
        """The elements of x in row-major order as another shape."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        return self.computation.add("reshape", TensorType(x.dtype, shape), [x])

    def transpose(self, x: HloValue, order: Sequence[int]) -> HloValue:
        """x whose dimension i is dimension `order[i]` of the operand."""
        if tuple(order) == tuple(range(x.rank)):
            return x
        kind = TensorType(x.dtype, tuple(x.shape[d] for d in order))
        return self.computation.add("transpose", kind, [x], dimensions=order)

    def slice(
        self, x: HloValue, start: Sequence[int], limit: Sequence[int], stride: Sequence[int] = ()
    ) -> HloValue:
        """Every stride-th element from start to limit."""
        stride = tuple(stride) or (1,) * x.rank
        bounds = list(zip(start, limit, stride, strict=True))
        shape = tuple(max(0, -(-(high - low) // step)) for low, high, step in bounds)
        if shape == x.shape and set(stride) <= {1}:
            return x
        cut = [
            messages()["SliceDimension"](start=low, limit=high, stride=step)
            for low, high, step in bounds
        ]
        return self.computation.add("slice", TensorType(x.dtype, shape), [x], slice_dimensions=cut)

    def slice_dimension(
        self, x: HloValue, dimension: int, start: int, limit: int, stride: int = 1
    ) -> HloValue:
        """A slice along one dimension."""
        starts, limits, strides = [0] * x.rank, list(x.shape), [1] * x.rank
        starts[dimension], limits[dimension], strides[dimension] = start, limit, stride
        return self.slice(x, starts, limits, strides)

    def pad(
        self,
        x: HloValue,
        value: HloValue,
        low: Sequence[int],
        high: Sequence[int],
        interior: Sequence[int] = (),
    ) -> HloValue:
        """x with a scalar before, after and between its elements; negative amounts cut off."""
        interior = tuple(interior) or (0,) * x.rank
        amounts = list(zip(low, high, interior, strict=True))
        if not any(any(each) for each in amounts):
            return x
        padding = messages()["Padding"]()
        shape = []
        for extent, (before, after, between) in zip(x.shape, amounts, strict=True):
            padding.dimensions.add(low=before, high=after, interior=between)
            shape.append(before + extent + max(0, extent - 1) * between + after)
        kind = TensorType(x.dtype, tuple(shape))
        return self.computation.add("pad", kind, [x, value], padding=padding)

    def concatenate(self, xs: Sequence[HloValue], dimension: int) -> HloValue:
        """Tensors one after the other along a dimension."""
        if len(xs) == 1:
            return xs[0]
        shape = list(xs[0].shape)
        shape[dimension] = sum(x.shape[dimension] for x in xs)
        kind = TensorType(xs[0].dtype, tuple(shape))
        return self.computation.add("concatenate", kind, xs, dimensions=[dimension])

    def reverse(self, x: HloValue, dimensions: Sequence[int]) -> HloValue:
        """x backwards along dimensions."""
        return self.computation.add("reverse", x.type, [x], dimensions=dimensions)

    # --- contractions ----------------------------------------------------------------------------

    def dot(
        self,
        x: HloValue,
        y: HloValue,
        contract: tuple[int, int],
        batch: Sequence[int] = (),
        dtype: DType | None = None,
    ) -> HloValue:
        """Products summed over a dimension of each; the first dimensions of both may be a batch."""
        numbers = messages()["DotDimensions"](
            a_contract=[contract[0]], b_contract=[contract[1]], a_batch=batch, b_batch=batch
        )
        free = [x.shape[d] for d in range(x.rank) if d not in (contract[0], *batch)]
        free += [y.shape[d] for d in range(y.rank) if d not in (contract[1], *batch)]
        kind = TensorType(dtype or x.dtype, (*(x.shape[d] for d in batch), *free))
        return self.computation.add("dot", kind, [x, y], dot_dimensions=numbers)

    def ragged_dot(self, x: HloValue, y: HloValue, sizes: HloValue) -> HloValue:
        """Rows of x [rows, depth] in groups of these sizes, times y [groups, depth, columns]."""
        dot = messages()["DotDimensions"](a_contract=[1], b_contract=[1])
        numbers = messages()["RaggedDotDimensions"](dot=dot, a_ragged=[0], b_group=[0])
        kind = TensorType(x.dtype, (x.shape[0], y.shape[2]))
        return self.computation.add(
            "ragged-dot", kind, [x, y, sizes], ragged_dot_dimensions=numbers
        )

    def convolve(
        self,
        x: HloValue,
        kernel: HloValue,
        window: Window,
        *,
        groups: int = 1,
        batch_groups: int = 1,
    ) -> HloValue:
        """A convolution of x [batch, features, ...] by a kernel [outputs, features, ...]."""
        spatial = range(2, x.rank)
        numbers = messages()["ConvolutionDimensions"](
            input_batch=0, input_feature=1, input_spatial=spatial,
            kernel_output_feature=0, kernel_input_feature=1, kernel_spatial=spatial,
            output_batch=0, output_feature=1, output_spatial=spatial,
        )  # fmt: skip
        shape = (x.shape[0] // batch_groups, kernel.shape[0], *window.positions(x.shape[2:]))
        return self.computation.add(
            "convolution",
            TensorType(x.dtype, shape),
            [x, kernel],
            window=window.proto(),
            convolution_dimensions=numbers,
            feature_group_count=groups,
            batch_group_count=batch_groups,
        )

    # --- regions ---------------------------------------------------------------------------------

    def region(
        self, name: str, dtypes: Sequence[DType], body: Callable[..., Sequence[HloValue]]
    ) -> int:
        """A computation on scalars, which `body` writes with a writer and the scalars."""
        inner = Computation(self.computation.module, name)
        scalars = [inner.parameter(TensorType(dtype)) for dtype in dtypes]
        results = body(HloWriter(inner), *scalars)
        return inner.end(results, is_tuple=len(results) > 1)

    def combiner(self, opcode: str, dtype: DType) -> int:
        """The computation that applies a binary operation to two scalars."""
        return self.region(opcode, (dtype, dtype), lambda b, x, y: [b.binary(opcode, x, y)])

    def reduce(
        self, opcode: str, x: HloValue, init: HloValue, dimensions: Sequence[int]
    ) -> HloValue:
        """A binary operation over all elements along dimensions, which the result lacks."""
        if not dimensions:
            return x
        shape = tuple(extent for d, extent in enumerate(x.shape) if d not in dimensions)
        return self.computation.add(
            "reduce",
            TensorType(x.dtype, shape),
            [x, init],
            [self.combiner(opcode, x.dtype)],
            dimensions=sorted(dimensions),
        )

    def sum(self, x: HloValue, dimensions: Sequence[int]) -> HloValue:
        """The sums along dimensions."""
        return self.reduce("add", x, self.constant(0, x.dtype), dimensions)

    def reduce_several(
        self,
        xs: Sequence[HloValue],
        inits: Sequence[HloValue],
        dimensions: Sequence[int],
        body: Callable[..., Sequence[HloValue]],
    ) -> tuple[HloValue, ...]:
        """A reduction of several tensors at once; `body` combines tuples of scalars."""
        dtypes = [x.dtype for x in xs]
        region = self.region("combine", (*dtypes, *dtypes), body)
        shape = tuple(extent for d, extent in enumerate(xs[0].shape) if d not in dimensions)
        kinds = [TensorType(dtype, shape) for dtype in dtypes]
        return self.computation.add_tuple(
            "reduce", kinds, [*xs, *inits], [region], dimensions=dimensions
        )

    def reduce_window(self, opcode: str, x: HloValue, init: HloValue, window: Window) -> HloValue:
        """A binary operation over the elements of each position of a window."""
        kind = TensorType(x.dtype, window.positions(x.shape))
        region = self.combiner(opcode, x.dtype)
        return self.computation.add(
            "reduce-window", kind, [x, init], [region], window=window.proto()
        )

    def reduce_several_windows(
        self,
        xs: Sequence[HloValue],
        inits: Sequence[HloValue],
        window: Window,
        body: Callable[..., Sequence[HloValue]],
    ) -> tuple[HloValue, ...]:
        """A reduction of the windows of several tensors at once."""
        dtypes = [x.dtype for x in xs]
        region = self.region("combine", (*dtypes, *dtypes), body)
        kinds = [TensorType(dtype, window.positions(xs[0].shape)) for dtype in dtypes]
        return self.computation.add_tuple(
            "reduce-window", kinds, [*xs, *inits], [region], window=window.proto()
        )

    def select_and_scatter(self, x: HloValue, source: HloValue, window: Window) -> HloValue:
        """Each element of source added where the first greatest of its window of x is."""
        at_least = self.region(
            "at_least", (x.dtype, x.dtype), lambda b, x, y: [b.compare("GE", x, y)]
        )
        return self.computation.add(
            "select-and-scatter",
            x.type,
            [x, source, self.constant(0, x.dtype)],
            [at_least, self.combiner("add", x.dtype)],
            window=window.proto(),
        )

    def sort(
        self, xs: Sequence[HloValue], dimension: int, precedes: Callable[..., HloValue]
    ) -> tuple[HloValue, ...]:
        """Tensors in a stable order of the first; `precedes` compares two scalars of it."""
        dtypes = [each for x in xs for each in (x.dtype, x.dtype)]
        region = self.region("precedes", dtypes, lambda b, *s: [precedes(b, s[0], s[1])])
        attributes = {"dimensions": [dimension], "is_stable": True}
        if len(xs) == 1:
            return (self.computation.add("sort", xs[0].type, xs, [region], **attributes),)
        kinds = [x.type for x in xs]
        return self.computation.add_tuple("sort", kinds, xs, [region], **attributes)

    # --- indices ---------------------------------------------------------------------------------

    def gather(
        self,
        x: HloValue,
        indices: HloValue,
        dimensions: Sequence[int],
        offsets: Sequence[int],
        batch: Sequence[int] = (),
    ) -> HloValue:
        """The slices of x at indices of some of its dimensions.

        The last dimension of indices has an index of each of `dimensions`. Others of x are whole in
        the result, at its dimensions `offsets`, or a batch, which indices have at the same place.
        """
        taken = {*dimensions, *batch}
        whole = [x.shape[d] for d in range(x.rank) if d not in taken]
        rest = iter(indices.shape[:-1])
        inner = iter(whole)
        rank = len(whole) + indices.rank - 1
        shape = tuple(next(inner) if d in offsets else next(rest) for d in range(rank))
        numbers = messages()["GatherDimensions"](
            offset_dims=offsets, collapsed_dims=sorted(dimensions), start_index_map=dimensions,
            index_vector_dim=indices.rank - 1, x_batch_dims=batch, indices_batch_dims=batch,
        )  # fmt: skip
        return self.computation.add(
            "gather",
            TensorType(x.dtype, shape),
            [x, indices],
            gather_dimensions=numbers,
            gather_slice_sizes=[1 if d in taken else x.shape[d] for d in range(x.rank)],
        )

    def scatter(
        self,
        x: HloValue,
        indices: HloValue,
        updates: HloValue,
        dimensions: Sequence[int],
        offsets: Sequence[int],
        combine: str = "",
        batch: Sequence[int] = (),
    ) -> HloValue:
        """x whose slices at indices are combined with updates, or replaced by them.

        Dimensions are those of `gather`, whose result has the shape of updates.
        """
        numbers = messages()["ScatterDimensions"](
            update_window_dims=offsets, inserted_window_dims=sorted(dimensions),
            scatter_dims=dimensions, index_vector_dim=indices.rank - 1,
            x_batch_dims=batch, indices_batch_dims=batch,
        )  # fmt: skip
        if combine:
            region = self.combiner(combine, x.dtype)
        else:
            region = self.region("replace", (x.dtype, x.dtype), lambda _b, _old, new: [new])
        return self.computation.add(
            "scatter", x.type, [x, indices, updates], [region], scatter_dimensions=numbers
        )

    # --- others ----------------------------------------------------------------------------------

    def fourier(self, kind: str, x: HloValue, lengths: Sequence[int]) -> HloValue:
        """A Fourier transform ("fft", "ifft", "rfft", "irfft") of the last dimensions."""
        outer = x.shape[: x.rank - len(lengths)]
        is_half = kind == "rfft"
        inner = (*lengths[:-1], lengths[-1] // 2 + 1) if is_half else tuple(lengths)
        dtype = F32 if kind == "irfft" else C64
        return self.computation.add(
            "fft",
            TensorType(dtype, (*outer, *inner)),
            [x],
            fft_type=_FFT_NUMBERS[kind],
            fft_length=lengths,
        )

    def random_bits(self, state: HloValue, kind: TensorType) -> tuple[HloValue, HloValue]:
        """The next state of a generator, u64[2], and random bits."""
        new, bits = self.computation.add_tuple(
            "rng-bit-generator", [state.type, kind], [state], rng_algorithm=_THREE_FRY
        )
        return new, bits

    def call(
        self, target: str, operands: Sequence[HloValue], kinds: Sequence[TensorType], config: bytes
    ) -> tuple[HloValue, ...]:
        """A custom call."""
        return self.computation.add_tuple(
            "custom-call", kinds, operands, custom_call_target=target, backend_config=config
        )


def product(extents: Sequence[int]) -> int:
    """How many elements a shape has."""
    return math.prod(extents)
