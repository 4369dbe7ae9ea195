"""Programs of any instructions with any fields changed, for what has to hold of all of them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from glia.base.affine import Affine
from glia.base.dtype import BF16, F32
from glia.isa.examples import examples
from glia.isa.kit import Instr
from glia.isa.operand import Pattern, Signal, Wait
from glia.machine.ir import Branch, Loop, Program, Statement, While, walk

EXAMPLES = tuple(examples().values())
AFFINE_ATTRIBUTES = ("accumulate", "offset", "value", "iteration_id")
NAMES = ("i", "j", "$r")
AFFINE = st.builds(
    lambda constant, terms: Affine.build(terms, constant),
    st.integers(-3, 600),
    st.dictionaries(st.sampled_from(NAMES), st.integers(-4, 4), max_size=2),
)
WAITS = st.lists(st.builds(Wait, st.sampled_from("abc"), AFFINE), max_size=3).map(tuple)
SIGNALS = st.lists(st.builds(Signal, st.sampled_from("abc"), st.integers(1, 20)), max_size=2).map(
    tuple
)


@st.composite
def instructions(draw: st.DrawFn) -> Instr:
    """An example with other waits, signals, engine, queue and places; it need not be legal."""
    instr = draw(st.sampled_from(EXAMPLES))
    changed: dict[str, object] = {}
    for name, value in vars(instr).items():
        if isinstance(value, Pattern) and draw(st.booleans()):
            changed[name] = draw(moved(value))
        elif name in AFFINE_ATTRIBUTES:
            changed[name] = draw(st.sampled_from((value, Affine.of(0), Affine.of("i"))))
    changed["waits"], changed["signals"] = draw(WAITS), draw(SIGNALS)
    changed["on"] = draw(st.sampled_from(("", *type(instr).engines)))
    changed["queue"] = draw(st.sampled_from(("", "q0", "q1"))) if instr.queue else ""
    return replace(instr, **changed)


@st.composite
def moved(draw: st.DrawFn, pattern: Pattern) -> Pattern:
    """The pattern at another place, of another dtype or shape, or in another tile."""
    (step, rows), *free = pattern.dims
    return replace(
        pattern,
        tile=replace(pattern.tile, name=draw(st.sampled_from("xyz"))),
        dtype=draw(st.sampled_from((pattern.dtype, BF16, F32))),
        dims=((step, draw(st.sampled_from((rows, 32)))), *free),
        offset=draw(st.one_of(st.just(pattern.offset), AFFINE)),
        partition=draw(st.one_of(st.just(pattern.partition), AFFINE)),
    )


def _controls(inside: st.SearchStrategy[Statement]) -> st.SearchStrategy[Statement]:
    blocks = st.lists(inside, max_size=3).map(tuple)
    return st.one_of(
        st.builds(Loop, st.sampled_from("ij"), st.integers(0, 4), blocks),
        st.builds(While, blocks, st.just("r"), blocks),
        st.builds(Branch, st.just("r"), st.lists(blocks, max_size=3).map(tuple)),
    )


def programs() -> st.SearchStrategy[Program]:
    """Programs with loops, run-time control flow, and instructions that meet again."""
    statements = st.recursive(instructions(), _controls, max_leaves=8)
    return (
        st.lists(statements, max_size=8)
        .flatmap(lambda some: st.lists(st.sampled_from(some), max_size=10) if some else st.just([]))
        .map(program)
    )


def program(body: list[Statement] | tuple[Statement, ...]) -> Program:
    """A program of these statements; not all its tiles need to agree."""
    tiles = {p.tile.name: p.tile for instr in walk(tuple(body)) for _, _, p in instr.operands()}
    return Program("any", "trn2", tiles, (), (), {}, tuple(body))
