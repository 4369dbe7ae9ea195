"""One small program per graph operation and shape oddity, each with what JAX computes for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from glia.base.dtype import BF16, C64, F32, PRED, S8, S32, U8, U32, U64, DType, from_numpy
from glia.graph import ops
from glia.graph.ir import Graph, Node, Parameter, TensorType, TupleType

Array = np.ndarray[Any, Any]

bf16 = ml_dtypes.bfloat16
ADD, MAX = ops.combiner("add", F32), ops.combiner("maximum", F32)


@dataclass(frozen=True, eq=False)
class Case:
    """`build` makes a node from parameters; `reference` gives its value from the same arrays."""

    name: str
    build: Callable[..., Node]
    reference: Callable[..., Any]
    arrays: tuple[Array, ...]
    tolerance: float = 2e-6

    def __repr__(self) -> str:
        return self.name

    def graph(self) -> Graph:
        """The program as a graph whose results are the node's."""
        kinds = [TensorType(from_numpy(a.dtype), a.shape) for a in self.arrays]
        parameters = tuple(Parameter(i, kind, f"x{i}") for i, kind in enumerate(kinds))
        return Graph(self.name, parameters, ops.results_of(self.build(*parameters)))

    def expected(self) -> list[Array]:
        """What the reference computes, flattened."""
        return [np.asarray(value) for value in jax.tree.leaves(self.reference(*self.arrays))]


CASES: list[Case] = []


def _case(
    name: str,
    build: Callable[..., Node],
    reference: Callable[..., Any],
    *arrays: Array,
    tolerance: float = 2e-6,
) -> None:
    CASES.append(Case(name, build, reference, arrays, tolerance))


_RANDOM = np.random.default_rng(7)


def f32(*shape: int) -> Array:
    """Normal float32 numbers."""
    return _RANDOM.standard_normal(shape).astype(np.float32)


def s32(high: int, *shape: int) -> Array:
    """Integers from 0 below `high`."""
    return _RANDOM.integers(0, high, shape).astype(np.int32)


def scalar(value: float, dtype: DType = F32) -> Node:
    """A scalar constant."""
    return ops.Constant(np.array(value, dtype.numpy))


# --- element by element -----------------------------------------------------------------------

TABLE = f32(3, 2)
_case("constant", lambda: ops.Constant(TABLE), lambda: TABLE)
_case("splat", lambda: ops.Constant(np.full((2, 2), -np.inf, bf16)),
      lambda: np.full((2, 2), -np.inf, bf16))  # fmt: skip
_case("map", lambda a, b: ops.Map("add", (a, b)), lax.add, f32(3, 4), f32(3, 4))
_case("map_of_scalars", lambda a: ops.Map("tanh", (a,)), lax.tanh, f32())
_case("map_of_nothing", lambda a: ops.Map("exp", (a,)), lax.exp, f32(0, 4))
_case("convert", lambda a: ops.Convert(a, S32), lambda a: a.astype(np.int32), f32(3, 4) * 9)
_case("bitcast", lambda a: ops.Bitcast(a, U32),
      lambda a: lax.bitcast_convert_type(a, np.uint32), f32(3, 4))  # fmt: skip
_case("bitcast_to_narrow", lambda a: ops.Bitcast(a, U8),
      lambda a: lax.bitcast_convert_type(a, np.uint8), f32(3))  # fmt: skip
_case("bitcast_to_wide", lambda a: ops.Bitcast(a, F32),
      lambda a: lax.bitcast_convert_type(a, np.float32), f32(3, 2).astype(bf16))  # fmt: skip
for _exponent, _mantissa in ((8, 7), (5, 10), (4, 3), (5, 2), (8, 0), (2, 23)):
    _case(f"reduce_precision_{_exponent}_{_mantissa}",
          lambda a, e=_exponent, m=_mantissa: ops.ReducePrecision(a, e, m),
          lambda a, e=_exponent, m=_mantissa: lax.reduce_precision(a, e, m),
          np.concatenate([f32(20) * 300, f32(20) * 1e-6, np.array([np.inf, np.nan, -0.0, 65519,
                          65520, 3e38, 448, 464, 465], np.float32)]))  # fmt: skip
