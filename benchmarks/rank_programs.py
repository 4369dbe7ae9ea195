"""Programs of eight devices: simulated time and exposed exchanges; how fast many ranks run.

    python benchmarks/rank_programs.py > benchmarks/RANKS.md

The programs are those of `tests/ranks/jax_programs.py`, small ones, and of `sharded_models.py`.
"""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import sharded_models

import glia
from glia.alternatives import latency_us
from glia.arch import get_target
from glia.base.dtype import F32
from glia.compiler import compile_graph
from glia.graph import ops
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.isa.instructions.collectives import Collective, CollectivePermute
from glia.isa.kit import Instr
from glia.isa.operand import Pattern
from glia.machine.ir import Statement, with_blocks
from glia.neff.package import Neff
from glia.options import CompileOptions
from glia.timing.simulate import simulate_timing

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from ranks.jax_programs import PROGRAMS

TARGETS = ("trn1", "trn1n", "inf2", "trn2", "trn3")
ROWS, COLUMNS, LAYERS = 64, 256, 4


def exposed_rows() -> list[str]:
    """A line of a table for each program and target."""
    lines = []
    for make in PROGRAMS:
        for target in TARGETS:
            profile = glia.load(
                glia.compile(make().lowered(), target=target, logical_nc_config=1)
            ).profile()
            found = profile.communication
            assert found is not None
            lines.append(
                f"| {make.__name__.replace('_', ' ')} | {target} | {profile.latency_us:.1f} |"
                f" {found.exchanges} | {found.flight_us:.1f} | {found.exposed_us:.1f} |"
                f" {found.hidden_share:.0%} |"
            )
    return lines


def strategy_rows() -> Iterator[str]:
    """A line of a table for each larger program, without its strategy and with it."""
    for program in sharded_models.programs():
        lowered = program.lowered()
        for strategy in ("", program.strategy):
            neff = glia.compile(
                lowered, target="trn2", distribution_strategy=strategy, logical_nc_config=1
            )
            profile = glia.load(neff).profile()
            found = profile.communication
            assert found is not None
            longer = profile.latency_us - _us_with_instant_exchanges(neff)
            kept = neff.report["precision"]["distribution_strategy"]
            yield (
                f"| {program.name} | {program.size} | {strategy or '-'} | {kept or '-'} |"
                f" {profile.latency_us:.1f} | {found.exchanges} | {found.flight_us:.1f} |"
                f" {found.exposed_us:.1f} | {found.hidden_share:.0%} | {longer:.1f} |"
                f" {1 - longer / found.flight_us:.0%} |"
            )


def moved_rows() -> Iterator[str]:
    """A line of a table for each program that exchanges more than it must."""
    for program in sharded_models.moved_programs():
        lowered = program.lowered()
        found = []
        for strategy in ("", program.strategy, "fsdp"):
            neff = glia.compile(
                lowered, target="trn2", distribution_strategy=strategy, logical_nc_config=1
            )
            us = latency_us(neff.programs, neff.target)
            assert us is not None
            found.append(us)
        times = " | ".join(f"{us:.1f}" for us in found)
        yield f"| {program.name} | {program.size} | {times} | {found[0] / found[1]:.2f} |"


def core_rows() -> Iterator[str]:
    """A line of a table for each larger program, on one core of a logical core and on both."""
    for program in sharded_models.programs():
        lowered = program.lowered()
        found = []
        for cores in (1, 2):
            neff = glia.compile(
                lowered, target="trn2", logical_nc_config=cores,
                distribution_strategy=program.strategy,
            )  # fmt: skip
            us = latency_us(neff.programs, neff.target)
            assert us is not None
            found.append(us)
        one, two = found
        yield (
            f"| {program.name} | {program.size} | {one:.1f} | {two:.1f} | {one / two:.2f} |"
            f" {len(neff.programs)} |"
        )


def _us_with_instant_exchanges(neff: Neff) -> float:
    """The time of the same program if what ranks send took neither hops nor bytes."""
    (program,) = neff.programs
    arch = get_target(neff.target).arch.with_values({"collective_hop_ns": 0.0})
    instant = replace(program, body=tuple(map(_instant, program.body)))
    return simulate_timing(instant, arch, trace=False).latency_ns / 1000


