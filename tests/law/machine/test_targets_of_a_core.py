"""Targets whose cores are alike get the same programs: a test of one is a test of all of them."""

from __future__ import annotations

import dataclasses

import pytest

from glia.arch import get_target
from glia.arch.instances import COMPILED_TARGETS
from glia.compiler import compile_graph
from glia.machine.text import print_program
from glia.options import CompileOptions
from support.random_graphs.cases import random_case
from support.targets import CORES

ALIKE = [
    (target, core)
    for target in COMPILED_TARGETS
    for core in CORES
    if target != core and get_target(target).arch.name == get_target(core).arch.name
]


def test_every_target_has_a_core_that_tests_run_on() -> None:
    assert {target for target, _ in ALIKE} == set(COMPILED_TARGETS) - set(CORES)
    assert len({get_target(core).arch.name for core in CORES}) == len(CORES)


@pytest.mark.parametrize(("target", "core"), ALIKE)
def test_cores_alike_have_the_same_numbers(target: str, core: str) -> None:
    first, second = (get_target(name).arch for name in (target, core))
    assert first.capabilities == second.capabilities
    values = [{name: _value(arch, name) for name in arch.constants} for arch in (first, second)]
    assert values[0] == values[1]


def _value(arch: object, name: str) -> object:
    """A number of a core, by the name of its declaration: a field, or a field and a key."""
    field, _, key = name.partition(".")
    found = getattr(arch, field)
    return found[key] if key else found


@pytest.mark.parametrize("seed", range(6))
def test_programs_differ_in_the_name_of_the_target_only(seed: int) -> None:
    case = random_case(seed)
    for target, core in ALIKE:
        texts = []
        for name in (target, core):
            options = CompileOptions(**{**case.options, "target": name})
            for program in compile_graph(case.graph, options).programs:
                texts.append(print_program(dataclasses.replace(program, target="")))
        assert texts[0] == texts[1]