_case("reduce_precision_of_bf16", lambda a: ops.ReducePrecision(a, 5, 2),
      lambda a: lax.reduce_precision(a, 5, 2), (f32(30) * 3000).astype(bf16))  # fmt: skip
_case("iota", lambda: ops.Iota(TensorType(S32, (3, 4)), 1),
      lambda: lax.broadcasted_iota(np.int32, (3, 4), 1))  # fmt: skip
_case("iota_of_floats", lambda: ops.Iota(TensorType(BF16, (5,)), 0), lambda: lax.iota(bf16, 5))

# --- moving elements --------------------------------------------------------------------------

_case("broadcast", lambda a: ops.Broadcast(a, (2, 3, 4), (1,)),
      lambda a: lax.broadcast_in_dim(a, (2, 3, 4), (1,)), f32(3))  # fmt: skip
_case("broadcast_of_extent_one", lambda a: ops.Broadcast(a, (3, 4), (0, 1)),
      lambda a: jnp.broadcast_to(a, (3, 4)), f32(3, 1))  # fmt: skip
_case("broadcast_out_of_order", lambda a: ops.Broadcast(a, (4, 2, 3), (2, 0)),
      lambda a: jnp.broadcast_to(a.T[:, None, :], (4, 2, 3)), f32(3, 4))  # fmt: skip
_case("reshape", lambda a: ops.Reshape(a, (4, 3)), lambda a: a.reshape(4, 3), f32(2, 6))
_case("transpose", lambda a: ops.Transpose(a, (2, 0, 1)), lambda a: a.transpose(2, 0, 1),
      f32(2, 3, 4))  # fmt: skip
_case("slice", lambda a: ops.Slice(a, (1, 0), (6, 4), (2, 3)), lambda a: a[1:6:2, 0:4:3], f32(7, 4))
_case("empty_slice", lambda a: ops.Slice(a, (2,), (2,), (1,)), lambda a: a[2:2], f32(5))
_case("reverse", lambda a: ops.Reverse(a, (0, 2)), lambda a: a[::-1, :, ::-1], f32(2, 3, 4))
_case("concatenate", lambda a, b: ops.Concatenate((a, b, a), 1),
      lambda a, b: np.concatenate([a, b, a], 1), f32(2, 3), f32(2, 1))  # fmt: skip
for _low, _high, _interior in (
    ((1, 2), (0, 1), (0, 0)), ((-1, 0), (2, -2), (0, 0)), ((1, -2), (-1, 3), (2, 1)),
    ((-3, -4), (-2, -1), (1, 2)),
):  # fmt: skip
    _case(f"pad_{_low}_{_high}_{_interior}",
          lambda a, v, p=(_low, _high, _interior): ops.Pad(a, v, *p),
          lambda a, v, p=(_low, _high, _interior): lax.pad(a, v, list(zip(*p, strict=True))),
          f32(4, 5), f32())  # fmt: skip

# --- contractions -----------------------------------------------------------------------------


def _dot(dims: Any, result: DType, a: Array, b: Array, name: str, tolerance: float = 2e-5) -> None:
    (ca, cb), (ba, bb) = dims
    _case(
        f"dot_{name}",
        lambda x, y: ops.Dot(x, y, ba, bb, ca, cb, result),
        lambda x, y: lax.dot_general(x, y, dims, preferred_element_type=result.numpy),
        a, b, tolerance=tolerance,
    )  # fmt: skip


_dot((((1,), (0,)), ((), ())), F32, f32(4, 5), f32(5, 3), "plain")
_dot((((2, 0), (1, 2)), ((1,), (0,))), F32, f32(3, 2, 5), f32(2, 5, 3), "batched")
_dot((((), ()), ((), ())), F32, f32(3), f32(2), "outer")
_dot((((0,), (0,)), ((), ())), F32, f32(0), f32(0), "of_nothing")
_dot((((1,), (1,)), ((), ())), BF16, f32(4, 65).astype(bf16), f32(3, 65).astype(bf16), "bf16", 1e-2)
_dot((((1,), (1,)), ((), ())), F32, f32(4, 9).astype(bf16), f32(3, 9).astype(bf16), "bf16_to_f32")
_dot((((1,), (1,)), ((), ())), S32, s32(200, 4, 9).astype(np.int8), s32(99, 3, 9).astype(np.int8),
     "s8")  # fmt: skip
