"""The columns of a program say what its instructions say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glia.base.affine import Affine
from glia.base.dtype import BF16
from glia.base.errors import InternalError
from glia.isa.examples import chip, examples, hbm
from glia.isa.instructions.dma_transpose import DmaCompute
from glia.isa.instructions.vector import Memset, TensorCopy, TensorScalar
from glia.isa.kit import INSTRUCTIONS, Instr
from glia.isa.operand import Pattern, Signal, Wait
from glia.machine.columns.table import ACCESSES, AffineColumn, Columns, InstructionSpan, columns_of
from glia.machine.columns.value_numbering import group_rows
from glia.machine.ir import Loop, Statement
from support.examples import with_examples
from support.generated_programs import instructions, program, programs


def expression(column: AffineColumn, row: int) -> Affine:
    terms = column.terms.distinct[column.terms.number[row]]
    return Affine(terms, int(column.constant[row]))


def patterns(columns: Columns, number: int) -> list[tuple[str, str, Pattern]]:
    """What an instruction touches, as the columns say."""
    table = columns.patterns
    rows = range(int(table.begin[number]), int(table.begin[number + 1]))
    assert all(table.owner[row] == number for row in rows)
    return [
        (
            table.name.distinct[table.name.number[row]],
            ACCESSES[table.access[row]],
            Pattern(
                *(
                    each.distinct[each.number[row]]
                    for each in (table.tile, table.dtype, table.dims)
                ),
                expression(table.offset, row),
                expression(table.partition, row),
            ),
        )
        for row in rows
    ]


def waits(columns: Columns, number: int) -> tuple[Wait, ...]:
    table = columns.waits
    rows = range(int(table.begin[number]), int(table.begin[number + 1]))
    names = columns.semaphores
    return tuple(Wait(names[table.semaphore[r]], expression(table.value, r)) for r in rows)


def signals(columns: Columns, number: int) -> tuple[Signal, ...]:
    table = columns.signals
    rows = range(int(table.begin[number]), int(table.begin[number + 1]))
    names = columns.semaphores
    return tuple(Signal(names[table.semaphore[r]], int(table.amount[r])) for r in rows)


def form(instr: Instr) -> list[object]:
    """All that an instruction says but for patterns, waits, signals and its source line."""
    told: list[object] = [type(instr)]
    for name, value in vars(instr).items():
        if name in ("waits", "signals", "loc"):
            continue
        declared = instr.operand_declarations.get(name)
        if declared is not None and declared.is_several:
            value = len(value)
        told.append(Pattern if isinstance(value, Pattern) else (type(value), value))
    return told


def is_expression(told: object) -> bool:
    return isinstance(told, tuple) and told[0] is Affine


def statements(body: tuple[InstructionSpan, ...], columns: Columns) -> tuple[Statement, ...]:
    """The statements that spans stand for."""
    found: list[Statement] = []
    for span in body:
        if span.statement is None:
            found += columns.instructions[span.begin : span.end]
            continue
        found.append(span.statement)
        assert all(span.begin <= each.begin <= each.end <= span.end
                   for block in span.blocks for each in block)  # fmt: skip
        parts = vars(span.statement)
        blocks = parts.get("arms") or [
            parts[name] for name in ("condition", "body") if name in parts
        ]
        assert [statements(block, columns) for block in span.blocks] == list(blocks)
    return tuple(found)


@given(programs())
@with_examples(40)
def test_columns_say_what_the_instructions_say(tested):
    columns = columns_of(tested)
    assert columns.instructions == list(tested.instructions())
    assert statements(columns.body, columns) == tested.body
    for number, instr in enumerate(tested.instructions()):
        touched = [(name, instr.access(name), pattern) for name, _, pattern in instr.operands()]
        assert patterns(columns, number) == touched
        assert waits(columns, number) == instr.waits
        assert signals(columns, number) == instr.signals


@given(programs())
@with_examples(40)
def test_instructions_of_one_form_agree_in_all_but_patterns(tested):
    columns = columns_of(tested)
    listed = list(tested.instructions())
    forms = [form(instr) for instr in listed]
    assert columns.form.first[columns.form.number].tolist() == first_rows(forms)
    families = [["affine" if is_expression(each) else each for each in f] for f in forms]
    assert columns.family.first[columns.family.number].tolist() == first_rows(families)


@given(programs())
@with_examples(40)
def test_instructions_are_alike_where_forms_and_patterns_agree(tested):
    columns, table = columns_of(tested), columns_of(tested).patterns
    alike = columns.group_by_patterns(group_rows(table.dims.number, table.dtype.number).number)
    listed = list(tested.instructions())
    keys = [(form(i), [(p.dims, p.dtype) for _, _, p in i.operands()]) for i in listed]
    assert alike.first[alike.number].tolist() == [keys.index(key) for key in keys]


@pytest.mark.parametrize("instr", examples().values(), ids=lambda i: i.mnemonic())
def test_every_field_of_every_instruction_tells(instr):
    """An instruction differs in form when any attribute is changed, whatever it is."""
    for name in ("on", "queue", *instr.attribute_names):
        other = replace(instr, **{name: f"not {getattr(instr, name)!r}"})
        overridden = type(instr).access is not Instr.access or name in instr.read_when.values()
        if overridden and not isinstance(getattr(instr, name), str):
            continue
        assert columns_of(program([instr, other])).form.number.tolist() == [0, 1], name


def test_every_instruction_has_an_example():
    assert examples().keys() == INSTRUCTIONS.keys()


def many(count: int) -> DmaCompute:
    sources = tuple(hbm(f"x{number}", 4, 3) for number in range(count))
    return DmaCompute(dst=chip("a", 4, 3), srcs=sources)


def test_instructions_with_many_patterns_are_compared_in_all_of_them():
    last = (*many(30).srcs[:-1], hbm("x29", 4, 3, dtype=BF16))
    listed = [many(30), many(30), replace(many(30), srcs=last), many(29)]
    columns = columns_of(program(listed))
    assert columns.group_by_patterns(columns.patterns.dtype.number).number.tolist() == [0, 0, 1, 2]


def test_values_of_different_types_differ():
    out = chip("out", 4, 4)
    listed = [Memset(dst=out, value=value) for value in (1, 1.0, True, 1)]
    assert columns_of(program(listed)).form.number.tolist() == [0, 1, 2, 0]


def test_what_is_no_pattern_belongs_to_the_form():
    """Columns are made of programs before they are verified, so any field may hold anything."""
    out, given = chip("out", 4, 4), {"op0": "add", "op1": "add", "operand1": None}
    listed = [
        TensorScalar(dst=out, data=out, operand0=2.0, **given),
        TensorScalar(dst=out, data=None, operand0=out, **given),
        TensorScalar(dst=out, data=[1], operand0=out, **given),
        DmaCompute(dst=out, srcs=(out, 3)),
        DmaCompute(dst=out, srcs=7),
    ]
    columns = columns_of(replace(program([]), body=tuple(listed)))
    assert np.diff(columns.patterns.begin).tolist() == [2, 2, 2, 1, 1]
    assert columns.form.number.tolist() == [0, 1, 2, 3, 4]


def test_an_integer_beyond_64_bits_is_an_error():
    far = replace(chip("a", 4, 4), offset=Affine.of(1 << 70))
    with pytest.raises(InternalError, match="64 bits"):
        columns_of(program([TensorCopy(dst=far, src=far)]))


def test_columns_are_made_once_for_a_program(monkeypatch: pytest.MonkeyPatch):
    tested = program([Loop("i", 3, (TensorCopy(dst=chip("a", 4, 4), src=chip("b", 4, 4)),))])
    assert columns_of(tested) is columns_of(tested)
    monkeypatch.setattr("glia.machine.columns.table.MAXIMUM_CACHED_INSTRUCTIONS", 0)
    assert columns_of(replace(tested)) is not columns_of(replace(tested))


@given(st.lists(instructions(), max_size=20), st.integers(1, 4))
@with_examples(20)
def test_reading_in_pieces_changes_nothing(listed, piece):
    whole = columns_of(program(listed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("glia.machine.columns.table.PIECE_INSTRUCTIONS", piece)
        patch.setattr("glia.machine.columns.value_numbering.SMALL_COLUMN", 0)
        parts = columns_of(program(listed))
    for number in range(len(listed)):
        for reading in (patterns, waits, signals):
            assert reading(parts, number) == reading(whole, number)
    assert parts.form.number.tolist() == whole.form.number.tolist()


def first_rows(rows: list[object]) -> list[int]:
    return [rows.index(row) for row in rows]
