"""What a call costs through a framework, beside the model that it runs.

    python benchmarks/frameworks.py

Each row is a function of small arrays, so that the call is what takes time: through JAX on the
platform `neuron`, through JAX on the CPU, and by the bound model itself. Candidates take turns; of
each the fastest turn counts, as other work on the machine only adds.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

TURNS, CALLS = 400, 10
HEADINGS = ("call", "neuron us", "over the model us", "model us", "JAX on the CPU us")

Calls = tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]


def microseconds(candidates: tuple[Callable[[], Any], ...]) -> list[float]:
    """The time of a call of each candidate, in its fastest turn."""
    best = [float("inf")] * len(candidates)
    for _ in range(TURNS):
        for place, call in enumerate(candidates):
            started = time.perf_counter()
            for _ in range(CALLS):
                call()
            best[place] = min(best[place], (time.perf_counter() - started) / CALLS * 1e6)
    return best


def calls(function: Callable[..., Any], count: int, reads: bool) -> Calls:
    """Calls of a function of `count` arrays on the device, of its model, and on the CPU."""
    import jax
    import numpy as np

    import glia

    arrays = [np.full((8, 8), index, np.float32) for index in range(count)]
    jitted = jax.jit(function)
    on_device = [jax.device_put(each, jax.devices("neuron")[0]) for each in arrays]
    on_cpu = [jax.device_put(each, jax.devices("cpu")[0]) for each in arrays]
    bound = glia.load(glia.compile(jitted.lower(*on_device))).bind()
    finish = np.asarray if reads else (lambda results: results)
    jax.block_until_ready((jitted(*on_device), jitted(*on_cpu)))
    return (
        lambda: finish(jitted(*on_device)),
        lambda: bound(*arrays),
        lambda: finish(jitted(*on_cpu)),
    )


def rows() -> list[dict[str, Any]]:
    """The measurements, one dict for each kind of call."""
    found = []
    for name, function, count, reads in (
        ("1 array to 1", lambda x: x + 1, 1, False),
        ("1 array to 1, read", lambda x: x + 1, 1, True),
        ("10 arrays to 10", lambda *xs: [x + 1 for x in xs], 10, False),
    ):
        neuron, model, cpu = microseconds(calls(function, count, reads))
        values = (name, neuron, neuron - model, model, cpu)
        found.append(dict(zip(HEADINGS, values, strict=True)))
    return found


def main() -> None:
    """Print the table."""
    os.environ.setdefault("JAX_PLATFORMS", "neuron,cpu")
    from glia.plugins.jax import initialize

    initialize()
    lines = [f"| {' | '.join(HEADINGS)} |", "|---|" + "---|" * (len(HEADINGS) - 1)]
    for row in rows():
        cells = [str(row[HEADINGS[0]]), *(f"{row[name]:.1f}" for name in HEADINGS[1:])]
        lines.append(f"| {' | '.join(cells)} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
