"""Conversions of documented arguments to fields of the instruction, beyond renaming."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, NoReturn

import numpy as np

from glia.base.affine import Affine
from glia.base.loc import Loc
from glia.isa.alu import ALU_OPS
from glia.isa.operand import Memory, Pattern
from glia.isa.rules import WORDS
from glia.nki.issue.instruction import Arguments, refuse
from glia.nki.names.enums import engine, reduce_cmd
from glia.nki.names.errors import NotInNki
from glia.nki.names.operators import operator_name
from glia.nki.session.session import Session, caller, session_or_none, value_text
from glia.nki.tensors.dynamic_offsets import Indirection
from glia.nki.tensors.indirect import index_table
from glia.nki.tensors.nki_tensor import NkiTensor


def infer_accumulate(given: Arguments, session: Session) -> Arguments:
    """Resolve accumulate=None: products accumulate onto products and overwrite anything else."""
    dst, accumulate = given["dst"], given["accumulate"]
    for name in ("accumulate", "is_transpose"):
        if not isinstance(given.get(name), int | np.bool_ | None):
            _refuse(f"a product with {name}={value_text(given[name])}")
    if given.get("is_transpose"):
        return {**given, "accumulate": False}
    if accumulate is None and isinstance(dst, NkiTensor):
        if dst.is_element_gather:
            return {**given, "accumulate": _uniform_sum(dst, session)}
        is_sum = dst.tile.memory is Memory.PSUM
        given["accumulate"] = is_sum and implicit_accumulate(dst, session, caller())
    else:
        given["accumulate"] = bool(accumulate)
    return given


def _uniform_sum(dst: NkiTensor, session: Session) -> bool:
    """Whether the table that an index selects from holds sums; NotInNki where only some do."""
    whole = index_table(dst) if dst.is_element_gather else dst
    has_sum = None if dst.tile.name in session.scattered_tiles else session.has_sum(whole.pattern)
    if has_sum is None:
        _refuse(
            "nki.isa.nc_matmul with accumulate=None where an index selects the elements of dst "
            "(give accumulate=True or False)"
        )
    return has_sum


def always_reset_reduce(given: Arguments, _: Session) -> Arguments:
    """Reset, accumulate and read out the accumulators in one instruction."""
    return {**given, "reduce_cmd": reduce_cmd.reset_reduce}


def prefer_vector_engine(given: Arguments, _: Session) -> Arguments:
    """Without engine=, Vector, except for all-32-bit-integer operands and GpSimd's operators."""
    op = ALU_OPS.get(operator_name(given["op"]) or "")
    if given["engine"] is not engine.unknown or op is None or "vector" not in op.engines:
        return given
    tiles = (given["dst"], given["data1"], given["data2"])
    if all(isinstance(tile, NkiTensor) and tile.stored in WORDS for tile in tiles):
        return given
    return {**given, "engine": engine.vector}


def requires_cores(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with BrokenRule in a kernel that runs on fewer than two cores."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        session = session_or_none()
        if session is not None and session.ranks < 2:
            name = function.__name__
            refuse(name, f"{name} needs two cores; launch the kernel on them, as kernel[2](...)")
        return function(*args, **kwargs)

    return called


def axis_to_count(given: Arguments, _: Session) -> Arguments:
    """Convert `axis` (one or several) to the number of reduced innermost dimensions."""
    axis, data = given.pop("axis"), given["data"]
    del given["keepdims"]  # the shape of dst says it
    rank = data.ndim if isinstance(data, NkiTensor) else 0
    count = trailing_axis_count(axis, rank)
    if count is None:
        _refuse(
            f"nki.isa.tensor_reduce over axis {value_text(axis)} of {rank} (give the last ones; "
            "nki.isa.nc_matmul with a column of ones adds up partitions)"
        )
    return {**given, "axes": count}


def trailing_axis_count(axis: Any, rank: int) -> int | None:
    """How many innermost dimensions `axis` names; None when it names any other."""
    axes = axis if isinstance(axis, list | tuple) else (axis,)
    if not all(isinstance(each, int) for each in axes):
        return None
    found = sorted(each + rank if each < 0 else each for each in axes)
    is_last = bool(found) and found == list(range(rank - len(found), rank))
    return len(found) if is_last and found[0] > 0 else None


def iota_steps(given: Arguments, _: Session) -> Arguments:
    """Convert `pattern`, a list of [step, count], to `steps` and `counts`."""
    steps, counts = _steps_and_counts("iota", given.pop("pattern"))
    return {**given, "steps": steps, "counts": counts}


def affine_steps(given: Arguments, _: Session) -> Arguments:
    """Convert `pattern` as `iota_steps` does."""
    steps, counts = _steps_and_counts("affine_select", given.pop("pattern"))
    return {**given, "steps": steps, "counts": counts}


def accumulate_is_implicit(given: Arguments) -> bool:
    """Whether the contents of dst decide `accumulate`, by `implicit_accumulate`."""
    dst = given.get("dst")
    is_open = given.get("accumulate") is None and not given.get("is_transpose")
    return is_open and isinstance(dst, NkiTensor) and dst.tile.memory is Memory.PSUM


def implicit_accumulate(dst: NkiTensor, session: Session, loc: Loc) -> bool | None:
    """The value of an omitted `accumulate`: whether dst holds sums of products."""
    if session.scattered_tiles and dst.tile.name in session.scattered_tiles:
        return _uniform_sum(dst, session)
    if dst.indirection is None:
        return session.accumulates(dst._pattern or dst.pattern, loc)
    return session.accumulates(_destination(dst, dst.indirection, session), loc)


def _destination(dst: NkiTensor, indirection: Indirection, session: Session) -> Pattern:
    """The pattern at a run-time index; a symbolic register where the index is unknown."""
    pattern = dst.pattern
    held = session.read(indirection.index.pattern)
    at = Affine.of("$index") if held is None else Affine.of(int(held.item()))
    distance = at * indirection.step
    if indirection.is_partition:
        return replace(pattern, partition=pattern.partition + distance)
    return replace(pattern, offset=pattern.offset + distance)


def _steps_and_counts(function: str, pattern: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(steps, counts) of a list of [step, count]."""
    try:
        steps, counts = zip(*((int(step), int(count)) for step, count in pattern), strict=True)
    except (TypeError, ValueError):
        _refuse(
            f"nki.isa.{function} with pattern {value_text(pattern)} (not a list of [step, count])"
        )
    return steps, counts


def _refuse(feature: str) -> NoReturn:
    raise NotInNki(feature=feature, loc=caller())
