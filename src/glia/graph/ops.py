"""Every operation of the graph level, each declared once: operands, attributes, type, meaning."""

from __future__ import annotations

from typing import ClassVar

from glia.base.dtype import DType
from glia.graph.ir import Graph, Node, TensorType, Type, op


@op
class Constant(Node):
    """A literal tensor. The array is referenced, never printed."""

    value: object  # read-only np.ndarray
    opcode: ClassVar[str] = "constant"


@op
class Map(Node):
    """Apply a scalar function (`graph.scalar.FUNCTIONS`) element by element; no broadcasting."""

    function: str
    args: tuple[Node, ...]
    opcode: ClassVar[str] = "map"


@op
class Convert(Node):
    """Convert every element to another dtype (floats round to nearest even, to ints truncate)."""

    x: Node
    to: DType
    opcode: ClassVar[str] = "convert"


@op
class Bitcast(Node):
    """Reinterpret the bits as another dtype; a width change adds or removes the last dimension."""

    x: Node
    to: DType
    opcode: ClassVar[str] = "bitcast"


@op
class ReducePrecision(Node):
    """Round floats to a format with these exponent and mantissa bits, keeping the dtype."""

    x: Node
    exponent_bits: int
    mantissa_bits: int
    opcode: ClassVar[str] = "reduce_precision"


@op
class Iota(Node):
    """Count 0, 1, 2, ... along one dimension."""

    result: TensorType
    dimension: int
    opcode: ClassVar[str] = "iota"


@op
class Broadcast(Node):
    """Replicate: operand dimension i becomes result dimension `dimensions[i]` (extent 1 stretches)."""

    x: Node
    result_shape: tuple[int, ...]
    dimensions: tuple[int, ...]
    opcode: ClassVar[str] = "broadcast"


@op
class Reshape(Node):
    """The same elements in row-major order under another shape."""

    x: Node
    result_shape: tuple[int, ...]
    opcode: ClassVar[str] = "reshape"


@op
class Transpose(Node):
    """Permute dimensions: result dimension i is operand dimension `permutation[i]`."""

    x: Node
    permutation: tuple[int, ...]
    opcode: ClassVar[str] = "transpose"


@op
class Slice(Node):
    """The elements start, start+stride, ... < limit of every dimension."""

    x: Node
    start: tuple[int, ...]
    limit: tuple[int, ...]
    stride: tuple[int, ...]
    opcode: ClassVar[str] = "slice"


@op
class Reverse(Node):
    """Reverse the order of elements along the given dimensions."""

    x: Node
    dimensions: tuple[int, ...]
    opcode: ClassVar[str] = "reverse"


@op
class Pad(Node):
    """Pad with a scalar before (`low`), after (`high`) and between elements; negative edges crop."""

    x: Node
    value: Node
    low: tuple[int, ...]
    high: tuple[int, ...]
    interior: tuple[int, ...]
    opcode: ClassVar[str] = "pad"


@op
class Concatenate(Node):
    """Join tensors along one dimension."""

    parts: tuple[Node, ...]
    dimension: int
    opcode: ClassVar[str] = "concatenate"


@op
class Dot(Node):
    """General contraction; result dimensions are batch, free of a, free of b."""

    a: Node
    b: Node
    a_batch: tuple[int, ...]
    b_batch: tuple[int, ...]
    a_contract: tuple[int, ...]
    b_contract: tuple[int, ...]
    result_dtype: DType
    opcode: ClassVar[str] = "dot"


@op
class Convolution(Node):
    """N-d convolution in canonical layout.

    x is [batch, in_features, *spatial], kernel is [out_features, in_features / groups, *window], the
    result is [batch, out_features, *spatial] (the importer inserts transposes). `batch_groups` > 1
    contracts groups of the batch instead, as in XLA's batch_group_count.
    """

    x: Node
    kernel: Node
    stride: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    x_dilation: tuple[int, ...]
    kernel_dilation: tuple[int, ...]
    kernel_reversal: tuple[bool, ...]
    groups: int
    batch_groups: int
    result_dtype: DType
    opcode: ClassVar[str] = "convolution"


@op
class Reduce(Node):
    """Reduce dimensions of one or several tensors of one shape with an associative computation.

    `body` takes (accumulators..., elements...) scalars and returns the new accumulators. The result
    is a tensor for one operand, a tuple for several.
    """

    xs: tuple[Node, ...]
    inits: tuple[Node, ...]
    dimensions: tuple[int, ...]
    body: Graph
    opcode: ClassVar[str] = "reduce"


@op
class ReduceWindow(Node):
    """Reduce sliding windows of one or several tensors of one shape."""

    xs: tuple[Node, ...]
    inits: tuple[Node, ...]
    window: tuple[int, ...]
    stride: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    x_dilation: tuple[int, ...]
    window_dilation: tuple[int, ...]
    body: Graph
    opcode: ClassVar[str] = "reduce_window"


