"""Dependences of an instruction on results of its own engine: rules in machine code.

Instructions are gone through in program order. For each tile and engine the latest writers of
different places are remembered; a reader depends on the last that overlaps with what it reads,
before it and in the iteration before. The writers of a loop's body are recorded before its first
iteration is planned, as those of the iteration before. `m` is the record that
`timing.instruction_tables` makes.
"""

from __future__ import annotations

from glia.machine.columns.table import READS, WRITES
from glia.timing.registers import DependenceRecord, Extent

REMEMBERED = 32  # writers of each tile and engine
FUNCTIONS = (
    "depend", "find_dependences", "find_writers", "add_dependence", "note_writes", "note_writer",
    "may_overlap", "are_disjoint",
)  # fmt: skip


def depend(m: DependenceRecord) -> int:
    """Fill `read_step`, the steps each step needs, ascending; `step_read` says where each begins.

    Returns how many there are.
    """
    item = 0
    while item < m.extent[Extent.ITEMS]:
        step = m.item_begin[item]
        while step < m.item_end[item]:
            if m.item_is_planned[item]:
                find_dependences(m, step)
            note_writes(m, step)
            step += 1
        item += 1
    return m.extent[Extent.FOUND]


def find_dependences(m: DependenceRecord, step: int) -> int:
    """Add the dependences of a step: on setters of its registers, on writers of what it reads."""
    begin = m.extent[Extent.FOUND]
    one = m.register_begin[step]
    while one < m.register_begin[step + 1]:
        add_dependence(m, begin, m.register_writer[m.register_read[one]])
        one += 1
    if m.is_engine[step]:
        row = m.begin[step]
        while row < m.begin[step + 1]:
            if m.access[row] != WRITES and m.group[row] >= 0:
                find_writers(m, begin, row, step)
            row += 1
    m.step_read[step + 1] = m.extent[Extent.FOUND]
    return 0


def find_writers(m: DependenceRecord, begin: int, row: int, step: int) -> int:
    """Add the last overlapping writer before a step, and the last from it on."""
    before = -1
    after = -1
    entry = m.group[row] * REMEMBERED + m.remembered[m.group[row]] - 1
    while entry >= m.group[row] * REMEMBERED:
        number = m.writer_step[entry]
        best = before if number < step else after
        if number > best and may_overlap(m, row, m.writer_row[entry]):
            if number < step:
                before = number
            else:
                after = number
        entry -= 1
    add_dependence(m, begin, before)
    return add_dependence(m, begin, after)


def add_dependence(m: DependenceRecord, begin: int, step: int) -> int:
    """Insert a step into the ascending list from `begin` on, unless it is there; -1 is none."""
    if step < 0:
        return 0
    at = m.extent[Extent.FOUND]
    while at > begin and m.read_step[at - 1] > step:
        at -= 1
    if at > begin and m.read_step[at - 1] == step:
        return 0
    moved = m.extent[Extent.FOUND]
    while moved > at:
        m.read_step[moved] = m.read_step[moved - 1]
        moved -= 1
    m.read_step[at] = step
    m.extent[Extent.FOUND] += 1
    return 0


def note_writes(m: DependenceRecord, step: int) -> int:
    """Record a step as the latest writer of the places and the register that it writes."""
    if m.register_set[step] >= 0:
        m.register_writer[m.register_set[step]] = step
    if m.is_engine[step]:
        row = m.begin[step]
        while row < m.begin[step + 1]:
            if m.access[row] != READS:
                note_writer(m, row, step)
            row += 1
    return 0


def note_writer(m: DependenceRecord, row: int, step: int) -> int:
    """Append a writer to its group, replacing one of the same place or, if full, the oldest."""
    entry = m.group[row] * REMEMBERED
    end = entry + m.remembered[m.group[row]]
    while entry < end and m.place[m.writer_row[entry]] != m.place[row]:
        entry += 1
    if entry == end and m.remembered[m.group[row]] == REMEMBERED:
        entry = m.group[row] * REMEMBERED
    if entry < end:
        end -= 1
        while entry < end:
            m.writer_step[entry] = m.writer_step[entry + 1]
            m.writer_row[entry] = m.writer_row[entry + 1]
            entry += 1
    else:
        m.remembered[m.group[row]] += 1
    m.writer_step[end] = step
    m.writer_row[end] = row
    return 0


def may_overlap(m: DependenceRecord, one: int, other: int) -> int:
    """Whether two patterns of one tile may share an element, in the same loop iteration."""
    if m.dtype[one] != m.dtype[other]:
        return 1
    if m.row_term[one] == m.row_term[other]:
        distance = m.row_start[one] - m.row_start[other]
        if are_disjoint(m, distance, m.row_reach[one], m.row_reach[other]):
            return 0
    if m.free_term[one] == m.free_term[other]:
        distance = m.free_start[one] - m.free_start[other]
        if are_disjoint(m, distance, m.free_reach[one], m.free_reach[other]):
            return 0
    return 1


def are_disjoint(m: DependenceRecord, distance: int, length: int, other_length: int) -> int:
    """Whether an interval that begins `distance` after another shares nothing with it."""
    if distance >= other_length or -distance >= length:
        return 1
    return 0
