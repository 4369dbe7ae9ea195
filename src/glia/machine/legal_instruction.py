"""The verifier of one instruction: its operands' memories, and the rules it declares."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from glia.arch import Arch
from glia.base.affine import Affine
from glia.isa.kit import Instr, Operand, Rule
from glia.isa.operand import Memory, Pattern
from glia.isa.rules import COMMON_RULES


def violations(
    instr: Instr, arch: Arch, names: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Every rule the instruction breaks on this generation, each as a sentence with its numbers.

    A second line holds the cure of the rule, if it has one. `names` has the fields that the
    caller's interface calls otherwise.
    """
    broken = list(_structure(instr, arch, names))
    if broken:
        return broken
    rules = (*COMMON_RULES, *instr.rules)
    return [_rule_violation(rule, instr, names) for rule in rules if not rule.holds(instr, arch)]


def _rule_violation(rule: Rule, instr: Instr, names: Mapping[str, str]) -> str:
    text = f"{rule.text(names)}; here {_numbers(instr, names, rule.sentence)} ({rule.source})"
    return f"{text}\n  cure: {rule.cure}" if rule.cure else text


def _structure(instr: Instr, arch: Arch, names: Mapping[str, str]) -> Iterator[str]:
    """Violations of the instruction's structure; the rules presume there are none."""
    if instr.runs_on not in instr.engines:
        yield f"{instr.mnemonic()} runs on {', '.join(instr.engines)}, not on {instr.runs_on}"
    if arch.generation not in instr.generations:
        yield f"{instr.mnemonic()} does not exist on generation {arch.generation}"
    for name, declared in instr.operand_declarations.items():
        yield from _operand(getattr(instr, name), names.get(name, name), declared)
    for name, kept in instr.states.items():
        if instr.runs_on not in kept.state.words:
            yield f"{instr.runs_on} has no {kept.state.name} for {name}"


def _operand(value: Any, name: str, declared: Operand) -> Iterator[str]:
    if declared.is_several:
        if value == () and declared.is_optional:
            return
        is_tuple = isinstance(value, tuple) and value
        if not is_tuple or not all(isinstance(each, Pattern) for each in value):
            yield f"{name} must be one or more patterns; here it is {value!r}"
            return
        for each in value:
            yield from _pattern_operand(name, each, declared)
    elif isinstance(value, Pattern):
        yield from _pattern_operand(name, value, declared)
    elif value is None:
        if not declared.is_optional:
            yield f"{name} is missing"
    elif not declared.allows_immediate or not isinstance(value, int | float):
        expected = "a pattern or a number" if declared.allows_immediate else "a pattern"
        yield f"{name} must be {expected}; here it is {_describe_operand(value)}"


def _describe_operand(value: object) -> str:
    """The value given for an operand; for an affine expression also the cure."""
    if not isinstance(value, Affine):
        return repr(value)
    return "a register or loop variable\n  cure: store it in a tile first, with register_store"


def _pattern_operand(name: str, pattern: Pattern, declared: Operand) -> Iterator[str]:
    if pattern.memory not in declared.memories:
        allowed = " or ".join(memory.value for memory in declared.memories)
        yield (
            f"{name} must be in {allowed}; here it is in {pattern.memory.value}\n"
            f"  cure: {_placement_cure(pattern.memory, declared)}"
        )
    if not pattern.dims:
        yield f"{name} has no dimensions"


def _placement_cure(memory: Memory, declared: Operand) -> str:
    """How to bring an operand to a memory that the instruction accepts."""
    expected = declared.memories[0].value
    if declared.access != "reads":
        return f"allocate it in {expected}, and copy the result from there if need be"
    if memory is Memory.HBM:
        return f"copy it to a tile in {expected} first, with dma_copy"
    return f"copy it to a tile in {expected} first, with tensor_copy or dma_copy"


def _numbers(instr: Instr, names: Mapping[str, str], sentence: str) -> str:
    """Shapes and places of the operands, and the attributes, that a rule names; else of all."""
    words = set(re.findall(r"\w+", sentence))
    fields = {name for name, _, _ in instr.operands()} | instr.attributes().keys()
    told = fields & words or fields
    parts = [
        f"{names.get(name, name)} is {p.dtype}{list(p.shape)} in {p.memory.value}"
        + (f" from partition {p.partition}" if p.memory is not Memory.HBM else "")
        for name, _, p in instr.operands()
        if name in told
    ]
    parts += [
        f"{names.get(name, name)} is {value!r}"
        for name, value in instr.attributes().items()
        if isinstance(value, int | float | str | tuple) and value != "" and name in told
    ]
    return ", ".join((*parts, f"engine is {instr.runs_on}"))