_dot((((1,), (0,)), ((), ())), S32, s32(2**30, 4, 5), s32(2**30, 5, 2), "s32_wraps")
_dot((((1,), (0,)), ((), ())), S8, s32(99, 4, 5).astype(np.int8), s32(99, 5, 2).astype(np.int8),
     "s8_wraps")  # fmt: skip


def _convolution(
    name: str, x: Array, kernel: Array, tolerance: float = 2e-5, **options: Any
) -> None:
    rank = x.ndim - 2
    ones = (1,) * rank
    stride, padding = options.get("stride", ones), options.get("padding", ((0, 0),) * rank)
    x_dilation, kernel_dilation = options.get("x_dilation", ones), options.get("dilation", ones)
    groups, batch_groups = options.get("groups", 1), options.get("batch_groups", 1)
    low, high = (tuple(p[i] for p in padding) for i in (0, 1))
    reversal = options.get("reversal", (False,) * rank)
    flipped = tuple(2 + d for d, is_reversed in enumerate(reversal) if is_reversed)
    _case(
        f"convolution_{name}",
        lambda a, b: ops.Convolution(a, b, stride, low, high, x_dilation, kernel_dilation,
                                     reversal, groups, batch_groups, a.dtype),
        lambda a, b: lax.conv_general_dilated(
            a, np.flip(b, flipped), stride, padding, x_dilation, kernel_dilation,
            feature_group_count=groups, batch_group_count=batch_groups),
        x, kernel, tolerance=tolerance,
    )  # fmt: skip


_convolution("2d", f32(2, 3, 6, 5), f32(4, 3, 3, 2), padding=((1, 1), (0, 2)), stride=(2, 1))
_convolution("1d_dilated", f32(2, 3, 9), f32(4, 3, 3), x_dilation=(2,), dilation=(3,))
_convolution("cropped", f32(1, 2, 9), f32(2, 2, 3), padding=((-1, -2),))
_convolution("pointwise", f32(2, 3, 4, 4), f32(5, 3, 1, 1))
_convolution("depthwise", f32(2, 4, 6), f32(4, 1, 3), groups=4)
_convolution("grouped", f32(2, 4, 6), f32(6, 2, 3), groups=2)
_convolution("batch_grouped", f32(4, 3, 6), f32(6, 3, 3), batch_groups=2)
_convolution("reversed", f32(1, 2, 5, 5), f32(3, 2, 3, 3), reversal=(True, False))
_convolution("wide_kernel", f32(2, 3, 8, 8), f32(4, 3, 7, 8))
_convolution("bf16", f32(1, 8, 6).astype(bf16), f32(4, 8, 3).astype(bf16), 2e-2)
_convolution("of_no_spatial_dimension", f32(3, 4), f32(2, 4))

# --- reductions -------------------------------------------------------------------------------


