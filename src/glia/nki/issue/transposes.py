"""Transposes of nki.isa: the Vector Engine turns a larger tile square by square."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

from glia.nki.issue.functions import Binder, make_function, with_metadata
from glia.nki.issue.instruction import Arguments
from glia.nki.names.enums import engine
from glia.nki.names.language_errors import advise
from glia.nki.session.session import caller, current
from glia.nki.tensors.nki_object import NkiInstruction
from glia.nki.tensors.nki_tensor import NkiTensor

Range = tuple[int, int]
_transpose_once = make_function("nc_transpose", "dst data engine")
_SIGNATURE = inspect.signature(_transpose_once)
_bind = Binder("nki.isa.nc_transpose", _SIGNATURE)


def transpose_in_squares(dst: NkiTensor, data: NkiTensor, **named: Any) -> NkiInstruction:
    """dst [F, P] = data [P, F].T by the Vector Engine, in squares of a quadrant's partitions.

    `named` is of the last instruction, which is the result.
    """
    squares = _squares(data)
    for number, (rows, columns) in enumerate(squares, 1):
        made = _transpose_once(
            dst=dst.slice(0, *columns).slice(1, *rows),
            data=data.slice(0, *rows).slice(1, *columns),
            engine=engine.vector,
            **(named if number == len(squares) else {}),
        )
    return made


def _squares(data: NkiTensor) -> list[tuple[Range, Range]]:
    """The rows and columns of each square of a tile."""
    size = current("nki.isa.nc_transpose").arch.quadrant_partitions
    rows, columns = (
        [(start, min(start + size, extent)) for start in range(0, extent, size)]
        for extent in data.shape
    )
    return list(itertools.product(rows, columns))


def _nc_transpose(*args: Any, **kwargs: Any) -> NkiInstruction:
    chosen = args[2] if len(args) > 2 else kwargs.get("engine")
    if chosen is engine.vector:  # others are what most calls name
        given = _bind(args, dict(kwargs))
        dst, data = _flat(given, "dst"), _flat(given, "data")
        if dst is not None and data is not None:
            count = len(_squares(data))
            if dst.shape == data.shape[::-1] and count > 1:
                text = (
                    "the Vector Engine transposes 32 x 32 elements at once: "
                    f"{list(data.shape)} take {count} instructions; the Tensor Engine takes one, "
                    "from SBUF into PSUM (engine=nisa.engine.tensor)"
                )
                advise(text, caller())
                return transpose_in_squares(dst, data, name=given["name"])
    return _transpose_once(*args, **kwargs)


def _flat(given: Arguments, name: str) -> NkiTensor | None:
    """A tile with its free dimensions as one; None where they are not."""
    tensor = given[name]
    if not isinstance(tensor, NkiTensor) or tensor.ndim < 2:
        return None
    if tensor.ndim == 2:
        return tensor
    return tensor.reshape((tensor.shape[0], -1)) if tensor.is_contiguous() else None


nc_transpose = with_metadata(
    _nc_transpose, "nc_transpose", "nki.isa", _SIGNATURE, _transpose_once.__doc__ or ""
)
