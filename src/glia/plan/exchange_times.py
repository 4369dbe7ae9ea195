"""How long exchanges take, by the timing model: one collective in a program of its own."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

from glia.arch.machines import Machine
from glia.machine.builder.program_builder import ProgramBuilder
from glia.timing.simulate import simulate_timing

_ELEMENT = 4  # bytes


@cache
def exchange_us(op: str, group: tuple[int, ...], count: int, machine: Machine) -> float:
    """Microseconds from its trigger to the use of its result; `count` are the bytes of the whole.

    The whole is what each rank has before an all_reduce, reduce_scatter or all_to_all, and after an
    all_gather; of a collective_permute, what one rank sends to the next of the group.
    """
    ranks = len(group)
    if ranks < 2 or not count:
        return 0.0
    b = ProgramBuilder("exchange", target=machine.target_name)
    part = -(-count // (_ELEMENT * ranks))
    whole = part * ranks
    takes, gives = {"all_gather": (part, whole), "reduce_scatter": (whole, part)}.get(
        op, (whole, whole)
    )
    src, dst = b.hbm((takes,)), b.hbm((gives,))
    if op == "collective_permute":
        pairs = tuple(pairwise(group))
        b.collective_permute(srcs=(src,), dsts=(dst,), source_target_pairs=pairs)
    else:
        options: dict[str, Any] = {"op": "add"} if "reduce" in op else {}
        options |= {"collective_dim": 0} if op != "all_reduce" else {}
        getattr(b, op)(srcs=(src,), dsts=(dst,), groups=(group,), **options)
    arch = machine.arch
    timing = simulate_timing(b.finish(synchronise=False, is_checked=False), arch)
    return (timing.end_ns - timing.begin_ns) / 1000
