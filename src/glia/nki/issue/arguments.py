"""How documented arguments become those of the instruction, where a new name is not enough."""

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
from glia.nki.session.session import Session, caller, session_or_none, shown
from glia.nki.tensors.dynamic_offsets import Indirection
from glia.nki.tensors.indirect import whole_of
from glia.nki.tensors.nki_tensor import NkiTensor


def infer_accumulate(given: Arguments, session: Session) -> Arguments:
    """accumulate=None adds to what products have written before, and overwrites anything else."""
    dst, accumulate = given["dst"], given["accumulate"]
    for name in ("accumulate", "is_transpose"):
        if not isinstance(given.get(name), int | np.bool_ | None):
            _refuse(f"a product with {name}={shown(given[name])}")
    if given.get("is_transpose"):
        return {**given, "accumulate": False}
    if accumulate is None and isinstance(dst, NkiTensor):
        if dst.is_chosen:
            return {**given, "accumulate": _known_sum(dst, session)}
        is_sum = dst.tile.memory is Memory.PSUM
        given["accumulate"] = is_sum and sum_in(dst, session, caller())
    else:
        given["accumulate"] = bool(accumulate)
    return given


def _known_sum(dst: NkiTensor, session: Session) -> bool:
    """Whether the whole that an index chooses from holds sums; it must be all or nothing."""
    whole = whole_of(dst) if dst.is_chosen else dst
    has_sum = None if dst.tile.name in session.scattered_tiles else session.has_sum(whole.pattern)
    if has_sum is None:
        _refuse(
            "nki.isa.nc_matmul with accumulate=None where an index chose elements of dst "
            "(give accumulate=True or False)"
        )
    return has_sum


def always_reset_reduce(given: Arguments, _: Session) -> Arguments:
    """The accumulators start over and are read out at once."""
    return {**given, "reduce_cmd": reduce_cmd.reset_reduce}


def vector_unless_words(given: Arguments, _: Session) -> Arguments:
    """Unasked, only 32-bit integers throughout go to GpSimd, and what Vector does not have."""
    op = ALU_OPS.get(operator_name(given["op"]) or "")
    if given["engine"] is not engine.unknown or op is None or "vector" not in op.engines:
        return given
    tiles = (given["dst"], given["data1"], given["data2"])
    if all(isinstance(tile, NkiTensor) and tile.stored in WORDS for tile in tiles):
        return given
    return {**given, "engine": engine.vector}


def between_cores(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which a kernel on one core cannot call."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        session = session_or_none()
        if session is not None and session.ranks < 2:
            name = function.__name__
            refuse(name, f"{name} needs two cores; launch the kernel on them, as kernel[2](...)")
        return function(*args, **kwargs)

    return called


def reduced_axes(given: Arguments, _: Session) -> Arguments:
    """`axis` (one or several) as the number of innermost dimensions."""
    axis, data = given.pop("axis"), given["data"]
    del given["keepdims"]  # the shape of dst says it
    rank = data.ndim if isinstance(data, NkiTensor) else 0
    count = last_axes(axis, rank)
    if count is None:
        _refuse(
            f"nki.isa.tensor_reduce over axis {shown(axis)} of {rank} (give the last ones; "
            "nki.isa.nc_matmul with a column of ones adds up partitions)"
        )
    return {**given, "axes": count}


def last_axes(axis: Any, rank: int) -> int | None:
    """How many innermost dimensions `axis` names; None when it names others."""
    axes = axis if isinstance(axis, list | tuple) else (axis,)
    if not all(isinstance(each, int) for each in axes):
        return None
    found = sorted(each + rank if each < 0 else each for each in axes)
    is_last = bool(found) and found == list(range(rank - len(found), rank))
    return len(found) if is_last and found[0] > 0 else None


def iota_steps(given: Arguments, _: Session) -> Arguments:
    """`pattern`, a list of [step, count], as steps and counts."""
    steps, counts = _pairs("iota", given.pop("pattern"))
    return {**given, "steps": steps, "counts": counts}


def affine_steps(given: Arguments, _: Session) -> Arguments:
    """As for iota."""
    steps, counts = _pairs("affine_select", given.pop("pattern"))
    return {**given, "steps": steps, "counts": counts}


def adds_to_sums(given: Arguments) -> bool:
    """Whether it depends on the sums in dst, as `sum_in` tells, what a product does to them."""
    dst = given.get("dst")
    is_open = given.get("accumulate") is None and not given.get("is_transpose")
    return is_open and isinstance(dst, NkiTensor) and dst.tile.memory is Memory.PSUM


def sum_in(dst: NkiTensor, session: Session, loc: Loc) -> bool | None:
    """What `accumulate` is where it is not given."""
    if session.scattered_tiles and dst.tile.name in session.scattered_tiles:
        return _known_sum(dst, session)
    if dst.indirection is None:
        return session.accumulates(dst._pattern or dst.pattern, loc)
    return session.accumulates(_place(dst, dst.indirection, session), loc)


def _place(dst: NkiTensor, indirection: Indirection, session: Session) -> Pattern:
    """Where products go: where its index says, in a register that is not loaded yet."""
    pattern = dst.pattern
    held = session.read(indirection.index.pattern)
    at = Affine.of("$index") if held is None else Affine.of(int(held.item()))
    distance = at * indirection.step
    if indirection.is_partition:
        return replace(pattern, partition=pattern.partition + distance)
    return replace(pattern, offset=pattern.offset + distance)


def _pairs(function: str, pattern: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(steps, counts) of a list of [step, count]."""
    try:
        steps, counts = zip(*((int(step), int(count)) for step, count in pattern), strict=True)
    except (TypeError, ValueError):
        _refuse(f"nki.isa.{function} with pattern {shown(pattern)} (not a list of [step, count])")
    return steps, counts


def _refuse(feature: str) -> NoReturn:
    raise NotInNki(feature=feature, loc=caller())
