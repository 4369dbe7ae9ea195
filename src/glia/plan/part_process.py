"""A process that compiles parts and times them: one line of JSON in for each, one out."""

from __future__ import annotations

import importlib
import json
import sys
import time
import warnings
from dataclasses import asdict
from typing import Any

import ml_dtypes
import numpy as np

from glia.base.errors import CompileError
from glia.compiler import compile as compile_module
from glia.isa.operand import Memory
from glia.kernels.flash_attention import flash_attention
from glia.kernels.flash_attention_backward import flash_attention_backward
from glia.neff.package import Neff
from glia.nki.run.trace import trace
from glia.plan.parts import Measured, ModelPart
from glia.runtime.model import load

WRITER = "glia.plugins.jax.decoder_parts"  # of parts as programs
_LONGEST = 200


def measure(part: ModelPart, target: str, optlevel: int) -> Measured:
    """Compile a part for a target and time it; of one that does not compile, why.

    Seconds are those of this process, whatever else the host does.
    """
    started = time.process_time()
    try:
        if part.kind in ("attention", "attention gradient"):
            neff = Neff((_traced(part, target),))
        else:
            lowered = importlib.import_module(WRITER).lowered_part(part)
            neff = compile_module(
                lowered, target=target, optlevel=optlevel, auto_cast="none", logical_nc_config=1
            )
        return measured(neff, time.process_time() - started)
    except (CompileError, AssertionError, MemoryError) as problem:
        text = " ".join(str(problem).split())[:_LONGEST] or type(problem).__name__
        return Measured(seconds=time.process_time() - started, problem=text)


def measured(neff: Neff, seconds: float) -> Measured:
    """What was made in so many seconds; without the time that each execution begins and ends in."""
    timing = load(neff).profile().timing
    us = (timing.end_ns - timing.begin_ns) / 1000
    program = neff.program
    bound = {binding.tile.name for binding in (*program.inputs, *program.outputs)}
    scratch = [
        tile.bytes
        for name, tile in program.tiles.items()
        if tile.memory is Memory.HBM and name not in bound
    ]
    count = sum(1 for each in neff.programs for _ in each.instructions())
    return Measured(us, count, seconds, sum(scratch))


def _traced(part: ModelPart, target: str) -> Any:
    """The program of the library's attention, of one head of keys and values."""
    columns, rows = (1, part.heads, part.head, part.keys), (1, part.heads, part.keys, part.head)
    q, out = _empty(columns), _empty(rows)
    k, v = _empty((1, 1, part.head, part.keys)), _empty((1, 1, part.keys, part.head))
    if part.kind == "attention":
        return trace(flash_attention.function, q, k, v, target=target, causal=True, with_lse=True)
    lse = np.zeros((1, part.heads, part.keys), np.float32)
    arrays = (q, k, v, out, out, lse)
    return trace(flash_attention_backward.function, *arrays, target=target, causal=True)


def _empty(shape: tuple[int, ...]) -> np.ndarray:
    return np.zeros(shape, ml_dtypes.bfloat16)


def main() -> None:
    """Answer until the other side closes."""
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr  # what a framework prints is no answer
    for line in sys.stdin:
        given = json.loads(line)
        found = measure(ModelPart(**given["part"]), given["target"], given["optlevel"])
        answers.write(json.dumps(asdict(found)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
