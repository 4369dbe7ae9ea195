"""Operations that move elements without computing: broadcast, reshape, slice, pad, join."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from glia.graph.ir import Node, TensorType, Type, op
from glia.graph.type_rules import (
    require,
    require_dimensions,
    require_length,
    require_scalar,
    tensor,
)

Array = np.ndarray[Any, Any]


@op
class Broadcast(Node):
    """Replicate: dimension i of x becomes dimension `dimensions[i]` (extent 1 stretches)."""

    x: Node
    result_shape: tuple[int, ...]
    dimensions: tuple[int, ...]
    opcode: ClassVar[str] = "broadcast"

    def infer(self) -> Type:
        source = tensor(self.x)
        require_length(self.dimensions, len(source.shape), "broadcast dimensions")
        require_dimensions(self.dimensions, len(self.result_shape), "broadcast dimensions")
        for extent, dimension in zip(source.shape, self.dimensions, strict=True):
            fits = extent in (1, self.result_shape[dimension])
            require(fits, f"cannot broadcast {source} to {list(self.result_shape)} by "
                          f"{list(self.dimensions)}")  # fmt: skip
        return TensorType(source.dtype, self.result_shape)

    def compute(self, x: Array) -> Array:
        order = sorted(range(x.ndim), key=lambda i: self.dimensions[i])
        aligned = [1] * len(self.result_shape)
        for extent, dimension in zip(x.shape, self.dimensions, strict=True):
            aligned[dimension] = extent
        return np.broadcast_to(np.transpose(x, order).reshape(aligned), self.result_shape)


@op
class Reshape(Node):
    """The same elements in row-major order under another shape."""

    x: Node
    result_shape: tuple[int, ...]
    opcode: ClassVar[str] = "reshape"

    def infer(self) -> Type:
        source, result = tensor(self.x), TensorType(tensor(self.x).dtype, self.result_shape)
        same = source.elements == result.elements
        require(same, f"{source} has {source.elements} elements, {result} {result.elements}")
        return result

    def compute(self, x: Array) -> Array:
        return x.reshape(self.result_shape)


@op
class Transpose(Node):
    """Permute dimensions: result dimension i is operand dimension `permutation[i]`."""

    x: Node
    permutation: tuple[int, ...]
    opcode: ClassVar[str] = "transpose"

    def infer(self) -> Type:
        source = tensor(self.x)
        require_length(self.permutation, len(source.shape), "permutation")
        require_dimensions(self.permutation, len(source.shape), "permutation")
        return TensorType(source.dtype, tuple(source.shape[d] for d in self.permutation))

    def compute(self, x: Array) -> Array:
        return np.transpose(x, self.permutation)


@op
class Slice(Node):
    """The elements start, start+stride, ... < limit of every dimension."""

    x: Node
    start: tuple[int, ...]
    limit: tuple[int, ...]
    stride: tuple[int, ...]
    opcode: ClassVar[str] = "slice"

    def infer(self) -> Type:
        source = tensor(self.x)
        for name in ("start", "limit", "stride"):
            require_length(getattr(self, name), len(source.shape), f"slice {name}")
        bounds = list(zip(self.start, self.limit, self.stride, strict=True))
        for extent, (start, limit, stride) in zip(source.shape, bounds, strict=True):
            fits = 0 <= start <= limit <= extent and stride > 0
            require(fits, f"slice {start}:{limit}:{stride} of extent {extent}")
        shape = tuple(-(-(limit - start) // stride) for start, limit, stride in bounds)
        return TensorType(source.dtype, shape)

    def compute(self, x: Array) -> Array:
        return x[tuple(map(slice, self.start, self.limit, self.stride))]


@op
class Reverse(Node):
    """Reverse the order of elements along the given dimensions."""

    x: Node
    dimensions: tuple[int, ...]
    opcode: ClassVar[str] = "reverse"

    def infer(self) -> Type:
        source = tensor(self.x)
        require_dimensions(self.dimensions, len(source.shape), "reversed dimensions")
        return source

    def compute(self, x: Array) -> Array:
        return np.flip(x, self.dimensions)


@op
class Pad(Node):
    """Pad with a scalar before (`low`), after (`high`), between elements; negative edges crop."""

    x: Node
    value: Node
    low: tuple[int, ...]
    high: tuple[int, ...]
    interior: tuple[int, ...]
    opcode: ClassVar[str] = "pad"

    def infer(self) -> Type:
        source = tensor(self.x)
        require_scalar(self.value, source.dtype, "the padding value")
        for name in ("low", "high", "interior"):
            require_length(getattr(self, name), len(source.shape), f"pad {name}")
        padding = zip(source.shape, self.low, self.high, self.interior, strict=True)
        shape = [low + n + max(0, n - 1) * between + high for n, low, high, between in padding]
        require(min(self.interior, default=0) >= 0, f"interior padding {self.interior} is negative")
        require(min(shape, default=0) >= 0, f"padding {source} crops it to {shape}")
        return TensorType(source.dtype, tuple(shape))

    def compute(self, x: Array, value: Array) -> Array:
        assert isinstance(self.type, TensorType)
        return pad(x, value, self.type.shape, self.low, tuple(i + 1 for i in self.interior))


def pad(
    x: Array, value: Array, shape: tuple[int, ...], low: tuple[int, ...], step: tuple[int, ...]
) -> Array:
    """An array of `shape` full of `value`, with element i of x at `low + i * step` where inside."""
    result = np.full(shape, value, x.dtype)
    source, target = [], []
    for extent, size, first, stride in zip(x.shape, shape, low, step, strict=True):
        begin = max(0, -(first // stride))
        end = max(begin, min(extent, -((first - size) // stride)))
        source.append(slice(begin, end))
        at = first + begin * stride
        target.append(slice(at, at + (end - begin) * stride, stride) if end > begin else slice(0))
    result[tuple(target)] = x[tuple(source)]
    return result


@op
class Concatenate(Node):
    """Join tensors along one dimension."""

    parts: tuple[Node, ...]
    dimension: int
    opcode: ClassVar[str] = "concatenate"

    def infer(self) -> Type:
        require(bool(self.parts), "concatenate needs at least one tensor")
        kinds = [tensor(part) for part in self.parts]
        first, axis = kinds[0], self.dimension
        require_dimensions((axis,), len(first.shape), "concatenate dimension")
        for kind in kinds:
            same_rank = len(kind.shape) == len(first.shape)
            fits = (
                kind.dtype is first.dtype
                and same_rank
                and all(
                    kind.shape[d] == first.shape[d] for d in range(len(first.shape)) if d != axis
                )
            )
            require(fits, f"cannot concatenate {kind} to {first} along {axis}")
        extent = sum(kind.shape[axis] for kind in kinds)
        return TensorType(first.dtype, (*first.shape[:axis], extent, *first.shape[axis + 1 :]))

    def compute(self, *arrays: Array) -> Array:
        return np.concatenate(arrays, axis=self.dimension)