def _reduction(
    name: str, x: Array, axes: tuple[int, ...], init: float, tolerance: float = 2e-5
) -> None:
    dtype = from_numpy(x.dtype)
    functions = {"add": lax.add, "maximum": lax.max, "minimum": lax.min, "multiply": lax.mul,
                 "and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor}  # fmt: skip
    _case(
        f"reduce_{name}_of_{dtype}_over_{axes}",
        lambda a: ops.Reduce((a,), (scalar(init, dtype),), axes, ops.combiner(name, dtype)),
        lambda a: lax.reduce(a, np.array(init, a.dtype), functions[name], axes),
        x, tolerance=tolerance,
    )  # fmt: skip


_reduction("add", f32(3, 4, 5), (1,), 0)
_reduction("add", f32(3, 4, 5), (0, 2), 2.5)
_reduction("add", f32(3, 0), (1,), 2.5)
_reduction("add", f32(33).astype(bf16), (0,), 0, 2e-2)
_reduction("add", s32(9, 4, 5), (0, 1), 3)
_case("reduce_over_nothing", lambda a: ops.Reduce((a,), (scalar(1),), (), ADD), lambda a: 1 + a,
      f32(2, 2))  # fmt: skip
_reduction("maximum", f32(3, 4), (1,), -np.inf)
_reduction("maximum", f32(3, 4), (1,), 0.5)
_reduction("minimum", s32(99, 3, 4), (0,), 50)
_reduction("multiply", f32(3, 4), (0,), 2)
_reduction("or", np.array([[True, False], [False, False]]), (1,), False)
_reduction("and", s32(99, 3, 4), (1,), -1)
_reduction("xor", s32(99, 3, 4), (0,), 5)


def _argmax_body() -> Graph:
    """(value, index) pairs: the greater value, the lesser index among equals."""

    def body(v: Node, i: Node, w: Node, j: Node) -> tuple[Node, ...]:
        equal = ops.Map("equal", (v, w))
        first = ops.Map("and", (equal, ops.Map("less", (i, j))))
        keep = ops.Map("or", (ops.Map("greater", (v, w)), first))
        return ops.Map("select", (keep, v, w)), ops.Map("select", (keep, i, j))

    return ops.scalar_graph("argmax", (F32, S32, F32, S32), body)


def _argmax(a: Node) -> Node:
    index = ops.Iota(TensorType(S32, a.shape), 1)
    inits = (scalar(-np.inf), scalar(0, S32))
    return ops.Reduce((a, index), inits, (1,), _argmax_body())


_case("reduce_of_pairs", _argmax, lambda a: (a.max(1), a.argmax(1).astype(np.int32)),
      s32(4, 5, 7).astype(np.float32))  # fmt: skip
_case(
    "reduce_by_another_body",
    lambda a: ops.Reduce((a,), (scalar(1),), (0,), ops.scalar_graph(
        "smooth", (F32, F32), lambda a, b: ops.Map("add", (ops.Map("add", (a, b)),
                                                           ops.Map("multiply", (a, b)))))),
    lambda a: np.prod(1 + a, 0) * 2 - 1,
    f32(7, 3),
    tolerance=1e-4,
)  # fmt: skip


def _scan(name: str, factor: Array, x: Array, dimension: int, tolerance: float = 2e-5) -> None:
    functions = {"add": jnp.add, "maximum": jnp.maximum, "minimum": jnp.minimum,
                 "multiply": jnp.multiply}  # fmt: skip
    start = {"add": 0, "multiply": 1, "maximum": -np.inf, "minimum": np.inf}[name]

    def expected(factor: Array, x: Array) -> Any:
        rows = (np.moveaxis(each.astype(np.float32), dimension, 0) for each in (factor, x))
        states, state = [], jnp.full(np.delete(x.shape, dimension), start, np.float32)
        for a, b in zip(*rows, strict=True):
            state = functions[name](a * state, b)
            states.append(state)
        return jnp.stack(states, dimension).astype(x.dtype)

    _case(f"scan_{name}_{from_numpy(x.dtype)}_{dimension}",
          lambda a, b: ops.Scan(a, b, name, dimension), expected, factor, x,
          tolerance=tolerance)  # fmt: skip


_scan("add", f32(3, 20, 5), f32(3, 20, 5), 1)
_scan("add", f32(9, 130), f32(9, 130), 0)
_scan("add", f32(3, 11).astype(bf16), f32(3, 11).astype(bf16), 1, 2e-2)
for _name in ("multiply", "maximum", "minimum"):
    _scan(_name, np.ones((3, 20), np.float32), f32(3, 20), 1)
_scan("add", f32(3, 1), f32(3, 1), 1)


def _places(name: str, x: Array, count: int) -> None:
    _case(name, lambda a: ops.Places(a, count), lambda a: lax.top_k(a, count)[1], x)


_places("places", f32(3, 20), 5)
_places("places_of_equals", np.round(f32(2, 3, 40)) + 0.0, 17)
_places("places_of_few", f32(5, 3), 2)
_places("places_of_a_row", f32(30), 30)


def _window(name: str, x: Array, init: float, **options: Any) -> None:
    dtype, ones = from_numpy(x.dtype), (1,) * x.ndim
    window, stride = options["window"], options.get("stride", ones)
    padding = options.get("padding", ((0, 0),) * x.ndim)
    x_dilation, dilation = options.get("x_dilation", ones), options.get("dilation", ones)
    low, high = (tuple(p[i] for p in padding) for i in (0, 1))
    body = options.get("body", ops.combiner(name, dtype))
    functions = {"add": lax.add, "maximum": lax.max, "minimum": lax.min, "multiply": lax.mul}
    _case(
        f"reduce_window_{name}_{options.get('tag', window)}",
        lambda a: ops.ReduceWindow((a,), (scalar(init, dtype),), window, stride, low, high,
                                   x_dilation, dilation, body),
        lambda a: lax.reduce_window(a, np.array(init, a.dtype), functions[name], window, stride,
                                    padding, x_dilation, dilation),
        x, tolerance=2e-5,
    )  # fmt: skip


_HIDDEN_MAX = ops.scalar_graph(
    "max", (F32, F32), lambda a, b: ops.Map("select", (ops.Map("greater", (a, b)), a, b))
)
_window("maximum", f32(2, 7, 6), -np.inf, window=(1, 3, 2), stride=(1, 2, 2),
        padding=((0, 0), (1, 1), (0, 1)))  # fmt: skip
_window("add", f32(5, 6), 0, window=(3, 2), x_dilation=(2, 1), dilation=(2, 3))
_window("add", f32(9), 0, window=(9,), padding=((8, 0),), tag="cumulative")
_window("add", f32(9), 0, window=(3,), padding=((-1, -2),), tag="cropped")
_window("maximum", f32(7, 6), -np.inf, window=(3, 2), padding=((1, 2), (0, 1)), stride=(2, 1),
        x_dilation=(1, 2), body=_HIDDEN_MAX, tag="by_select")  # fmt: skip


def _pool_gradient(a: Node, source: Node) -> Node:
    greater = ops.scalar_graph("ge", (F32, F32), lambda a, b: ops.Map("greater_equal", (a, b)))
    return ops.SelectAndScatter(a, source, scalar(0), (3, 2), (2, 2), (1, 0), (1, 0), greater, ADD)


def _pool_gradient_reference(a: Array, source: Array) -> Any:
    def pool(a: Any) -> Any:
        return lax.reduce_window(a, -np.inf, lax.max, (3, 2), (2, 2), ((1, 1), (0, 0)))

    return jax.vjp(pool, a)[1](source)[0]


_case("select_and_scatter", _pool_gradient, _pool_gradient_reference, f32(7, 6), f32(4, 3))

# --- positions that are values ----------------------------------------------------------------


def _gather(name: str, x: Array, indices: Array, numbers: Any, sizes: tuple[int, ...]) -> None:
    _case(
        f"gather_{name}",
        lambda a, i: ops.Gather(a, i, numbers.offset_dims, numbers.collapsed_slice_dims,
                                numbers.operand_batching_dims, numbers.start_indices_batching_dims,
                                numbers.start_index_map, len(i.shape) - 1, sizes),
        lambda a, i: lax.gather(a, i, numbers, sizes, mode="clip"),
        x, indices,
    )  # fmt: skip


_gather("rows", f32(6, 4), s32(9, 3, 1) - 1,
        lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 4))  # fmt: skip
