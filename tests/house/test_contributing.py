"""docs/contributing.md is true: its files exist, and one class is all that an instruction takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Self

import numpy as np
import pytest

import glia
from glia.arch import get_target
from glia.graph.ir import Node
from glia.graph.ops import Fft, RngBits, SelectAndScatter
from glia.isa.cost import stream_cycles
from glia.isa.examples import chip, examples
from glia.isa.kit import INSTRUCTIONS, Array, Instr, reads, writes
from glia.isa.operand import Pattern
from glia.isa.rules import same_elements
from glia.machine import ProgramBuilder
from glia.machine.ir import Program
from glia.machine.legal import violations
from glia.machine.reference_pages import instruction_page
from glia.machine.text import parse_program, print_program
from glia.nki.issue.functions import make_function
from glia.timing.simulate import simulate_timing
from house.source import PACKAGE, REPOSITORY, python_files, text_of

TARGET = get_target("trn2")


def _paths() -> list[str]:
    text = (REPOSITORY / "docs" / "contributing.md").read_text(encoding="utf-8")
    return sorted(set(re.findall(r"`((?:src|tests|tools|docs)/[\w./]+)`", text)))


def test_every_file_of_a_recipe_exists() -> None:
    assert len(_paths()) > 15
    assert [path for path in _paths() if not (REPOSITORY / path).exists()] == []


SOURCE_PLACES = {  # steps of a recipe that edit a file of src/; the others are tests
    "An instruction": 1,
    "A target, or a core": 1,
    "An HLO operation": 3,
    "A front end": 3,
    "An operator of PyTorch": 1,
    "An error": 1,
}


def _recipes() -> dict[str, list[str]]:
    """The numbered steps of each recipe by its heading."""
    text = (REPOSITORY / "docs" / "contributing.md").read_text(encoding="utf-8")
    sections = [section.partition("\n") for section in text.split("\n## ")[1:]]
    return {title: re.split(r"\n(?=\d\. )", body) for title, _, body in sections}


@pytest.mark.parametrize("title", SOURCE_PLACES)
def test_a_recipe_has_so_many_places_in_the_source(title: str) -> None:
    steps = [step.partition("\n\n")[0] for step in _recipes()[title]]
    edits = [step for step in steps if re.match(r"\d\. ", step) and "`src/" in step]
    assert sum(not step[3:].startswith("If ") for step in edits) == SOURCE_PLACES[title]


@pytest.mark.parametrize("operation", [Fft, RngBits, SelectAndScatter])
def test_an_operation_that_is_expanded_stands_in_three_files(operation: type[Node]) -> None:
    named = {
        path.parent.name
        for path in python_files(PACKAGE)
        if path.name not in ("__init__.py", "product_limits.py")
        and re.search(rf"\b{operation.__name__}\b", text_of(path))
    }
    assert named == {"ops", "expand", "hlo_import"}


@pytest.fixture
def triple() -> Iterator[type[Instr]]:
    """An instruction that is declared here and nowhere else."""

    class ToyTriple(Instr, engine="vector"):
        """Write three times data to dst, element by element, in float32."""

        dst: Pattern = writes("SBUF", "PSUM")
        data: Pattern = reads("SBUF", "PSUM")

        cost_source = "assumed"
        rules = (same_elements("dst", "data", source="this test"),)

        @staticmethod
        def compute(data: Array) -> Array:
            return np.float32(3) * data

        @classmethod
        def example(cls) -> Self:
            return cls(dst=chip("out", 64, 32), data=chip("a", 64, 32))

        def cycles(self, arch: glia.arch.Arch) -> int:
            """One element per cycle and partition."""
            return stream_cycles(arch, "vector", self.data.free)

    yield ToyTriple
    del INSTRUCTIONS["toy_triple"]


def test_an_instruction_is_one_declaration(triple: type[Instr]) -> None:
    example = examples()["toy_triple"]
    assert INSTRUCTIONS["toy_triple"] is triple
    assert violations(example, TARGET.arch) == []
    (broken,) = violations(replace(example, data=chip("a", 64, 16)), TARGET.arch)
    assert "same number of partitions" in broken and "this test" in broken
    page = instruction_page("toy_triple")
    assert "three times data" in page and "this test" in page and "toy_triple(dst=" in page


def test_a_declared_instruction_is_built_printed_run_and_timed(triple: type[Instr]) -> None:
    program = _tripled()
    tiled = next(i for i in program.instructions() if isinstance(i, triple))
    assert tiled.runs_on == "vector"
    assert parse_program(print_program(program), program.constants) == program
    data = np.arange(128 * 8, dtype=np.float32).reshape(128, 8)
    np.testing.assert_array_equal(glia.simulate(program)(data), 3 * data)
    timing = simulate_timing(program, TARGET.arch)
    assert timing.latency_ns > simulate_timing(_tripled(copies=0), TARGET.arch).latency_ns


def test_a_declared_instruction_has_a_function_of_nki(triple: type[Instr]) -> None:
    function = make_function("toy_triple", "dst data")
    assert "three times data" in str(function.__doc__)


def _tripled(copies: int = 1) -> Program:
    builder = ProgramBuilder("toy")
    x, y = builder.input("x", (128, 8), "f32"), builder.output("y", (128, 8), "f32")
    tile = builder.sbuf((128, 8), "f32", "tile")
    builder.dma_copy(tile, x)
    for _ in range(copies):
        builder.toy_triple(tile, tile)
    builder.dma_copy(y, tile)
    return builder.finish()
