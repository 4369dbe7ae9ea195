"""`Neff`: a compiled model, in memory and on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from glia.base.files import map_file, write_atomically
from glia.base.notebook import describe
from glia.isa.rendezvous import CrossCoreInstr
from glia.machine.binary.errors import NeffError
from glia.machine.ir import Binding, Program
from glia.neff.read import Meanwhile, read_neff
from glia.neff.write import neff_pieces

MAXIMUM_BYTES = 1 << 38  # more than the HBM of any chip


@dataclass(frozen=True, eq=False)
class Neff:
    """A compiled model: one program for each physical core, and the options it was compiled with.

    It runs on `replicas` times `partitions` ranks, each of which has these programs.

    `options` are the compiler options that produced it, `statistics` numbers about the source
    model ("flops": of its contractions) and `report` what the compiler decided (`explain_code`);
    all are written as JSON and must hold plain values.
    """

    programs: tuple[Program, ...]
    options: Mapping[str, object] = field(default_factory=dict)
    statistics: Mapping[str, float] = field(default_factory=dict)
    is_compressed: bool = True
    report: Mapping[str, Any] = field(default_factory=dict)
    replicas: int = 1
    partitions: int = 1

    def __repr__(self) -> str:
        given, made = (
            ", ".join(f"{b.name} {b.dtype}{list(b.shape)}" for b in bindings)
            for bindings in (self.inputs, self.outputs)
        )
        ranks = f" on {self.ranks} ranks" if self.ranks > 1 else ""
        return f"<neff {self.name} for {self.target}{ranks}: {given} -> {made}>"

    def _repr_html_(self) -> str:
        """A summary for notebooks."""
        return self.describe_html(f"Neff {self.name}", ())

    def describe_html(self, title: str, facts: Iterable[tuple[str, str]]) -> str:
        """Target, size and tensors under a title, with more facts behind them."""
        instructions = sum(sum(1 for _ in program.instructions()) for program in self.programs)
        known = (
            ("target", self.target),
            ("cores", str(len(self.programs))),
            *([("ranks", str(self.ranks))] if self.ranks > 1 else ()),
            ("instructions", f"{instructions:,}"),
        )
        rows = [
            (usage, b.name, f"{b.dtype}[{','.join(map(str, b.shape))}]")
            for usage, bindings in (("input", self.inputs), ("output", self.outputs))
            for b in bindings
        ]
        return describe(title, (*known, *facts), ("", "tensor", "type"), rows)

    @property
    def program(self) -> Program:
        """The first core's program; the only one unless the model is split over cores."""
        return self.programs[0]

    @cached_property
    def ranks(self) -> int:
        """How many ranks run the model together: replicas before partitions.

        Of a kernel, which does not say, as many as its collectives name.
        """
        said = self.replicas * self.partitions
        return said if said > 1 else max([1, *map(_named_ranks, self.programs)])

    @property
    def name(self) -> str:
        """The model's name."""
        return self.program.name

    @property
    def target(self) -> str:
        """The device family the model was compiled for, e.g. "trn2"."""
        return self.program.target

    @property
    def inputs(self) -> tuple[Binding, ...]:
        """The tensors to give, in order: name, shape, dtype, and the HBM tile that holds each."""
        return _distinct(binding for program in self.programs for binding in program.inputs)

    @property
    def outputs(self) -> tuple[Binding, ...]:
        """The tensors that come back, in order."""
        return _distinct(binding for program in self.programs for binding in program.outputs)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the compiler wants the user to know: casts, spills, ..."""
        return tuple(dict.fromkeys(note for program in self.programs for note in program.notes))

    def to_bytes(self) -> bytes:
        """The NEFF file's bytes; equal models give equal bytes."""
        return b"".join(self.pieces())

    @staticmethod
    def from_bytes(data: bytes | memoryview, meanwhile: Meanwhile | None = None) -> Neff:
        """Read a NEFF from memory; NeffError (or a subclass) when it is damaged or not ours.

        `meanwhile` is called with the programs and ranks of a large one while its hash is computed.
        """
        return Neff(*read_neff(memoryview(data), meanwhile))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the NEFF; the file appears complete or not at all. OSError when it cannot."""
        write_atomically(Path(path), self.pieces())

    @staticmethod
    def load(path: str | os.PathLike[str], meanwhile: Meanwhile | None = None) -> Neff:
        """Read a NEFF file; NeffError (or a subclass) when it is missing, damaged or not ours.

        `meanwhile` is that of `from_bytes`.

        The weights of one that is not compressed (`fast_loading_neuron_binaries`) are the file's
        own pages: they are not copied, and models of one file in several processes share them. The
        gzip of a compressed one has a mark every 64 KiB, so that its weights must be copied.
        """
        return Neff.from_bytes(neff_bytes(Path(path)), meanwhile)

    def pieces(self) -> list[bytes | memoryview]:
        """The NEFF file's bytes in pieces, of which the weights are not copied."""
        return neff_pieces(
            self.programs,
            self.options,
            self.statistics,
            self.is_compressed,
            self.report,
            (self.replicas, self.partitions),
        )


def _named_ranks(program: Program) -> int:
    """One more than the highest rank that a collective of the program names."""
    groups = (
        group
        for instr in program.instructions()
        if isinstance(instr, CrossCoreInstr) and instr.among == "ranks"
        for name in ("groups", "source_target_pairs")
        for group in getattr(instr, name, ())
    )
    return 1 + max((rank for group in groups for rank in group), default=-1)


def _distinct(bindings: Iterable[Binding]) -> tuple[Binding, ...]:
    by_name: dict[str, Binding] = {}
    for binding in bindings:
        by_name.setdefault(binding.name, binding)
    return tuple(by_name.values())


def neff_bytes(path: Path) -> memoryview:
    """The bytes of a file; NeffError when it cannot be read, or no chip could hold its model."""
    try:
        return map_file(path, MAXIMUM_BYTES)
    except OSError as problem:
        raise NeffError(path=path, reason=problem.strerror) from problem
