"""Sums over everything that one core executed, from which the profiler's summary is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from glia.isa.kit import Instr
from glia.isa.operand import Memory
from glia.machine.ir import Program
from glia.ntff.work import Work, work_of
from glia.profile.report import Profile
from glia.timing.costs import PS
from glia.timing.simulate import is_queue

GENERATORS = ("", "software", "hardware")


@dataclass
class Totals:
    """Bytes by memory; transfers, packets, bytes and active picoseconds by descriptor generator."""

    read: Counter[Memory] = field(default_factory=Counter)
    written: Counter[Memory] = field(default_factory=Counter)
    by_kind: Counter[str] = field(default_factory=Counter)  # of tensors in HBM: `traffic_kinds`
    drained_count: int = 0  # instructions from PSUM to SBUF
    drained_bytes: int = 0
    flops: int = 0
    transpose_flops: int = 0
    adjusted_flops: float = 0.0
    adjusted_transpose_flops: float = 0.0
    transfers: Counter[str] = field(default_factory=Counter)
    packets: Counter[str] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)
    transfer_ns: float = 0.0
    active_ps: Counter[str] = field(default_factory=Counter)
    any_active_ns: float = 0.0  # of anything
    dma_active_ns: float = 0.0  # of any transfer
    executed_ns: float = 0.0  # from the first start to the last end

    def __add__(self, other: Totals) -> Totals:
        """The totals of both, one after another."""
        return Totals(**{name: each + getattr(other, name) for name, each in vars(self).items()})


def totals_of(core: Profile) -> Totals:
    """The totals of the program of one core."""
    run = core.timing.executions
    totals = Totals()
    if run is None:
        return totals
    kinds = _kinds_of_tensors(core.program)
    generators: dict[int, str] = {}
    steps = np.flatnonzero(run.count).tolist()
    for step, (instr, track, count, busy) in zip(steps, run.executed_steps(), strict=True):
        work = work_of(instr, core.target.arch)
        _add_work(totals, work, count)
        for kind, moved in traffic_kinds(instr, kinds):
            totals.by_kind[kind] += moved * count
        if is_queue(track):
            generators[step] = work.generator
            totals.transfer_ns += busy / PS
    _add_active_times(totals, core, generators)
    return totals


def _kinds_of_tensors(program: Program) -> dict[str, str]:
    """What each tensor in HBM that is no temporary is: weight, input or output."""
    found = dict.fromkeys((each.tile.name for each in program.outputs), "output")
    found |= dict.fromkeys((each.tile.name for each in program.inputs), "input")
    return found | dict.fromkeys(program.constants, "weight")


def traffic_kinds(instr: Instr, kinds: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """The bytes that an instruction moves of inputs, outputs, weights; of temporaries by direction.

    Temporaries in HBM are what a program spills: "save" and "reload".
    """
    for way, patterns in (("reload", instr.read_patterns()), ("save", instr.written_patterns())):
        for pattern in patterns:
            if pattern.memory is Memory.HBM:
                yield kinds.get(pattern.tile.name, way), pattern.bytes


def _add_work(totals: Totals, work: Work, count: int) -> None:
    for memory in Memory:
        totals.read[memory] += work.read[memory] * count
        totals.written[memory] += work.written[memory] * count
    totals.drained_count += count if work.from_psum_to_sbuf else 0
    totals.drained_bytes += work.from_psum_to_sbuf * count
    totals.flops += work.flops * count
    totals.transpose_flops += work.transpose_flops * count
    totals.adjusted_flops += work.flops * count * work.adjusted
    totals.adjusted_transpose_flops += work.transpose_flops * count * work.adjusted
    if work.packets:
        totals.transfers[work.generator] += count
        totals.packets[work.generator] += work.packets * count
        totals.moved[work.generator] += work.moved * count


def _add_active_times(totals: Totals, core: Profile, generators: dict[int, str]) -> None:
    run = core.timing.executions
    assert run is not None
    spans = run.spans()
    if not len(spans):
        return
    steps = spans.step.tolist()
    kinds = np.array([generators.get(step, "none") for step in steps])
    for name in GENERATORS:
        rows = kinds == name
        totals.active_ps[name] = union_ps(spans.start[rows], spans.end[rows])
    rows = kinds != "none"
    totals.dma_active_ns = union_ps(spans.start[rows], spans.end[rows]) / PS
    totals.any_active_ns = union_ps(spans.start, spans.end) / PS
    totals.executed_ns = int(spans.end.max() - spans.start.min()) / PS


def union_ps(start: np.ndarray, end: np.ndarray) -> int:
    """The length of the union of intervals."""
    return sum(last - first for first, last in merged_intervals(start, end))


def merged_intervals(start: np.ndarray, end: np.ndarray) -> Iterator[tuple[int, int]]:
    """Intervals in ascending order, those that touch or overlap as one."""
    if not start.size:
        return
    order = np.argsort(start, kind="stable")
    last = np.maximum.accumulate(end[order])
    begins = np.flatnonzero(np.append(True, start[order][1:] > last[:-1]))
    ends = np.append(begins[1:], order.size) - 1
    yield from zip(start[order][begins].tolist(), last[ends].tolist(), strict=True)


def cores_of(profile: Profile) -> Sequence[Profile]:
    """The profile of each core, in order."""
    return profile.cores or (profile,)


def constants_bytes(cores: Iterable[Profile]) -> int:
    """Bytes of the weights that the programs hold, each once."""
    found = {name: array for core in cores for name, array in core.program.constants.items()}
    return sum(array.nbytes for array in found.values())