_gather("windows", f32(6, 5), s32(6, 2, 3, 2),
        lax.GatherDimensionNumbers((1, 3), (), (1, 0)), (2, 3))  # fmt: skip
_gather("batched", f32(3, 5, 4), s32(5, 2, 3, 1),
        lax.GatherDimensionNumbers((2,), (1,), (1,), (0,), (1,)), (1, 1, 4))  # fmt: skip
_gather("points", f32(4, 5), s32(6, 7, 2), lax.GatherDimensionNumbers((), (0, 1), (0, 1)), (1, 1))
_gather("of_bytes", s32(99, 6).astype(np.int8), s32(6, 2, 1).astype(np.uint32),
        lax.GatherDimensionNumbers((), (0,), (0,)), (1,))  # fmt: skip
_case("gather_scalar_index_vector",
      lambda a, i: ops.Gather(a, i, (0,), (0,), (), (), (0,), 1, (1, 4)), lambda a, i: a[i].T,
      f32(6, 4), np.array([2, 5, 0], np.int32))  # fmt: skip


def _scatter(
    name: str,
    x: Array,
    indices: Array,
    updates: Array,
    numbers: Any,
    how: str,
    body: Graph | None = None,
) -> None:
    functions = {"add": lax.scatter_add, "second": lax.scatter, "maximum": lax.scatter_max,
                 "multiply": lax.scatter_mul}  # fmt: skip
    dtype = from_numpy(x.dtype)
    second = ops.scalar_graph("second", (dtype, dtype), lambda a, b: b)
    region = body or (second if how == "second" else ops.combiner(how, dtype))
    _case(
        f"scatter_{name}_{how}",
        lambda a, i, u: ops.Scatter((a,), i, (u,), numbers.update_window_dims,
                                    numbers.inserted_window_dims, numbers.operand_batching_dims,
                                    numbers.scatter_indices_batching_dims,
                                    numbers.scatter_dims_to_operand_dims, len(i.shape) - 1, False,
                                    region),
        lambda a, i, u: functions[how](a, i, u, numbers, mode="drop"),
        x, indices, updates, tolerance=2e-5,
    )  # fmt: skip


