"""Writes the reference pages of the instruction set and the hardware from their declarations.

python -m glia.isa.document docs/isa
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from glia.arch import ARCHS, TARGETS, Arch
from glia.isa import INSTRUCTIONS, Instr, Operand
from glia.isa.activation import ACTIVATIONS
from glia.isa.alu import ALU_OPS
from glia.isa.meeting import Meeting
from glia.isa.rules import COMMON_RULES

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")
_GENERATED = "*Generated from the declarations in `src/glia`; do not edit.*"


def pages() -> dict[str, str]:
    """Every page's text by file name."""
    return {
        "instructions.md": _page(_instructions()),
        "operators.md": _page(_operators()),
        "hardware.md": _page(_hardware()),
    }


def _page(lines: Iterator[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def _instructions() -> Iterator[str]:
    yield from ("# Instructions", "", _GENERATED, "")
    yield from ("Rules that hold for every instruction:", "")
    yield from (f"- {rule.sentence} ({rule.source})" for rule in COMMON_RULES)
    for engine in ENGINES:
        yield from ("", f"## {engine.capitalize()} engine", "")
        for name, instr in INSTRUCTIONS.items():
            if instr.engine == engine:
                yield from _instruction(name, instr)


def _instruction(name: str, instr: type[Instr]) -> Iterator[str]:
    yield from (f"### {name}", "", inspect.getdoc(instr) or "", "")
    generations = ", ".join(map(str, instr.generations))
    yield from (f"Engines: {', '.join(instr.engines)}. Generations: {generations}.", "")
    rows = [_operand_row(n, declared) for n, declared in instr.operand_declarations.items()]
    fields = {field.name: field for field in dataclasses.fields(instr)}
    rows += [_attribute_row(fields[n]) for n in instr.attribute_names]
    if rows:
        yield from ("| field | what |", "|---|---|", *rows, "")
    yield from _remarks(instr)
    for name, kept in instr.states.items():
        where = f"the partitions of `{kept.lanes}`" if kept.lanes else "all partitions"
        yield from (f"Keeps `{name}` in its engine: the {kept.state.name} of {where}.", "")
    for rule in instr.rules:
        yield f"- {rule.sentence} ({rule.source})"
    if instr.rules:
        yield ""
    yield from (f"Not documented, and here: {sentence}." for sentence in instr.assumed)
    if instr.assumed:
        yield ""
    if instr.forms:
        shown = ", ".join(f"`{form}`" for form in instr.forms)
        yield from (f"Computes: {shown}.", "")
    cost = " ".join((inspect.getdoc(instr.cycles) or "").split())
    yield from (f"Cost: {cost} Source: {instr.cost_source}.", "")


def _remarks(instr: type[Instr]) -> Iterator[str]:
    if issubclass(instr, Meeting):
        yield from (f"A meeting of {instr.among}: see docs/decisions/meetings.md.", "")
    if instr.hints:
        listed = ", ".join(f"`{name}`" for name in instr.hints)
        yield from (f"Changing no value: {listed}.", "")


def _operand_row(name: str, operand: Operand) -> str:
    where = " or ".join(memory.value for memory in operand.memories)
    extras = [
        text
        for text, holds in (
            ("one value per partition", operand.is_column),
            ("or a number", operand.allows_immediate),
            ("one or more", operand.is_several),
            ("may be left out", operand.is_optional),
        )
        if holds
    ]
    return f"| `{name}` | {operand.access} {'; '.join([where, *extras])} |"


def _attribute_row(field: dataclasses.Field[object]) -> str:
    kind = str(field.type).replace("|", "or")
    default = "" if field.default is dataclasses.MISSING else f", default `{field.default!r}`"
    return f"| `{field.name}` | {kind}{default} |"


def _operators() -> Iterator[str]:
    yield from ("# Operators and activation functions", "", _GENERATED, "")
    columns = "| operator | operands | family | engines | reduces | source |"
    yield from ("## Operators", "", columns)
    yield "|---|---|---|---|---|---|"
    for op in ALU_OPS.values():
        reduces = "yes" if op.identity is not None else ""
        engines = ", ".join(op.engines)
        yield f"| `{op.name}` | {op.arity} | {op.family} | {engines} | {reduces} | {op.source} |"
    yield from ("", "## Activation functions", "", "| function | arguments | table set | source |")
    yield "|---|---|---|---|"
    for function in ACTIVATIONS.values():
        low, high = f"{function.low:g}", f"{function.high:g}"
        span = "all" if (low, high) == ("-inf", "inf") else f"{low} to {high}"
        span += " in magnitude" if function.is_magnitude else ""
        yield f"| `{function.name}` | {span} | {function.table_set} | {function.source} |"


def _hardware() -> Iterator[str]:
    yield from ("# Hardware constants", "", _GENERATED, "")
    yield from ("## Targets", "", "| target | core | memory per chip | cores per chip | LNC |")
    yield "|---|---|---|---|---|"
    for target in TARGETS.values():
        memory = f"{target.chip_hbm_bytes >> 30} GiB"
        lncs = ", ".join(map(str, target.lncs))
        arch = target.arch.name
        yield f"| {target.name} | {arch} | {memory} | {target.cores_per_chip} | {lncs} |"
    for arch in ARCHS:
        yield from _constants(arch)
    yield from ("", "## Assumed numbers", "", "No public source gives these; they are worked down.")
    yield ""
    for arch in ARCHS:
        yield f"- {arch.name}: {', '.join(f'`{name}`' for name in arch.assumed)}"
    assumed = [
        name for name, instr in INSTRUCTIONS.items() if instr.cost_source.startswith("assumed")
    ]
    yield f"- costs of instructions: {', '.join(f'`{name}`' for name in assumed)}"


def _constants(arch: Arch) -> Iterator[str]:
    yield from ("", f"## {arch.name}", "", "| constant | value | source | confidence |")
    yield "|---|---|---|---|"
    for name, constant in arch.constants.items():
        value = f"{constant.value:g} {constant.unit}"
        yield f"| `{name}` | {value} | {constant.source} | {constant.confidence} |"


def write(folder: Path) -> None:
    """Write every page into a folder, making it if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