def _instant(statement: Statement) -> Statement:
    if isinstance(statement, Collective | CollectivePermute):
        named = {"srcs": statement.srcs, "dsts": statement.dsts}  # type: ignore[union-attr]
        return replace(statement, **{n: tuple(map(_one_element, p)) for n, p in named.items()})
    if isinstance(statement, Instr):
        return statement
    return with_blocks(statement, lambda block: tuple(map(_instant, block)))


def _one_element(pattern: Pattern) -> Pattern:
    return replace(pattern, dims=tuple((step, 1) for step, _ in pattern.dims))


def layered(ranks: int) -> Graph:
    """Layers of a product, tanh, and a sum over all ranks."""
    kind = TensorType(F32, (ROWS, COLUMNS))
    x = Parameter(0, kind, "x")
    weights = np.random.default_rng(1).standard_normal((COLUMNS, COLUMNS), np.float32)
    w = ops.Constant(weights)
    value: Node = x
    for _ in range(LAYERS):
        value = ops.Map("tanh", (ops.Dot(value, w, (), (), (1,), (0,), F32),))
        groups, body = (tuple(range(ranks)),), (ops.combiner("add", F32),)
        value = ops.Collective((value,), "all-reduce", kind, -1, groups, (), body)
    return Graph("layered", (x,), (value,))


def run(device: str, ranks: int) -> None:
    """Print a line of a table: seconds of the first and second run, and the peak of memory."""
    model = glia.load(compile_graph(layered(ranks), CompileOptions()), device=device)
    inputs = [
        [np.random.default_rng(rank).standard_normal((ROWS, COLUMNS), np.float32)]
        for rank in range(ranks)
    ]
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        model.run_ranks(inputs)
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"| {device} | {ranks} | {seconds[0]:.2f} | {min(seconds[1:]):.2f} | {peak} |")


def main() -> None:
    """Print the page."""
    if len(sys.argv) == 3:
        run(sys.argv[1], int(sys.argv[2]))
        return
    print("# Programs of several ranks\n\nWritten by `python benchmarks/rank_programs.py`.\n")
    print("Small programs of eight devices, compiled without a strategy. In flight is the time of")
    print(
        "one rank with at least one exchange on its way; exposed, that in which no engine computes."
    )
    print("A loop is timed for as many iterations as it has, where that is known.\n")
    print("| program | target | us | exchanges | in flight, us | exposed, us | hidden |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(exposed_rows()))
    print("\n## With a strategy\n")
    print(
        "Larger programs of eight ranks in bf16 on trn2, without a strategy and with one; kept is"
    )
    print("what the faster program has. Longer is the time beyond that of the same program with")
    print(
        "exchanges that take no time; what it is not longer by is hidden. While an exchange is in"
    )
    print(
        "flight and engines wait for loads of their own, it is exposed, and makes nothing longer.\n"
    )
    print("| program | size | strategy | kept | us | exchanges | in flight, us | exposed, us |"
          " hidden | longer, us | not longer |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for row in strategy_rows():
        print(row, flush=True)
    print("\n## Two cores for each rank\n")
    print("The same programs with their strategies, on one core of each logical core and with")
    print("`--lnc 2`. The first core exchanges; where two would be slower, one is kept.\n")
    print("| program | size | one, us | two, us | times | cores kept |\n|---|---|---|---|---|---|")
    for row in core_rows():
        print(row, flush=True)
    print("\n## Fewer exchanges\n")
    print(
        "Microseconds, with four trips of each loop. Under fsdp what needs memory stays in loops.\n"
    )
    print(
        "| program | size | no strategy | llm-training | fsdp | times |\n|---|---|---|---|---|---|"
    )
    for row in moved_rows():
        print(row, flush=True)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"\n## Ranks in one process ({machine}, NumPy {np.__version__})\n")
    print(f"{LAYERS} layers: {ROWS} x {COLUMNS} times {COLUMNS} x {COLUMNS}, tanh, the sum of all")
    print("ranks. MiB is the peak of the process.\n")
    print("| device | ranks | first run, s | later runs, s | MiB |\n|---|---|---|---|---|")
    sys.stdout.flush()
    for device in ("host", "reference"):
        for ranks in (8, 64):
            subprocess.run([sys.executable, __file__, device, str(ranks)], check=True)


if __name__ == "__main__":
    main()