_ROWS = lax.ScatterDimensionNumbers((1,), (0,), (0,))
_scatter("rows", f32(6, 4), s32(9, 8, 1) - 1, f32(8, 4), _ROWS, "add")
_scatter("rows", f32(6, 4), s32(9, 8, 1) - 1, f32(8, 4), _ROWS, "maximum", _HIDDEN_MAX)
_scatter("rows_in_order", f32(6, 4), s32(6, 8, 1), f32(8, 4), _ROWS, "second")
_scatter("rows_of_bf16", f32(6, 4).astype(bf16), np.arange(6, dtype=np.int32)[:, None],
         f32(6, 4).astype(bf16), _ROWS, "add")  # fmt: skip
_scatter("windows", f32(6, 5), s32(6, 4, 2), f32(4, 2, 3),
         lax.ScatterDimensionNumbers((1, 2), (), (0, 1)), "add")  # fmt: skip
_scatter("points", f32(4, 5), s32(6, 9, 2), f32(9),
         lax.ScatterDimensionNumbers((), (0, 1), (0, 1)), "multiply")  # fmt: skip
_scatter("batched", f32(3, 5), s32(5, 3, 2, 1), f32(3, 2),
         lax.ScatterDimensionNumbers((), (1,), (1,), (0,), (0,)), "add")  # fmt: skip

_case("dynamic_slice", lambda a, i, j: ops.DynamicSlice(a, (i, j), (2, 3)),
      lambda a, i, j: a[3:5, 0:3],
      f32(5, 6), np.array(4, np.int32), np.array(-3, np.int32))  # fmt: skip
_case("dynamic_update_slice", lambda a, u, i, j: ops.DynamicUpdateSlice(a, u, (i, j)),
      lambda a, u, i, j: lax.dynamic_update_slice(a, u, (i, j)),
      f32(5, 6), f32(2, 3), np.array(1, np.int32), np.array(9, np.int32))  # fmt: skip

# --- sorting ----------------------------------------------------------------------------------


def _comparator(name: str, *dtypes: DType) -> Graph:
    pairs = [dtype for dtype in dtypes for _ in range(2)]
    return ops.scalar_graph(name, pairs, lambda a, b, *_: ops.Map(name, (a, b)))


def _lexicographic() -> Graph:
    def body(a: Node, b: Node, c: Node, d: Node) -> Node:
        second = ops.Map("and", (ops.Map("equal", (a, b)), ops.Map("less", (c, d))))
        return ops.Map("or", (ops.Map("less", (a, b)), second))

    return ops.scalar_graph("lexicographic", (S32, S32, F32, F32), body)


def _by_magnitude() -> Graph:
    def body(a: Node, b: Node) -> Node:
        return ops.Map("less", (ops.Map("abs", (a,)), ops.Map("abs", (b,))))

    return ops.scalar_graph("magnitude", (F32, F32), body)


_case("sort", lambda a: ops.Sort((a,), 1, True, _comparator("less", F32)), lambda a: np.sort(a, 1),
      f32(3, 9))  # fmt: skip
_case("sort_descending", lambda a: ops.Sort((a,), 0, True, _comparator("greater", U8)),
      lambda a: np.sort(a, 0)[::-1], s32(200, 9, 2).astype(np.uint8))  # fmt: skip
