"""The profile of a run: utilisation, traffic and waits, and the files that show them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from glia.arch import Target, get_target
from glia.base.files import write_atomically
from glia.base.notebook import describe
from glia.machine.ir import Program
from glia.machine.scratchpad import scratchpad
from glia.profile.bandwidth import Bandwidth, hbm_bandwidth
from glia.profile.communication import Communication, communication
from glia.profile.critical_path import PathLine, critical_path
from glia.profile.memory import Residence, residences
from glia.profile.page import page_data, render_page
from glia.profile.picture import render_svg
from glia.profile.sources import SourceTime, time_by_line, time_by_operator
from glia.profile.trace import perfetto_events
from glia.timing.cores import simulate_cores
from glia.timing.latency_range import latency_range
from glia.timing.simulate import Timing, queue_track, simulate_timing


@dataclass(frozen=True)
class EngineProfile:
    """Busy time of an engine or queue, in microseconds and as a fraction of the latency."""

    busy_us: float
    utilization: float
    instructions: int


@dataclass(frozen=True)
class Profile:
    """The profile of one core's program in simulated time.

    Of several cores it is the one that ends last; `cores` then has the profile of each, in order.
    `is_of_ranks`: they are those of several ranks, `lnc` of each. `groups` is what the compiler
    says of groups of nests (`glia.compile_report.group_report`), of a kernel nothing.
    """

    program: Program
    target: Target
    timing: Timing
    cores: tuple[Profile, ...] = ()
    is_of_ranks: bool = False
    lnc: int = 1
    groups: tuple[Mapping[str, Any], ...] = ()

    def __repr__(self) -> str:
        name, target = self.program.name, self.target.name
        return f"<profile of {name}: {self.latency_us:.2f} us on {target} (simulated)>"

    def _repr_html_(self) -> str:
        """A summary for notebooks."""
        low, high = self.latency_range_us
        facts = (
            ("latency", f"{self.latency_us:,.2f} us ({low:,.2f} to {high:,.2f})"),
            ("of the 16-bit matrix peak", f"{self.mfu:.2%}"),
            ("HBM", f"{self.hbm_gbps:,.1f} GB/s"),
            ("instructions", f"{self.instructions:,}"),
        )
        tracks = [*self.engines.items(), *((queue_track(n), q) for n, q in self.queues.items())]
        rows = [
            (name, f"{each.busy_us:,.2f} us", f"{each.utilization:.1%}", f"{each.instructions:,}")
            for name, each in tracks
        ]
        title = f"Profile of {self.program.name} on {self.target.name}, simulated"
        return describe(title, facts, ("", "busy", "share", "instructions"), rows)

    @property
    def latency_us(self) -> float:
        """From the start of the program on the core to its end, pre- and postamble included."""
        return self.timing.latency_ns / 1000

    @cached_property
    def latency_range_us(self) -> tuple[float, float]:
        """The latency with the constants at the fast and at the slow end of what is published.

        It says how well the constants are known, not what a vendor's compiler would do differently.
        """
        alike = self.cores[: self.lnc] if self.is_of_ranks else self.cores
        programs = [core.program for core in alike] or [self.program]
        found = latency_range(programs, self.target.arch)
        sooner, later = found.sooner_ns / 1000, found.later_ns / 1000
        return max(0.0, self.latency_us - sooner), self.latency_us + later

    @property
    def notes(self) -> tuple[str, ...]:
        """What was changed in the program, or spilled; of several cores, with whose it is."""
        owners: dict[str, list[str]] = {}
        for title, core in zip(self.titles, self.cores, strict=True):
            for note in dict.fromkeys(core.program.notes):
                owners.setdefault(note, []).append(title)
        return (
            tuple(
                note if len(titles) == len(self.cores) else f"{', '.join(titles)}: {note}"
                for note, titles in owners.items()
            )
            or self.program.notes
        )

    @property
    def engines(self) -> Mapping[str, EngineProfile]:
        """By engine: tensor, vector, scalar, gpsimd, sync."""
        timing = self.timing
        return {
            name: EngineProfile(busy / 1000, busy / timing.latency_ns, timing.instructions[name])
            for name, busy in timing.busy_ns.items()
        }

    @property
    def queues(self) -> Mapping[str, EngineProfile]:
        """By DMA queue; busy while at least one of its transfers is in flight."""
        timing = self.timing
        counts: Counter[str] = Counter()
        for row in timing.opcodes:
            counts[row.engine] += row.count
        return {
            name: EngineProfile(busy / 1000, busy / timing.latency_ns, counts[queue_track(name)])
            for name, busy in timing.queue_busy_ns.items()
        }

    @property
    def dma_bytes(self) -> int:
        """Bytes that the DMA engines moved."""
        return self.timing.moved_bytes

    @property
    def hbm_bytes(self) -> int:
        """Bytes read from and written to HBM."""
        return self.timing.hbm_read_bytes + self.timing.hbm_written_bytes

    @property
    def hbm_gbps(self) -> float:
        """HBM traffic over the whole latency, in 10^9 bytes per second."""
        return self.hbm_bytes / self.timing.latency_ns

    @property
    def scratchpad_bytes(self) -> int:
        """Bytes of HBM that the program's temporaries take."""
        return scratchpad(self.program)[1]

    @property
    def flops(self) -> int:
        """Floating-point operations of matrix products, transpositions not counted."""
        return self.timing.matmul_flops

    @property
    def mfu(self) -> float:
        """Achieved fraction of the core's 16-bit matrix peak, as the Neuron profiler defines it."""
        peak = self.target.arch.peak_flops["bf16"]
        return self.flops / (peak * self.timing.latency_ns * 1e-9)

    @property
    def waiting_us(self) -> Mapping[int, float]:
        """Microseconds that this core's engines waited for other cores, by the core that came last.

        Engines that wait at the same time count separately.
        """
        found: dict[int, float] = {}
        for wait in self.timing.core_waits:
            found[wait.core] = found.get(wait.core, 0.0) + wait.ns / 1000
        return found

    @property
    def late_core(self) -> int | None:
        """The core for which the others waited longest; None if none waited."""
        waited: dict[int, float] = {}
        for core in self.cores:
            for late, microseconds in core.waiting_us.items():
                waited[late] = waited.get(late, 0.0) + microseconds
        return max(waited, key=lambda late: waited[late], default=None)

    @cached_property
    def communication(self) -> Communication | None:
        """The time of exchanges with other ranks, and how much of it is hidden; None without any.

        All ranks of a model run one program: one stands for all, and they meet without waiting. Of
        several cores it is that of the first which exchanges, if the slowest does not.
        """
        timings = (self.timing, *(core.timing for core in self.cores))
        return next(filter(None, map(communication, timings)), None)

    @property
    def instructions(self) -> int:
        """Executed instructions of all engines."""
        return sum(self.timing.instructions.values())

    @property
    def not_modelled(self) -> tuple[str, ...]:
        """What this estimate leaves out or assumes."""
        return self.timing.not_modelled

    @property
    def residences(self) -> tuple[Residence, ...]:
        """Where and when tiles were in SBUF and PSUM; empty before placement."""
        return residences(self.program, self.timing)

    @property
    def source_lines(self) -> tuple[SourceTime, ...]:
        """The time of all cores by source line, the longest first."""
        return time_by_line(self._timings)

    @property
    def operators(self) -> tuple[SourceTime, ...]:
        """The time of all cores by the framework's name of the operation, the longest first."""
        return time_by_operator(self._timings)

    @property
    def critical_path(self) -> tuple[PathLine, ...]:
        """The source lines whose instructions delayed each other from start to end."""
        return critical_path(self.timing)

    @property
    def bandwidth(self) -> Bandwidth:
        """HBM traffic over time."""
        return hbm_bandwidth(self.timing)

    def to_dict(self) -> dict[str, object]:
        """Everything but the time lines, in JSON's types."""
        where: dict[str, object] = {
            "source_lines": [row.to_dict() for row in self.source_lines],
            "operators": [row.to_dict() for row in self.operators],
            "critical_path": [row.to_dict() for row in self.critical_path],
            "bandwidth": self.bandwidth.to_dict(),
        }
        cores = {"cores": self._core_rows()} if self.cores else {}
        if self.communication is not None:
            where["communication"] = self.communication.to_dict()
        span = {"latency_range_us": list(self.latency_range_us)}
        return self._summary() | span | where | cores

    def _core_rows(self) -> list[dict[str, object]]:
        return [
            core._summary()
            | {"waiting_us": {str(n): us for n, us in core.waiting_us.items()}, "title": title}
            | ({"communication": core.communication.to_dict()} if core.communication else {})
            for core, title in zip(self.cores, self.titles, strict=True)
        ]

    def _summary(self) -> dict[str, object]:
        timing = self.timing
        return {
            "program": self.program.name,
            "target": self.target.name,
            "latency_us": self.latency_us,
            "mfu": self.mfu,
            "flops": self.flops,
            "transpose_flops": timing.transpose_flops,
            "flops_by_dtype": dict(timing.flops_by_dtype),
            "dma_bytes": self.dma_bytes,
            "hbm_read_bytes": timing.hbm_read_bytes,
            "hbm_written_bytes": timing.hbm_written_bytes,
            "hbm_gbps": self.hbm_gbps,
            "scratchpad_bytes": self.scratchpad_bytes,
            "instructions": self.instructions,
            "engines": {n: vars(e).copy() for n, e in self.engines.items()},
            "queues": {n: vars(e).copy() for n, e in self.queues.items()},
            "opcodes": [vars(row).copy() for row in timing.opcodes],
            "stalls": [vars(row).copy() for row in timing.stalls] + self._core_wait_rows(),
            "activation_table_loads": timing.table_loads,
            "throttled_us": timing.throttled_ns / 1000,
            "notes": list(self.notes),
            "not_modelled": list(self.not_modelled),
        }

    def _core_wait_rows(self) -> list[dict[str, object]]:
        """Waits for other cores as rows like those of waits for semaphores."""
        return [
            {"engine": w.engine, "semaphore": f"core {w.core}", "ns": w.ns, "opcode": w.opcode}
            for w in self.timing.core_waits
        ]

    def save_perfetto(self, path: str | Path) -> None:
        """Write a trace that ui.perfetto.dev and chrome://tracing open."""
        _save(
            path, json.dumps(perfetto_events(self.program.name, *self._timings, titles=self.titles))
        )

    def save_html(self, path: str | Path) -> None:
        """Write one self-contained page of bounded size: timelines, memory, roofline, tables."""
        _save(path, render_page(page_data(self)))

    def save_svg(self, path: str | Path) -> None:
        """Write a picture of the timeline."""
        _save(path, render_svg(self.program.name, self.target.name, self.timing))

    @property
    def titles(self) -> tuple[str, ...]:
        """The cores' names, where there are several."""
        numbers = range(len(self.cores))
        if not self.is_of_ranks:
            return tuple(f"core {n}" for n in numbers)
        cores = (f" core {n % self.lnc}" if self.lnc > 1 else "" for n in numbers)
        return tuple(f"rank {n // self.lnc}{core}" for n, core in zip(numbers, cores, strict=True))

    @property
    def _timings(self) -> tuple[Timing, ...]:
        return tuple(core.timing for core in self.cores) or (self.timing,)


