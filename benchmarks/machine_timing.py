"""How fast the timing model is: instructions and cycles a second of processor time, one core.

    python benchmarks/machine_timing.py

`rows` gives the same as data. Every iteration of every loop is executed unless repetitions are
said to be skipped. Planning comes once for each instruction as written, in the first run of a
program: `first_seconds` includes it. `planned_rows` are programs without loops, for which it is
most of the time: as objects that nothing has read, and as a user has them, compiled, traced or
loaded, when the check of their law has read them into columns.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from calibration_gemm import Gemm, fully_blocked, tiled

from glia.arch import get_target
from glia.base.affine import Affine
from glia.isa.operand import Pattern
from glia.machine.columns.table import columns_of
from glia.machine.ir import Loop, Program, Statement
from glia.timing.simulate import simulate_timing

REPETITIONS = 3
GOAL_INSTRUCTIONS, GOAL_CYCLES = 1e6, 10e6  # a second
HELD_PLANNED = 1e5  # instructions a second of a program without loops that nothing has read before


@dataclass(frozen=True)
class Speed:
    """One program timed; rates are per second of processor time."""

    name: str
    written: int  # instructions in the program's text
    executed: int
    first_seconds: float  # with planning
    seconds: float  # planned before
    cycles: float  # of the core's base clock that are simulated
    skipping_seconds: float  # with repetitions skipped
    python_seconds: float  # by the same rules in Python

    @property
    def instructions_per_second(self) -> float:
        return self.executed / self.seconds

    @property
    def cycles_per_second(self) -> float:
        return self.cycles / self.seconds

    @property
    def compiled_gain(self) -> float:
        """How many times faster than the rules in Python."""
        return self.python_seconds / self.seconds

    @property
    def skipping_gain(self) -> float:
        """How many times faster when repetitions are skipped."""
        return self.seconds / self.skipping_seconds


@dataclass(frozen=True)
class Planned:
    """The first run of a program without loops: each instruction is planned and executed once."""

    name: str
    written: int
    seconds: float  # columns made before, as in a program whose law was checked
    unread_seconds: float  # objects that nothing has read before

    @property
    def instructions_per_second(self) -> float:
        return self.written / self.seconds

    @property
    def unread_per_second(self) -> float:
        return self.written / self.unread_seconds


def measure_first(name: str, program: Program) -> Planned:
    """Time the first run of a program, as written out."""
    flat = replace(program, body=written_out(program.body, {}))
    arch = get_target(program.target).arch
    simulate_timing(program, arch, trace=False)  # the rules are compiled

    def seconds(*, is_read: bool) -> float:
        best = float("inf")
        for _ in range(REPETITIONS):
            fresh = replace(flat)
            if is_read:
                columns_of(fresh)
            started = time.process_time()
            simulate_timing(fresh, arch, trace=False, skip=False)
            best = min(best, time.process_time() - started)
        return best

    seconds(is_read=False)  # the functions for long programs are compiled
    return Planned(name, len(flat.body), seconds(is_read=True), seconds(is_read=False))


def measure(name: str, program: Program) -> Speed:
    """Time one program in every way."""
    arch = get_target(program.target).arch

    def seconds(repetitions: int, *, is_fresh: bool = False, **how: bool) -> float:
        best = float("inf")
        for _ in range(repetitions):
            timed = replace(program) if is_fresh else program
            started = time.process_time()
            simulate_timing(timed, arch, trace=False, **how)
            best = min(best, time.process_time() - started)
        return best

    timing = simulate_timing(program, arch, trace=False, skip=False)
    return Speed(
        name=name,
        written=sum(1 for _ in program.instructions()),
        executed=sum(timing.instructions.values()),
        first_seconds=seconds(REPETITIONS, is_fresh=True, skip=False),
        seconds=seconds(REPETITIONS, skip=False),
        cycles=timing.latency_ns * arch.clocks_ghz["base"],
        skipping_seconds=seconds(REPETITIONS),
        python_seconds=seconds(1, skip=False, is_native=False),
    )


def written_out(body: tuple[Statement, ...], values: dict[str, int]) -> tuple[Statement, ...]:
    """The instructions of every iteration, one after the other."""
    statements: list[Statement] = []
    for statement in body:
        if isinstance(statement, Loop):
            for index in range(statement.trips):
                statements += written_out(statement.body, {**values, statement.variable: index})
            continue
        changed = {
            name: replace(value, offset=value.offset.substitute(values))
            for name, value in vars(statement).items()
            if isinstance(value, Pattern)
        }
        for name, value in vars(statement).items():
            if isinstance(value, Affine):
                changed[name] = value.substitute(values)
        waits = tuple(replace(w, value=w.value.substitute(values)) for w in statement.waits)
        statements.append(replace(statement, **changed, waits=waits))
    return tuple(statements)


def bert(layers: int) -> Program:
    """The program of an encoder of BERT-base with so many layers, for Trn2."""
    import networks

    from glia.cli.demo.digits import hlo
    from glia.compiler import compile_graph
    from glia.frontend.registry import read_module
    from glia.options import CompileOptions

    forward, example = networks.bert(layers=layers)
    options = CompileOptions(target="trn2", auto_cast="matmult", auto_cast_type="bf16")
    return compile_graph(read_module(hlo(forward, example)), options).program


def rows(layers: int = 12) -> list[Speed]:
    """The matrix product as loops and written out, a program that mostly loads, and BERT-base."""
    blocked = fully_blocked(Gemm(4096, 8192, 8192, "bf16", "trn1"))
    small = fully_blocked(Gemm(2048, 2048, 4096, "bf16", "trn1"))
    found = [
        measure("GEMM, blocked in all dimensions", blocked),
        measure("GEMM, every load where it is used", tiled(Gemm(4096, 8192, 8192, "bf16", "trn1"))),
        measure("GEMM, written out", replace(small, body=written_out(small.body, {}))),
        measure("the same as loops", small),
    ]
    if layers:
        found.append(measure(f"BERT-base, {layers} layers", bert(layers)))
    return found


def planned_rows() -> list[Planned]:
    """Products of two sizes and one that mostly loads, all written out."""
    return [
        measure_first("GEMM, blocked", fully_blocked(Gemm(4096, 4096, 8192, "bf16", "trn1"))),
        measure_first("GEMM, blocked", fully_blocked(Gemm(8192, 8192, 12288, "bf16", "trn1"))),
        measure_first("GEMM, loads where used", tiled(Gemm(4096, 4096, 4096, "bf16", "trn1"))),
    ]


def results() -> dict[str, Any]:
    """The measurements as a part of RESULTS.md; what misses its goal is broken."""
    found, planned = rows(), planned_rows()
    slow = [
        f"timing {row.name}: {row.instructions_per_second:,.0f} instructions and "
        f"{row.cycles_per_second:,.0f} cycles a second, NOT KEPT"
        for row in found
        if row.instructions_per_second < GOAL_INSTRUCTIONS or row.cycles_per_second < GOAL_CYCLES
    ]
    slow += [
        f"timing {row.name}, {row.written:,} instructions written out: "
        f"{row.instructions_per_second:,.0f} a second with planning, "
        f"{row.unread_per_second:,.0f} unread, NOT KEPT"
        for row in planned
        if row.instructions_per_second < GOAL_INSTRUCTIONS or row.unread_per_second < HELD_PLANNED
    ]
    headings = (
        "program", "written", "executed", "instructions/s", "cycles/s", "with planning",
        "gain of compiling", "gain of skipping",
    )  # fmt: skip
    listed = [
        [
            row.name, f"{row.written:,}", f"{row.executed:,}",
            f"{row.instructions_per_second:,.0f}", f"{row.cycles_per_second:,.0f}",
            f"{row.executed / row.first_seconds:,.0f}",
            f"{row.compiled_gain:.1f} x", f"{row.skipping_gain:.1f} x",
        ]
        for row in found
    ]  # fmt: skip
    text = (
        "Rates per second of one core, every iteration of every loop executed, without and with "
        f"the planning that a program's first run takes. Goals: {GOAL_INSTRUCTIONS:,.0f} "
        f"instructions and {GOAL_CYCLES:,.0f} cycles a second. The first run of programs written "
        "out, planning included, as compiled, traced or loaded: "
        + "; ".join(
            f"{row.name}, {row.written:,} instructions: {row.instructions_per_second:,.0f} a "
            f"second ({row.unread_per_second:,.0f} as objects that nothing has read into columns)"
            for row in planned
        )
        + "."
    )
    return {"title": "Timing model", "text": text, "headings": headings, "rows": listed,
            "broken": slow}  # fmt: skip


def main() -> None:
    """Print a table; `first` is the rate with planning, the last two are gains."""
    heads = ("written", "executed", "Minstr/s", "Mcycles/s", "first", "compiled", "skipping")
    print(f"{'program':36}" + "".join(f"{head:>10}" for head in heads))
    for row in rows():
        numbers = (
            f"{row.written}", f"{row.executed}",
            f"{row.instructions_per_second / 1e6:.2f}", f"{row.cycles_per_second / 1e6:.0f}",
            f"{row.executed / row.first_seconds / 1e6:.2f}",
            f"{row.compiled_gain:.1f}x", f"{row.skipping_gain:.1f}x",
        )  # fmt: skip
        print(f"{row.name:36}" + "".join(f"{number:>10}" for number in numbers))
    print(f"\n{'written out, first run':36}   written  Minstr/s    unread")
    for flat in planned_rows():
        rate, unread = flat.instructions_per_second / 1e6, flat.unread_per_second / 1e6
        print(f"{flat.name:36}{flat.written:>10}{rate:>10.2f}{unread:>10.2f}")


if __name__ == "__main__":
    main()