_case("sort_in_total_order",
      lambda a: ops.Sort((a,), 0, True, _comparator("less_total_order", F32)), lax.sort,
      np.array([3, np.nan, -np.inf, 0, np.inf, -2], np.float32))  # fmt: skip
_case("sort_pairs", lambda a, b: ops.Sort((a, b), 1, True, _comparator("less", S32, F32)),
      lambda a, b: lax.sort((a, b), dimension=1, num_keys=1), s32(4, 3, 9), f32(3, 9))  # fmt: skip
_case("sort_by_two_keys", lambda a, b: ops.Sort((a, b), 1, True, _lexicographic()),
      lambda a, b: lax.sort((a, b), dimension=1, num_keys=2),
      s32(4, 3, 13), f32(3, 13))  # fmt: skip
_case("sort_by_magnitude", lambda a: ops.Sort((a,), 0, True, _by_magnitude()),
      lambda a: a[np.argsort(np.abs(a), kind="stable")], f32(17))  # fmt: skip

# --- control flow and calls -------------------------------------------------------------------


def _collatz(n: Node, steps: Node) -> Node:
    one, two, three = (scalar(value, S32) for value in (1, 2, 3))

    def condition(n: Node, _: Node) -> Node:
        return ops.Map("not_equal", (n, one))

    def body(n: Node, steps: Node) -> tuple[Node, ...]:
        odd = ops.Map("equal", (ops.Map("remainder", (n, two)), one))
        up = ops.Map("add", (ops.Map("multiply", (n, three)), one))
        new = ops.Map("select", (odd, up, ops.Map("divide", (n, two))))
        return new, ops.Map("add", (steps, one))

    kinds = (S32, S32)
    return ops.While((n, steps), ops.scalar_graph("condition", kinds, condition),
                     ops.scalar_graph("body", kinds, body))  # fmt: skip


_case("while", _collatz, lambda n, s: (np.int32(1), np.int32(111)),
      np.array(27, np.int32), np.array(0, np.int32))  # fmt: skip

_NEGATE = ops.scalar_graph("negate", (F32,), lambda a: ops.Map("negate", (a,)))
for _index in (-1, 0, 1, 2, 7):
    _case(f"conditional_{_index}",
          lambda i, a, b: ops.Conditional(i, (a, a, b, b), (1, 2, 1),
                                          (_NEGATE, ops.combiner("add", F32), _NEGATE)),
          lambda i, a, b: lax.switch(i if 0 <= i <= 2 else 2,
                                     [lambda: -a, lambda: a + b, lambda: -b]),
          np.array(_index, np.int32), f32(), f32())  # fmt: skip
for _truth in (True, False):
    _case(f"conditional_{_truth}",
          lambda p, a: ops.Conditional(p, (a, a), (1, 1), (_NEGATE, ops.scalar_graph(
              "square", (F32,), lambda a: ops.Map("square", (a,))))),
          lambda p, a: -a if p else a * a, np.array(_truth), f32())  # fmt: skip
_case("get", lambda a: ops.Get(_argmax(a), 1), lambda a: a.argmax(1).astype(np.int32), f32(3, 5))


def _collective(kind: str, args: tuple[Node, ...], dimension: int = -1, pairs: Any = ()) -> Node:
    body = (ADD,) if kind in ("all-reduce", "reduce-scatter") else ()
    result = args[0].type if args else TensorType(U32)
    return ops.Collective(args, kind, result, dimension, ((0,),), pairs, body)


for _kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-broadcast"):
    _case(_kind, lambda a, k=_kind: _collective(k, (a,), 0), lambda a: a, f32(3, 2))
_case("partition-id", lambda: _collective("partition-id", ()), lambda: np.uint32(0))
_case("permute_to_itself", lambda a: _collective("collective-permute", (a,), pairs=((0, 0),)),
      lambda a: a, f32(3))  # fmt: skip
_case("permute_from_nobody", lambda a: _collective("collective-permute", (a,), pairs=((0, 1),)),
      np.zeros_like, f32(3))  # fmt: skip

# --- random numbers, transforms, linear algebra -----------------------------------------------

