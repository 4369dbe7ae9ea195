"""Every number of the hardware says where it comes from; what is assumed can be listed."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping

import pytest

from glia.arch import ARCHS, TARGETS
from glia.arch.constant import CONFIDENCES
from glia.arch.kit import Arch, Capabilities
from glia.isa.kit import INSTRUCTIONS
from glia.timing.constant_table import assumed_constants
from house.source import PACKAGE, nodes_of, place, python_files

ARCH = PACKAGE / "arch"
CAPABILITY_FIELDS = ("capabilities", "capability_sources")


@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: arch.name)
def test_every_number_has_unit_source_and_confidence(arch: Arch) -> None:
    for field in dataclasses.fields(Arch):
        value = getattr(arch, field.name)
        if field.name in ("name", "generation", "constants", "fabric", *CAPABILITY_FIELDS):
            continue
        names = (
            [f"{field.name}.{key}" for key in value] if isinstance(value, Mapping) else [field.name]
        )
        for name in names:
            constant = arch.constants[name]
            assert constant.unit and constant.source and constant.confidence in CONFIDENCES, name


@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: arch.name)
def test_no_constant_rests_on_one_publication_that_another_contradicts(arch: Arch) -> None:
    """Where publications differ, more of them give the value than give others."""
    for name, constant in arch.constants.items():
        by = {r.publication: r.supports(constant.value) for r in constant.readings}
        assert len(by) == len(constant.readings), f"{name}: a publication counts once"
        assert not by or sum(by.values()) > len(by) - sum(by.values()), f"{arch.name} {name}"


@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: arch.name)
def test_every_capability_has_a_source(arch: Arch) -> None:
    names = [field.name for field in dataclasses.fields(Capabilities)]
    assert [name for name in names if not arch.capability_sources[name].strip()] == []


def test_a_chip_is_one_file() -> None:
    """Outside arch/ nothing is decided by a core's generation: it is a capability with a name.

    That a declaration lists the generation (`in`) is how instructions say where they exist.
    """
    wrong = []
    for path in python_files(PACKAGE):
        if ARCH in path.parents:
            continue
        for node in nodes_of(path):
            if isinstance(node, ast.Compare) and _compares_generations(node):
                wrong.append(place(path, node.lineno))
    assert not wrong, "\n".join(["", *wrong])


def _compares_generations(node: ast.Compare) -> bool:
    sides = (node.left, *node.comparators)
    is_attribute = any(isinstance(s, ast.Attribute) and s.attr == "generation" for s in sides)
    return is_attribute and not all(isinstance(op, ast.In | ast.NotIn) for op in node.ops)


def test_every_capability_is_asked_for() -> None:
    asked = {
        node.attr
        for path in python_files(PACKAGE)
        if ARCH not in path.parents
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute)
    }
    assert {field.name for field in dataclasses.fields(Capabilities)} - asked == set()


def test_every_target_has_a_source() -> None:
    assert [name for name, target in TARGETS.items() if not target.source.strip()] == []


def test_numbers_stand_in_declarations_only() -> None:
    """In arch/ a number is an argument of Constant, Reading, a target or machine, or structural.

    How far constants may be off is said once, in SPREADS and AGREEMENT.
    """
    wrong = []
    for path in python_files(ARCH):
        declared = {
            id(inner)
            for node in nodes_of(path)
            if _declares_numbers(node)
            for inner in ast.walk(node)
        }
        for node in nodes_of(path):
            is_number = isinstance(node, ast.Constant) and isinstance(node.value, int | float)
            if is_number and id(node) not in declared and node.value not in (0, 1, 30, True):
                wrong.append(f"{place(path, node.lineno)}: {node.value}")
    assert not wrong, "\n".join(["", *wrong])


def _declares_numbers(node: ast.AST) -> bool:
    calls = ("Constant", "Reading", "Fabric", "Row", "_rate", "of_chips", "build_arch",
             "build_target", "replace")  # fmt: skip
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in calls
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id in ("SPREADS", "AGREEMENT")
    return False


def test_assumed_numbers_can_be_listed() -> None:
    listed = assumed_constants()
    expected = [(a, name) for a in ARCHS for name in a.assumed]
    assert len(listed) == len(expected) > 0
    for (arch, name), line in zip(expected, listed, strict=True):
        assert arch.name in line and name in line and arch.constants[name].unit in line


def test_a_number_that_is_not_published_says_so() -> None:
    wrong = [
        f"{arch.name} {name}"
        for arch in ARCHS
        for name, constant in arch.constants.items()
        if constant.confidence != "assumed" and constant.source == "not published"
    ]
    assert not wrong, "\n".join(["", *wrong])


def test_every_rule_and_cost_of_an_instruction_has_a_source() -> None:
    wrong = [
        f"{name}: {rule.sentence}"
        for name, instruction in INSTRUCTIONS.items()
        for rule in instruction.rules
        if not rule.source.strip() or not rule.sentence.strip()
    ]
    assert not wrong, "\n".join(["", *wrong])
    assert [n for n, i in INSTRUCTIONS.items() if not i.cost_source.strip()] == []
