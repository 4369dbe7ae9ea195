"""The reference pages of the instruction set and the hardware, made from their declarations."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator

from glia.arch import ARCHS, TARGETS, Arch
from glia.arch.machines import MACHINES
from glia.isa import INSTRUCTIONS
from glia.isa.activation import ACTIVATIONS
from glia.isa.alu import ALU_OPS
from glia.isa.examples import examples
from glia.isa.kit import ENGINES, Indirect, Instr, Operand, Rule
from glia.isa.rendezvous import CrossCoreInstr
from glia.isa.rules import COMMON_RULES
from glia.machine.legal_instruction import violations
from glia.machine.text import print_instruction

_GENERATED = "*Generated from the declarations in `src/glia`; do not edit.*"


def pages() -> dict[str, str]:
    """Every page's text by its path in the folder."""
    shown = examples()
    return {
        "instructions.md": _page(_instructions()),
        "operators.md": _page(_operators()),
        "hardware.md": _page(_hardware()),
        **{
            f"instructions/{name}.md": _page(_instruction(name, instr, shown[name]))
            for name, instr in INSTRUCTIONS.items()
        },
    }


def instruction_page(name: str) -> str:
    """The page of one instruction; KeyError for none."""
    return _page(_instruction(name, INSTRUCTIONS[name], examples()[name]))


def _page(lines: Iterator[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def _instructions() -> Iterator[str]:
    yield from ("# Instructions", "", _GENERATED, "")
    yield from ("Rules that hold for every instruction:", "")
    yield from map(_rule, COMMON_RULES)
    for engine in ENGINES:
        yield from ("", f"## {engine.capitalize()} engine", "")
        yield from ("| instruction | what it does | generations |", "|---|---|---|")
        for name, instr in INSTRUCTIONS.items():
            if instr.engine == engine:
                first = " ".join((inspect.getdoc(instr) or "").partition("\n\n")[0].split())
                generations = ", ".join(map(str, instr.generations))
                what = first.replace("|", "\\|")
                yield f"| [{name}](instructions/{name}.md) | {what} | {generations} |"


def _instruction(name: str, instr: type[Instr], example: Instr) -> Iterator[str]:
    yield from (f"# {name}", "", _GENERATED, "", inspect.getdoc(instr) or "", "")
    generations = ", ".join(map(str, instr.generations))
    yield from (f"Engines: {', '.join(instr.engines)}. Generations: {generations}.", "")
    rows = [_operand_row(n, declared) for n, declared in instr.operand_declarations.items()]
    fields = {field.name: field for field in dataclasses.fields(instr)}
    rows += [_attribute_row(fields[n]) for n in instr.attribute_names]
    if rows:
        yield from ("## Fields", "", "| field | what |", "|---|---|", *rows, "")
    yield from _remarks(instr)
    if instr.rules:
        yield from ("## Rules", "", "Beside those of [every instruction](../instructions.md):", "")
        yield from map(_rule, instr.rules)
        yield ""
    if instr.assumed:
        yield from ("## Not documented, and here", "")
        yield from (*(f"- {sentence}" for sentence in instr.assumed), "")
    if instr.forms:
        yield from ("## What selection covers with it", "")
        yield from (*(f"- `{form}`" for form in instr.forms), "")
    cost = " ".join((inspect.getdoc(instr.cycles) or "").split())
    yield from ("## Cost", "", f"{cost} Source: {instr.cost_source}.", "")
    yield from _example(example)


def _rule(rule: Rule) -> str:
    cure = f"; instead, {rule.cure}" if rule.cure else ""
    return f"- {rule.sentence}{cure} ({rule.source})"


def _example(example: Instr) -> Iterator[str]:
    """A legal use, and what it takes on each generation that has it."""
    yield from ("## Example", "", "```text", print_instruction(example), "```", "")
    busy = [
        f"{example.cycles(arch)} cycles on {arch.name}"
        for arch in ARCHS
        if arch.capabilities.is_documented and not violations(example, arch)
    ]
    if not type(example).arrives_by_dma and busy:
        yield from (f"The {example.runs_on} engine is busy for {', '.join(busy)}.", "")


def _remarks(instr: type[Instr]) -> Iterator[str]:
    for name, kept in instr.states.items():
        where = f"the partitions of `{kept.lanes}`" if kept.lanes else "all partitions"
        yield from (f"Keeps `{name}` in its engine: the {kept.state.name} of {where}.", "")
    if issubclass(instr, CrossCoreInstr):
        yield from (
            f"Synchronises {instr.among}: see docs/decisions/cross-core-instructions.md.",
            "",
        )
    if instr.indirect is not None:
        yield from _indirect(instr.indirect)
    if instr.hints:
        listed = ", ".join(f"`{name}`" for name in instr.hints)
        yield from (f"Changing no value: {listed}.", "")


def _indirect(indirect: Indirect) -> Iterator[str]:
    """Which operands may be views of nki's `.indirect()`, and how."""
    listed = ", ".join(f"`{name}`" for name in indirect.operands)
    engines = f" on {', '.join(indirect.engines)}" if indirect.engines else ""
    rules = "".join(f"; {sentence}" for sentence, _ in indirect.rules)
    group = f"groups of {indirect.group} partitions share a list of offsets"
    text = f"From generation 4 views by an index on chip{engines}: {listed}; {group}{rules}."
    yield from (text, "")


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
    for generation in ARCHS:
        yield from _constants(generation)
    yield from _fabrics()
    yield from ("", "## Assumed numbers", "", "No public source gives these; they are worked down.")
    yield ""
    for generation in ARCHS:
        yield f"- {generation.name}: {', '.join(f'`{name}`' for name in generation.assumed)}"
    assumed = [
        name for name, instr in INSTRUCTIONS.items() if instr.cost_source.startswith("assumed")
    ]
    yield f"- costs of instructions: {', '.join(f'`{name}`' for name in assumed)}"


def _fabrics() -> Iterator[str]:
    """How the chips of each instance are connected."""
    columns = "| instance | chips | connection | bytes/ns, one way | source | confidence |"
    yield from ("", "## Instances", "", columns, "|---|---|---|---|---|---|")
    for machine in MACHINES.values():
        for name, number in machine.fabric.constants():
            value = f"{number.value:g}" + (" ns" if number.unit == "ns" else "")
            cells = machine.name, machine.chips, name, value, number.source, number.confidence
            yield f"| {' | '.join(map(str, cells))} |"


def _constants(arch: Arch) -> Iterator[str]:
    yield from ("", f"## {arch.name}", "", "| constant | value | source | confidence |")
    yield "|---|---|---|---|"
    for name, constant in arch.constants.items():
        value = f"{constant.value:g} {constant.unit}"
        yield f"| `{name}` | {value} | {constant.source} | {constant.confidence} |"
