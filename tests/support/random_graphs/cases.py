"""Random programs with inputs and compile options, each a function of its seed alone."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.graph.ir import Graph
from support.random_graphs import families
from support.random_graphs.grow import Array, Grower, draw_array

TARGETS = ("trn1", "trn1n", "inf2", "trn2", "trn3")


@dataclass(frozen=True)
class Case:
    """A program, an array for each parameter, and the options to compile it with."""

    seed: int
    graph: Graph
    arrays: tuple[Array, ...]
    options: dict[str, Any]


def random_case(seed: int) -> Case:
    """The case of a seed."""
    random = np.random.default_rng([9, seed])
    grower = Grower(random, families.FAMILIES)
    for _ in range(int(random.integers(1, 8))):
        grower.step()
    graph, kept = grower.finish(f"random_{seed}")
    has_specials = random.random() < 0.1
    arrays = [grower.arrays[p.index] if p.index in grower.arrays
              else draw_array(random, p.type, has_specials) for p in kept]  # fmt: skip
    options = _options(random)
    return Case(seed, _donated(random, graph), tuple(arrays), options)


def _donated(random: np.random.Generator, graph: Graph) -> Graph:
    """The program with some inputs donated to results of their type."""
    free = [*range(len(graph.parameters))]
    aliases = []
    for number, result in enumerate(graph.results):
        fitting = [p for p in free if graph.parameters[p].type == result.type]
        if fitting and random.random() < 0.5:
            aliases.append((number, int(random.choice(fitting))))
            free.remove(aliases[-1][1])
    return dataclasses.replace(graph, aliases=tuple(aliases))


def _options(random: np.random.Generator) -> dict[str, Any]:
    options: dict[str, Any] = {
        "target": str(random.choice(TARGETS)),
        "optlevel": int(random.integers(1, 4)),
        "auto_cast": str(random.choice(("none", "none", "matmult", "all"))),
        "model_type": str(random.choice(("generic",) * 8 + ("transformer", "unet-inference"))),
        "native_int64": str(random.choice(("default", "enabled"))),
        "saturate_infinity": bool(random.random() < 0.2),
        "fast_context_switch": bool(random.random() < 0.2),
        "fast_loading_neuron_binaries": bool(random.random() < 0.5),
    }
    if options["auto_cast"] != "none":
        options["auto_cast_type"] = str(random.choice(("bf16", "bf16", "fp16", "tf32", "fp8_e4m3")))
    return options
