"""Functions of nl that create tensors, query the grid, and loop."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from glia.nki.api import creation as core
from glia.nki.beta1.api.directives import MultiBuffer, no_reorder
from glia.nki.beta1.api.issue import operand
from glia.nki.beta1.errors import (
    AllocatedKernelLimit,
    HbmWithContents,
    SharedInLoop,
    UnsupportedHere,
)
from glia.nki.beta1.run.frame import Frame, require_frame
from glia.nki.beta1.run.iterations import open_record
from glia.nki.beta1.tensors.buffers import Buffer, sbuf, shared_hbm
from glia.nki.beta1.tensors.dtypes import to_dtype_name, to_numpy_dtype
from glia.nki.beta1.tensors.index import LoopIndex
from glia.nki.beta1.tensors.storage import Storage
from glia.nki.beta1.tensors.tensor import FUNCTIONS, Tensor
from glia.nki.names.enums import MemoryRegion
from glia.nki.session.session import caller, current
from glia.nki.tensors.nki_tensor import NkiTensor

INITIALISED = "Creating SBUF/PSUM tensor with init value is not supported in allocated NKI kernels."


class par_dim(int):  # noqa: N801, the name that kernels write
    """The extent of the partition dimension; the dimensions before it number blocks of tiles."""


def _new_tensor(
    shape: Any, dtype: Any, buffer: Any, name: str, fill: float | None = None
) -> Tensor:
    frame = require_frame("nl.ndarray")
    where = sbuf if buffer is None else buffer
    if not isinstance(where, Buffer):
        raise UnsupportedHere(
            what=f"buffer {buffer!r}",
            why="give nl.sbuf, nl.psum, nl.hbm, nl.shared_hbm or an allocator",
            loc=caller(),
        )
    if where.place_block is not None and frame.ignores_allocation:
        where = Buffer(where.region, where.name)
    if where.place_block is not None:
        where = frame.bodies[-1].first_iteration_value(caller(), where)
    blocks, sizes = _split_blocks(tuple(shape), where)
    stem = to_dtype_name(dtype)
    if fill is not None and not where.region.is_on_chip:
        raise HbmWithContents(loc=caller())
    if where.region is MemoryRegion.shared_hbm:
        if len(frame.bodies) > 1:
            raise SharedInLoop(loc=caller())
        return _shared_tensor(frame, sizes, stem, name)
    if where.place_block is not None and fill is not None:
        raise AllocatedKernelLimit(what=INITIALISED, loc=caller())
    label = frame.unique_name(name, where.name)
    return Tensor.of_storage(Storage(frame, label, where, stem, blocks, sizes, fill))


def _split_blocks(
    shape: tuple[Any, ...], buffer: Buffer
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(block dimensions, tile dimensions): split before the partition dimension, on chip only."""
    at = next((i for i, n in enumerate(shape) if isinstance(n, par_dim)), 0)
    sizes = tuple(int(n) for n in shape)
    least = 0 if buffer.region.is_on_chip else 1
    if not sizes or any(n < least for n in sizes):
        raise UnsupportedHere(
            what=f"a tensor of shape {sizes}",
            why=f"every dimension has {least} elements at least",
            loc=caller(),
        )
    if not buffer.region.is_on_chip:
        return (), sizes
    tile = sizes[at:]
    return sizes[:at], tile if len(tile) > 1 else (*tile, 1)


def _shared_tensor(frame: Frame, shape: tuple[int, ...], dtype: str, name: str) -> Tensor:
    """A tensor in shared HBM: the same one in every program of the grid."""
    position, frame.shared_count = frame.shared_count, frame.shared_count + 1
    if position < len(frame.shared):
        known = frame.shared[position]
        if known.shape == shape and known.dtype_name == dtype:
            return known
        raise UnsupportedHere(
            what="shared_hbm tensors that differ between programs",
            why="all programs share them, so make them before asking for nl.program_id",
            loc=caller(),
        )
    label = frame.unique_name(name, "output")
    made = Tensor.of_storage(Storage(frame, label, shared_hbm, dtype, (), shape))
    frame.shared.append(made)
    return made


def ndarray(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "") -> Tensor:
    """A tensor without contents; nl.par_dim marks the partitions, dimensions before are blocks."""
    return _new_tensor(shape, dtype, buffer, name)


def zeros(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "") -> Tensor:
    """A tensor of zeros; in PSUM the first product overwrites them."""
    return _new_tensor(shape, dtype, buffer, name, 0)


def ones(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "") -> Tensor:
    """A tensor of ones."""
    return _new_tensor(shape, dtype, buffer, name, 1)


def full(shape: Any, fill_value: Any, dtype: Any, *, buffer: Any = None, name: str = "") -> Tensor:
    """A tensor of one value."""
    value = np.asarray(fill_value).item()
    is_float = np.issubdtype(np.result_type(type(value)), np.floating)
    return _new_tensor(shape, dtype, buffer, name, value if is_float else int(value))


FUNCTIONS["full"] = full


def empty_like(a: Tensor, dtype: Any = None, *, buffer: Any = None, name: str = "") -> Tensor:
    """A tensor without contents; shape, and by default dtype and buffer, are those of `a`."""
    return _new_tensor(_shape_of(a), dtype or a.dtype, buffer or a.buffer, name)


def zeros_like(a: Tensor, dtype: Any = None, *, buffer: Any = None, name: str = "") -> Tensor:
    """A tensor of zeros; shape, and by default dtype and buffer, are those of `a`."""
    return _new_tensor(_shape_of(a), dtype or a.dtype, buffer or a.buffer, name, 0)


def _shape_of(a: Tensor) -> tuple[int, ...]:
    at = len(a.block_dims)
    return tuple(par_dim(n) if i == at else n for i, n in enumerate(a.shape))