def profile_program(
    program: Program,
    target: str | Target,
    *,
    trips: Mapping[int, Sequence[int]] | None = None,
) -> Profile:
    """Time `program` on one core of `target`; `trips` as in `simulate_timing`."""
    target = get_target(target) if isinstance(target, str) else target
    return Profile(program, target, simulate_timing(program, target.arch, trips=trips))


def profile_programs(
    programs: Sequence[Program], target: str | Target, *, events: int | None = None
) -> Profile:
    """Time the programs of cores that run together; that of one as `profile_program` does.

    With `events`, no iteration is skipped and each core keeps up to that many executions by
    themselves.
    """
    target = get_target(target) if isinstance(target, str) else target
    options: dict[str, Any] = {} if events is None else {"skip": False, "max_events": events}
    if len(programs) == 1:
        timing = simulate_timing(programs[0], target.arch, **options)
        return Profile(programs[0], target, timing)
    timings = simulate_cores(programs, target.arch, **options)
    cores = tuple(Profile(p, target, t) for p, t in zip(programs, timings, strict=True))
    return replace(max(cores, key=lambda core: core.timing.latency_ns), cores=cores)


def profile_ranks(
    programs: Sequence[Program], target: str | Target, ranks: int, *, events: int | None = None
) -> Profile:
    """Time so many ranks that run the programs of one, each on cores of its own, and meet.

    Of a model for more ranks they stand for all: exchanges with others are not waited for.
    """
    target = get_target(target) if isinstance(target, str) else target
    options: dict[str, Any] = {} if events is None else {"skip": False, "max_events": events}
    every = [*programs] * ranks
    timings = simulate_cores(every, target.arch, lnc=len(programs), **options)
    cores = tuple(Profile(p, target, t) for p, t in zip(every, timings, strict=True))
    slowest = max(cores, key=lambda core: core.timing.latency_ns)
    return replace(slowest, cores=cores, is_of_ranks=True, lnc=len(programs))


def _save(path: str | Path, text: str) -> None:
    write_atomically(Path(path), [text.encode()])
