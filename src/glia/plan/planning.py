"""Plans: every way to divide a model over an instance that fits, with the time of a step."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from glia.arch.machines import Machine
from glia.compiler import compile_graph
from glia.graph.ir import Graph
from glia.options import CompileOptions
from glia.plan.decoder_shapes import Decoder
from glia.plan.errors import NothingFits, PartFailed
from glia.plan.measuring import Progress, Workers
from glia.plan.parts import MOST_TOKENS, Measured
from glia.plan.phases import StepWork, Times, times_of
from glia.plan.splits import splits_of
from glia.runtime.model import device_bytes, load

GIB = 1 << 30
DEFAULT_BATCH = 256  # sequences of a training step
_MICRO = {"training": (1, 2, 4), "prefill": (1, 2, 4), "decode": (1, 16, 128)}
_OF_LAYERS = ("layer", "layer gradient", "attention", "attention gradient")

NOT_MODELLED = (
    "the lookup of embeddings, and what a host does between steps",
    "which tokens go where in layers with experts: each expert takes as many",
    "exchanges are not hidden behind computation",
    "ranks are physical cores",
)


@dataclass(frozen=True)
class Option:
    """One way, with what one rank holds and what a step takes."""

    work: StepWork
    bytes_by_kind: Mapping[str, int]
    times: Times
    instructions: int
    compile_seconds: float  # of the whole program, had every layer the time of the one measured

    @property
    def bytes(self) -> int:
        """That one core holds."""
        return sum(self.bytes_by_kind.values())

    @property
    def tokens_per_second(self) -> float:
        """Of all ranks."""
        tokens = self.work.batch * (1 if self.work.phase == "decode" else self.work.sequence)
        return tokens / (self.times.us * 1e-6)

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        return {
            **asdict(self.work.split),
            "micro_batch": self.work.micro,
            "steps": self.work.steps,
            "batch": self.work.batch,
            "core_bytes": self.bytes,
            "bytes": dict(self.bytes_by_kind),
            "step_us": round(self.times.us, 1),
            "exchange_us": round(self.times.exchange_us, 1),
            "bubble_us": round(self.times.bubble_us, 1),
            "us": {name: round(us, 1) for name, us in self.times.by_part.items()},
            "tokens_per_second": round(self.tokens_per_second, 1),
            "instructions": self.instructions,
            "compile_seconds": round(self.compile_seconds, 1),
        }


@dataclass(frozen=True)
class ModelPlan:
    """The ways that fit, the one with the most tokens per second first."""

    decoder: Decoder
    machine: Machine
    phase: str
    sequence: int
    options: tuple[Option, ...]
    considered: int
    compiled_parts: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        return {
            "model": {**asdict(self.decoder), "parameters": self.decoder.parameters},
            "machine": {"name": self.machine.name, "cores": self.machine.cores,
                        "core_bytes": self.machine.target.hbm_bytes},
            "phase": self.phase,
            "sequence": self.sequence,
            "options": [option.to_dict() for option in self.options],
            "considered": self.considered,
            "compiled_parts": self.compiled_parts,
            "seconds": round(self.seconds, 1),
            "not_modelled": list(NOT_MODELLED),
        }  # fmt: skip


@dataclass(frozen=True)
class Request:
    """What is planned: sequences of so many tokens, `batch` of them a step; 0: as many as fit."""

    phase: str
    sequence: int
    batch: int = 0
    optlevel: int = 2
    jobs: int = 1


def make_plan(
    decoder: Decoder, machine: Machine, request: Request, progress: Progress
) -> ModelPlan:
    """The ways to divide a decoder that fit, of which each part was compiled and timed.

    Raises NothingFits, and PartFailed where no way could be timed.
    """
    started, capacity = time.perf_counter(), machine.target.hbm_bytes
    every = list(works_of(decoder, machine, request))
    fitting = [work for work in every if sum(work.known_bytes().values()) <= capacity]
    if not fitting:
        raise _nothing_fits(decoder, machine, request, every)
    parts = [part for work in fitting for part in work.parts().values()]
    with Workers(request.jobs) as workers:
        found = workers.measure_all(parts, machine.target_name, request.optlevel, progress)
    options = []
    for work in fitting:
        measured = {name: found[part] for name, part in work.parts().items()}
        if not any(each.problem for each in measured.values()):
            options.append(_option(work, measured, machine))
    if not options:
        part, failed = next((p, m) for p, m in found.items() if m.problem)
        raise PartFailed(model=decoder.name, part=part, reason=failed.problem)
    kept = [each for each in options if each.bytes <= capacity]
    if not kept:
        least = min(options, key=lambda each: each.bytes)
        raise _too_large(decoder, machine, request, least.work, least.bytes)
    kept.sort(key=lambda each: (-each.tokens_per_second, each.bytes))
    taken = time.perf_counter() - started
    return ModelPlan(decoder, machine, request.phase, request.sequence, tuple(kept), len(every),
                len(found), taken)  # fmt: skip


def works_of(decoder: Decoder, machine: Machine, request: Request) -> Iterator[StepWork]:
    """Every way to divide a decoder and its batch over a machine.

    Serving has one stage where that fits: stages would only add to the time of a token.
    """
    is_training = request.phase == "training"
    staged = list(_works(decoder, machine, request, is_staged=True))
    single = [work for work in staged if work.split.pipeline == 1]
    capacity = machine.target.hbm_bytes
    fits = any(sum(work.known_bytes().values()) <= capacity for work in single)
    yield from staged if is_training or not fits else single


def _works(
    decoder: Decoder, machine: Machine, request: Request, *, is_staged: bool
) -> Iterator[StepWork]:
    phase, sequence, batch = request.phase, request.sequence, request.batch
    if phase == "training":
        batch = batch or DEFAULT_BATCH
    for split in splits_of(decoder, machine.cores, is_staged=is_staged):
        for micro in _MICRO[phase]:
            at_once = micro * split.data
            if not batch:
                yield StepWork(
                    decoder, request.phase, request.sequence, split, micro, split.pipeline
                )
            elif batch % at_once == 0:
                steps = batch // at_once
                yield StepWork(decoder, phase, sequence, split, micro, steps)


def _option(work: StepWork, found: Mapping[str, Measured], machine: Machine) -> Option:
    scale = work.tokens / min(work.tokens, MOST_TOKENS)
    scratch = max(each.scratch_bytes for name, each in found.items() if name in _OF_LAYERS)
    held = work.known_bytes() | {"scratch": int(scratch * scale)}
    times = times_of(work, found, machine)
    count = {name: work.layers if name in _OF_LAYERS else 1 for name in found}
    return Option(
        work,
        held,
        times,
        sum(count[name] * each.instructions for name, each in found.items()),
        sum(count[name] * each.seconds for name, each in found.items()),
    )


def _nothing_fits(
    decoder: Decoder, machine: Machine, request: Request, works: Iterable[StepWork]
) -> NothingFits:
    least = min(works, key=lambda work: sum(work.known_bytes().values()), default=None)
    if least is None:
        return NothingFits(
            model=decoder.name, phase=request.phase, machine=machine.name, least="no way",
            has=round(machine.target.hbm_bytes / GIB, 1),
            split=f"{request.batch or DEFAULT_BATCH} sequences: no number of ranks divides them",
        )  # fmt: skip
    return _too_large(decoder, machine, request, least, sum(least.known_bytes().values()))


def _too_large(
    decoder: Decoder, machine: Machine, request: Request, work: StepWork, needed: int
) -> NothingFits:
    return NothingFits(
        model=decoder.name, phase=request.phase, machine=machine.name,
        least=round(needed / GIB, 1), has=round(machine.target.hbm_bytes / GIB, 1),
        split=f"{work.split}, micro-batch {work.micro}",
    )  # fmt: skip


@dataclass(frozen=True)
class ModulePlan:
    """What a module takes on each rank, and how many copies of it a machine has cores for."""

    name: str
    machine: Machine
    ranks: int
    copies: int
    core_bytes: int
    step_us: float
    exchange_us: float
    instructions: int
    compile_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        return asdict(self) | {"machine": self.machine.name}


def plan_module(graph: Graph, machine: Machine, optlevel: int) -> ModulePlan:
    """Compile a module as it is divided, and see what one rank takes. Raises NothingFits."""
    started = time.process_time()
    options = CompileOptions(
        target=machine.target_name, optlevel=optlevel, auto_cast="none", logical_nc_config=1
    )
    neff = compile_graph(graph, options)
    seconds = time.process_time() - started
    held = sum(map(device_bytes, neff.programs)) // len(neff.programs)
    cores = neff.ranks * len(neff.programs)
    if cores > machine.cores or held > machine.target.hbm_bytes:
        raise NothingFits(
            model=neff.name, phase="a step", machine=machine.name, least=round(held / GIB, 1),
            has=round(machine.target.hbm_bytes / GIB, 1),
            split=f"{cores} cores of the {machine.cores} there are",
        )  # fmt: skip
    profile = load(neff).profile()
    exchanged = profile.communication.exposed_us if profile.communication else 0.0
    count = sum(1 for each in neff.programs for _ in each.instructions())
    return ModulePlan(neff.name, machine, neff.ranks, machine.cores // cores, held,
                      profile.latency_us, exchanged, count, seconds)  # fmt: skip
