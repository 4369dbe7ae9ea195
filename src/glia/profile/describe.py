"""One line of text for an instruction, as pictures and traces show it."""

from __future__ import annotations

from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern


def operands_text(instr: Instr) -> str:
    """Operands and attributes: `dst=y[128 x 512 bf16] data=x[128 x 512 f32 at 4*i] op=add`."""
    parts = [f"{name}={pattern_text(pattern)}" for name, _, pattern in instr.operands()]
    attributes = ((name, getattr(instr, name)) for name in instr.attribute_names)
    parts += [f"{name}={value}" for name, value in attributes if value not in (None, "", False, ())]
    return " ".join(parts)


def pattern_text(pattern: Pattern) -> str:
    """The tile, the extent of the pattern, its dtype, and where it starts if not at 0."""
    extent = " x ".join(str(count) for count in pattern.shape)
    place = []
    if str(pattern.partition) != "0":
        place.append(f"partition {pattern.partition}")
    if str(pattern.offset) != "0":
        place.append(str(pattern.offset))
    start = f" at {', '.join(place)}" if place else ""
    memory = " HBM" if pattern.memory is Memory.HBM else ""
    return f"{pattern.tile.name}[{extent} {pattern.dtype}{memory}{start}]"
