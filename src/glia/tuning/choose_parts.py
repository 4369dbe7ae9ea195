"""The pass that lets exchanges travel in parts; how large they are is chosen by timing."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from glia.options import CompileOptions
from glia.tile.exchanges.split_exchanges import HALVES, begins_with_exchange, split_exchanges
from glia.tile.ir import Program
from glia.tuning.rest_of_pipeline import timed_ns

WAYS = (
    HALVES,
    (Fraction(1, 4), Fraction(3, 4)),
    (Fraction(3, 4), Fraction(1, 4)),
    (Fraction(1, 4), Fraction(1, 2), Fraction(1, 4)),
)
LEAST_ROWS = 16  # of a part that is timed
MOST_TIMED = 64  # statements of a program that is compiled in all ways


def choose_parts(program: Program, options: CompileOptions) -> Program:
    """The program with exchanges that all work waits for in parts, under llm-training.

    They are halves, except where the first travels before there is other work: a program that is
    not long, and not divided between cores, has the parts that it is fastest in at -O2.
    """
    if options.distribution_strategy not in ("llm-training", "nemo"):
        return program
    halves = split_exchanges(program, options)
    is_divided = any(buffer.role == "shared" for buffer in program.buffers.values())
    is_long = len(program.body) > MOST_TIMED
    if is_long or is_divided or not begins_with_exchange(program, options):
        return halves
    timed = replace(options, optlevel=2)  # what levels share does not depend on them
    best, least_ns = halves, timed_ns(halves, timed, choose_parts.__name__)
    for shares in WAYS[1:]:
        made = split_exchanges(program, options, shares, LEAST_ROWS)
        ns = None if made is program else timed_ns(made, timed, choose_parts.__name__)
        if ns is not None and (least_ns is None or ns < least_ns):
            best, least_ns = made, ns
    return best