@op
class SelectAndScatter(Node):
    """Scatter `source` to the element that `select` picks in each window, combining with `scatter`."""

    x: Node
    source: Node
    init: Node
    window: tuple[int, ...]
    stride: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    select: Graph
    scatter: Graph
    opcode: ClassVar[str] = "select_and_scatter"


@op
class Gather(Node):
    """XLA gather: slices of x at clamped start indices."""

    x: Node
    indices: Node
    offset_dims: tuple[int, ...]
    collapsed_dims: tuple[int, ...]
    x_batch_dims: tuple[int, ...]
    indices_batch_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    index_vector_dim: int
    slice_sizes: tuple[int, ...]
    opcode: ClassVar[str] = "gather"


@op
class Scatter(Node):
    """XLA scatter: combine updates into x at indices; out-of-range updates are dropped."""

    xs: tuple[Node, ...]
    indices: Node
    updates: tuple[Node, ...]
    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    x_batch_dims: tuple[int, ...]
    indices_batch_dims: tuple[int, ...]
    scatter_dims: tuple[int, ...]
    index_vector_dim: int
    unique_indices: bool
    body: Graph
    opcode: ClassVar[str] = "scatter"


@op
class DynamicSlice(Node):
    """A slice whose scalar start indices are values, clamped to stay inside."""

    x: Node
    starts: tuple[Node, ...]
    slice_sizes: tuple[int, ...]
    opcode: ClassVar[str] = "dynamic_slice"


@op
class DynamicUpdateSlice(Node):
    """x with `update` written at scalar start indices, clamped to stay inside."""

    x: Node
    update: Node
    starts: tuple[Node, ...]
    opcode: ClassVar[str] = "dynamic_update_slice"


@op
class Sort(Node):
    """Sort one or several tensors of one shape along a dimension with a scalar comparator."""

    xs: tuple[Node, ...]
    dimension: int
    is_stable: bool
    comparator: Graph
    opcode: ClassVar[str] = "sort"


@op
class While(Node):
    """Repeat `body` while `condition` (one pred scalar) holds; state is a tuple of tensors."""

    state: tuple[Node, ...]
    condition: Graph
    body: Graph
    opcode: ClassVar[str] = "while"


@op
class Conditional(Node):
    """Run one of several branches of equal type; index is pred (true first) or s32 (clamped)."""

    index: Node
    branch_operands: tuple[Node, ...]  # all branches' operands, concatenated
    operand_counts: tuple[int, ...]
    branches: tuple[Graph, ...]
    opcode: ClassVar[str] = "conditional"


@op
class RngBits(Node):
    """XLA rng-bit-generator: (new state, bits)."""

    state: Node
    result: TensorType
    algorithm: str  # "default" | "three_fry" | "philox"
    opcode: ClassVar[str] = "rng_bits"


@op
class RngUniform(Node):
    """XLA rng: stateless samples, uniform in [a, b) or normal(a, b)."""

    a: Node
    b: Node
    result: TensorType
    distribution: str  # "uniform" | "normal"
    opcode: ClassVar[str] = "rng"


@op
class Fft(Node):
    """XLA fft over the last len(lengths) dimensions."""

    x: Node
    kind: str  # "fft" | "ifft" | "rfft" | "irfft"
    lengths: tuple[int, ...]
    opcode: ClassVar[str] = "fft"


@op
class TriangularSolve(Node):
    """Solve op(a) x = b or x op(a) = b for triangular a."""

    a: Node
    b: Node
    left_side: bool
    lower: bool
    unit_diagonal: bool
    transpose: str  # "no" | "transpose" | "adjoint"
    opcode: ClassVar[str] = "triangular_solve"


@op
class Cholesky(Node):
    """Cholesky factor of a symmetric positive-definite matrix."""

    x: Node
    lower: bool
    opcode: ClassVar[str] = "cholesky"


@op
class CustomCall(Node):
    """A call of a named target outside HLO."""

    args: tuple[Node, ...]
    target: str
    result: Type
    config: str
    opcode: ClassVar[str] = "custom_call"


@op
class Collective(Node):
    """all-reduce, all-gather, reduce-scatter, all-to-all, collective-permute, partition/replica id."""

    args: tuple[Node, ...]
    kind: str
    result: Type
    dimension: int
    replica_groups: tuple[tuple[int, ...], ...]
    pairs: tuple[tuple[int, int], ...]
    body: tuple[Graph, ...]
    opcode: ClassVar[str] = "collective"


@op
class Get(Node):
    """The index-th result of an operation with several."""

    x: Node
    index: int
    opcode: ClassVar[str] = "get"