_ALGORITHMS = {"default": lax.RandomAlgorithm.RNG_DEFAULT, "philox": lax.RandomAlgorithm.RNG_PHILOX,
               "three_fry": lax.RandomAlgorithm.RNG_THREE_FRY}  # fmt: skip


def _random_bits(state: Array, shape: tuple[int, ...], dtype: Any, algorithm: str) -> Any:
    with jax.enable_x64(True):
        return lax.rng_bit_generator(state, shape, dtype, _ALGORITHMS[algorithm])


for _algorithm, _dtype, _shape in (
    ("default", U32, (5, 2)), ("philox", U32, (7,)), ("philox", U64, (3, 3)), ("philox", U8, ()),
    ("three_fry", U32, (3, 4)), ("three_fry", U32, (5,)), ("three_fry", U64, (3,)),
    ("three_fry", U8, (2, 3)),
):  # fmt: skip
    _case(f"rng_bits_{_algorithm}_{_dtype}_{_shape}",
          lambda s, a=_algorithm, d=_dtype, n=_shape: ops.RngBits(s, TensorType(d, n), a),
          lambda s, a=_algorithm, d=_dtype, n=_shape: _random_bits(s, n, d.numpy, a),
          np.array([0x123456789ABCDEF0, 2**64 - 2], np.uint64))  # fmt: skip
_case("rng", lambda a, b: ops.RngUniform(a, b, TensorType(F32, (0, 4)), "uniform"),
      lambda a, b: np.zeros((0, 4), np.float32), f32(), f32())  # fmt: skip


def _complex(*shape: int) -> Array:
    return (f32(*shape) + 1j * f32(*shape)).astype(np.complex64)


_case("fft", lambda a: ops.Fft(a, "fft", (8,)), jnp.fft.fft, _complex(3, 8), tolerance=1e-5)
_case("ifft", lambda a: ops.Fft(a, "ifft", (4, 6)), lambda a: jnp.fft.ifft2(a), _complex(2, 4, 6),
      tolerance=1e-5)  # fmt: skip
_case("rfft", lambda a: ops.Fft(a, "rfft", (4, 6)), lambda a: jnp.fft.rfft2(a), f32(2, 4, 6),
      tolerance=1e-5)  # fmt: skip
_case("irfft", lambda a: ops.Fft(a, "irfft", (7,)), lambda a: jnp.fft.irfft(a, 7), _complex(2, 4),
      tolerance=1e-5)  # fmt: skip

_MATRIX = f32(2, 4, 4) + 4 * np.eye(4, dtype=np.float32)
_POSITIVE = (_MATRIX @ _MATRIX.transpose(0, 2, 1)).astype(np.float32)
for _left, _lower, _unit, _how in (
    (True, True, False, "no"), (True, False, True, "no"), (False, True, False, "transpose"),
    (False, False, False, "adjoint"), (True, True, True, "adjoint"),
):  # fmt: skip
    _case(f"triangular_solve_{_left}_{_lower}_{_unit}_{_how}",
          lambda a, b, o=(_left, _lower, _unit, _how): ops.TriangularSolve(a, b, *o),
          lambda a, b, o=(_left, _lower, _unit, _how): lax.linalg.triangular_solve(
              a, b, left_side=o[0], lower=o[1], unit_diagonal=o[2], transpose_a=o[3] != "no",
              conjugate_a=o[3] == "adjoint"),
          _MATRIX, f32(2, 4, 3) if _left else f32(2, 3, 4), tolerance=1e-4)  # fmt: skip
_case("cholesky", lambda a: ops.Cholesky(a, True), lambda a: np.linalg.cholesky(a), _POSITIVE,
      tolerance=1e-4)  # fmt: skip
_case("cholesky_upper", lambda a: ops.Cholesky(a, False),
      lambda a: np.linalg.cholesky(a).transpose(0, 2, 1), _POSITIVE, tolerance=1e-4)  # fmt: skip

CALL = Case(
    "custom_call",
    lambda a: ops.CustomCall((a,), "Nobody", TupleType((a.type, TensorType(PRED))), '{"k": 1}'),
    lambda a: (a, np.zeros((), bool)),
    (_complex(2).astype(C64.numpy),),
)