def wrap_core_tensor(frame: Frame, tensor: NkiTensor, name: str, buffer: Buffer) -> Tensor:
    """A Beta 1 tensor of a core tensor."""
    return Tensor.of_storage(Storage.wrap(frame, tensor, name, buffer))


def shared_constant(constant: Any, dtype: Any = None) -> Tensor:
    """A tensor in HBM that holds an array of the host from the start, in a dtype."""
    frame = require_frame("nl.shared_constant")
    frame.flush()
    array = np.asarray(constant)
    name = to_dtype_name(array.dtype if dtype is None else dtype)
    widens = frame.session.widens_floats and not np.issubdtype(to_numpy_dtype(name), np.integer)
    is_wide = (widens and name != "bool") or name == "tfloat32"
    stored = np.float32 if is_wide else to_numpy_dtype(name)
    held = core.shared_constant(np.ascontiguousarray(array.astype(stored)))
    labelled = held._derive(held.dims, dtype=name)
    return wrap_core_tensor(frame, labelled, frame.unique_name("", "constant"), shared_hbm)


def shared_identity_matrix(n: int, dtype: Any = np.uint8) -> Tensor:
    """The identity of n rows, in HBM."""
    return shared_constant(np.eye(int(n)), dtype=dtype)


def rand(shape: Any, dtype: Any = np.float32) -> Tensor:
    """A tile of random numbers, uniform in [0, 1)."""
    frame = require_frame("nl.rand")
    frame.flush()
    made = core.rand(tuple(int(n) for n in shape), to_dtype_name(dtype))
    return wrap_core_tensor(frame, made, frame.unique_name("", "rand"), sbuf)


def random_seed(seed: Any, *, mask: Any = None) -> None:
    """Seed the generator of nl.rand with a number, or one element of 32 bits."""
    frame = require_frame("nl.random_seed")
    if not isinstance(seed, Tensor):
        value = int(seed)
        seed = full((1, 1), value, np.int32)
    elif seed.dtype_name not in ("int32", "uint32", "float32"):
        seed = seed.astype(np.int32)
    if mask is not False:
        core.random_seed(operand("random_seed", "seed", seed))
    frame.flush()


# --- the grid ------------------------------------------------------------------------------------


def program_id(axis: int = 0) -> int:
    """The number of this program along an axis of the grid."""
    frame = require_frame("nl.program_id")
    if not -len(frame.grid) <= axis < len(frame.grid):
        raise UnsupportedHere(
            what=f"axis {axis} of a grid of {len(frame.grid)}",
            why="launch the kernel as kernel[...] with that many dimensions",
            loc=caller(),
        )
    return frame.position[axis]


def num_programs(axes: Any = None) -> int:
    """How many programs run along axes of the grid, all without any; 1 without a grid."""
    grid = require_frame("nl.num_programs").grid
    chosen = (
        range(len(grid)) if axes is None else axes if isinstance(axes, tuple | list) else (axes,)
    )
    return math.prod(grid[axis] for axis in chosen)


def program_ndim() -> int:
    """Dimensions of the grid; 0 without one."""
    return len(require_frame("nl.program_ndim").grid)


class NcDim(int):
    """A dimension of the grid, or a part of one, that lies on several physical cores."""


def nc(cores: int) -> NcDim:
    """`cores` programs of the grid, each on a physical core of its own."""
    return NcDim(cores)


def spmd_dim(*parts: int) -> int:
    """A dimension of the grid made of several, some of which may be nl.nc(...)."""
    return math.prod(int(part) for part in parts)


# --- loops ---------------------------------------------------------------------------------------


def _loop_indices(args: tuple[Any, ...]) -> Iterator[LoopIndex]:
    for position, value in enumerate(range(*(int(each) for each in args))):
        index = LoopIndex(value)
        index.is_first = position == 0
        yield index


def _traced_loop(
    args: tuple[Any, ...], place: Any, *, is_affine: bool = False
) -> Iterator[LoopIndex]:
    """The indices of a loop whose body is traced once."""
    frame = require_frame("nl.affine_range")
    with frame.loop(place, is_affine=is_affine) as body:
        record = open_record(frame, body, place) if is_affine else None
        for index in _loop_indices(args):
            body.begin()
            if record is not None:
                record.begin()
            yield index
            frame.flush()
        if record is not None:
            record.end()


def affine_range(*args: Any, directives: Any = None) -> Iterator[LoopIndex]:
    """range(start, stop, step): iterations that may run in any order; here they run forward."""
    _apply_directives("nl.affine_range", directives)
    return _traced_loop(args, caller(), is_affine=True)


def sequential_range(
    *args: Any, directives: Any = None, body_no_reorder: bool = False
) -> Iterator[LoopIndex]:
    """range(start, stop, step): iterations that run one after the other.

    `directives` is ncc.multi_buffer(...), which changes no result, or ncc.no_reorder(), as
    `body_no_reorder` is too: the kernel runs in program order.
    """
    _apply_directives("nl.sequential_range", no_reorder() if body_no_reorder else directives)
    return _traced_loop(args, caller())


def _apply_directives(function: str, directives: Any) -> None:
    """Apply the directives of a loop; UnsupportedHere for values that are none."""
    given = directives if isinstance(directives, tuple | list) else (directives,)
    for each in given:
        if isinstance(each, no_reorder):
            current(function).keeps_order = True
        elif each is not None and not isinstance(each, MultiBuffer):
            what = f"{function} with directives={each!r}"
            why = "they are made by ncc.multi_buffer and ncc.no_reorder"
            raise UnsupportedHere(what=what, why=why, loc=caller())


def static_range(*args: Any) -> Iterator[LoopIndex]:
    """range(start, stop, step), unrolled when the kernel is compiled."""
    return _loop_indices(args)
