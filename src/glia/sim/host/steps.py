"""The loop that runs a table of calls: in the Python of `machine_code.native`.

`code` holds operations, each a kind and its operands. Addresses that depend on loops or registers
are computed and checked here; what has no machine code, or fails a check, is handed back to Python
with the place where the run goes on.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

from glia.base.machine_code.native import invoke

NAMES = (
    "run", "_begin", "_call", "_prepare", "_hand_over", "_control", "_while", "_affine",
    "_addresses",
)  # fmt: skip
ARRAYS = ("code", "variables", "known", "words", "bases", "iterations", "state", "moving")


class Op(IntEnum):
    """Operations, with what follows the kind in `code`."""

    END = 0
    # function, address of its words, instruction, where that ends, budget, length, addresses
    CALL = 1
    PYTHON = 2  # instruction
    LOOP = 3  # variable, trips, where it ends
    NEXT = 4  # variable, trips, where the body begins
    CLEAR = 5  # loop: a while loop begins
    WHILE = 6  # variable, where it ends, loop, instructions in each iteration
    JUMP = 7  # where
    BRANCH = 8  # variable, count of arms, where each begins
    UNLESS = 9  # where to go if an expression is 0, instruction, where that ends, expression
    GUARD = 10  # word, instruction, where that ends: executed in Python if the word is 0
    PREPARE = 12  # as CALL, for a wave: a word that takes the place of the call's words
    OPEN = 13  # words of a wave, from the first on, how many: no call of it is prepared
    BEGIN = 11  # a run begins: no register is set, what lies elsewhere than before is looked up


class RunState(IntEnum):
    """Words of `state`."""

    PC = 0
    BUDGET = 1  # what operations may spend until Python is asked whether to go on
    SUBJECT = 2  # what a stop is about
    SPENT = 3  # instructions that while loops executed since Python was asked last
    MOST = 4  # iterations of a while loop


class Stop(IntEnum):
    """Why `run` returned."""

    DONE = 0
    PYTHON = 1  # RunState.SUBJECT, an instruction, is to be executed by its meaning
    PAUSE = 2  # the budget is spent
    UNSET = 3  # RunState.SUBJECT, a register's variable, decides and is not set
    ENDLESS = 4  # RunState.SUBJECT, a while loop, has had all its iterations


OUT_OF_RANGE = -(2**62)


class Record(Protocol):
    """The arrays, in Python lists of integers; `words` are what calls are given."""

    code: list[int]
    variables: list[int]  # loop variables and registers
    known: list[int]  # 1 for those that are set
    words: list[int]
    bases: list[int]  # addresses of tiles
    iterations: list[int]  # of while loops
    state: list[int]
    moving: list[int]  # count of variables, of triples; triples: word, base, bytes from there


def run(m: Record) -> int:
    """Run from RunState.PC on until there is a reason to stop."""
    pc = m.state[RunState.PC]
    while True:
        m.state[RunState.BUDGET] = m.state[RunState.BUDGET] - 1
        if m.state[RunState.BUDGET] < 0:
            m.state[RunState.PC] = pc
            return Stop.PAUSE
        op = m.code[pc]
        if op == Op.END:
            return Stop.DONE
        if op == Op.CALL:
            pc = _call(m, pc)
        elif op == Op.PREPARE:
            pc = _prepare(m, pc)
        elif op == Op.NEXT:
            variable = m.code[pc + 1]
            m.variables[variable] = m.variables[variable] + 1
            pc = m.code[pc + 3] if m.variables[variable] < m.code[pc + 2] else pc + 4
        else:
            pc = _control(m, pc, op)
        if pc < 0:
            return -pc


def _begin(m: Record) -> int:
    """Forget registers, and set the words that depend on where this run's tensors lie."""
    number = 0
    while number < m.moving[0]:
        m.known[number] = 0
        number = number + 1
    at = 2
    end = 2 + 3 * m.moving[1]
    while at < end:
        m.words[m.moving[at]] = m.bases[m.moving[at + 1]] + m.moving[at + 2]
        at = at + 3
    return 0


def _call(m: Record, pc: int) -> int:
    """Call machine code; its address words first. Where the run goes on, or minus a Stop."""
    after = pc + 7 + m.code[pc + 6]
    if _addresses(m, pc + 7, after) == 0:
        return _hand_over(m, m.code[pc + 3], m.code[pc + 4])
    m.state[RunState.BUDGET] = m.state[RunState.BUDGET] - m.code[pc + 5]
    invoke(m.code[pc + 1], m.code[pc + 2])
    return after


def _prepare(m: Record, pc: int) -> int:
    """Set the address words of a call that a wave makes later, and let the wave know it."""
    after = pc + 7 + m.code[pc + 6]
    if _addresses(m, pc + 7, after) == 0:
        return _hand_over(m, m.code[pc + 3], m.code[pc + 4])
    m.words[m.code[pc + 1]] = m.code[pc + 2]
    return after


def _hand_over(m: Record, instruction: int, after: int) -> int:
    """Stop for an instruction that Python executes; the run goes on after it."""
    m.state[RunState.SUBJECT] = instruction
    m.state[RunState.PC] = after
    return -Stop.PYTHON


def _control(m: Record, pc: int, op: int) -> int:
    """Where the run goes on after an operation that only decides that, or minus a Stop."""
    if op == Op.LOOP:
        m.variables[m.code[pc + 1]] = 0
        m.known[m.code[pc + 1]] = 1
        return pc + 4 if m.code[pc + 2] > 0 else m.code[pc + 3]
    if op == Op.PYTHON:
        return _hand_over(m, m.code[pc + 1], pc + 2)
    if op == Op.BEGIN:
        return pc + 1 + _begin(m)
    if op == Op.GUARD:
        if m.words[m.code[pc + 1]] == 0:
            return _hand_over(m, m.code[pc + 2], m.code[pc + 3])
        return pc + 4
    if op == Op.UNLESS:
        value = _affine(m, pc + 4)
        if value == OUT_OF_RANGE:
            return _hand_over(m, m.code[pc + 2], m.code[pc + 3])
        return m.code[pc + 1] if value == 0 else pc + 8 + 2 * m.code[pc + 7]
    if op == Op.JUMP:
        return m.code[pc + 1]
    if op == Op.OPEN:
        number = 0
        while number < m.code[pc + 2]:
            m.words[m.code[pc + 1] + number] = 0
            number = number + 1
        return pc + 3
    if op == Op.CLEAR:
        m.iterations[m.code[pc + 1]] = 0
        return pc + 2
    if m.known[m.code[pc + 1]] == 0:
        m.state[RunState.SUBJECT] = m.code[pc + 1]
        return -Stop.UNSET
    value = m.variables[m.code[pc + 1]]
    if op == Op.WHILE:
        return _while(m, pc) if value != 0 else m.code[pc + 2]
    last = m.code[pc + 2] - 1
    return m.code[pc + 3 + (last if value < 0 or value > last else value)]


def _while(m: Record, pc: int) -> int:
    """Count an iteration and go into the body."""
    loop = m.code[pc + 3]
    m.iterations[loop] = m.iterations[loop] + 1
    m.state[RunState.SPENT] = m.state[RunState.SPENT] + m.code[pc + 4]
    if m.iterations[loop] > m.state[RunState.MOST]:
        m.state[RunState.SUBJECT] = loop
        return -Stop.ENDLESS
    return pc + 5


def _affine(m: Record, at: int) -> int:
    """The value of an expression: least, greatest, constant, count of terms, terms.

    OUT_OF_RANGE where it is beyond its limits or a variable is not set.
    """
    value = m.code[at + 2]
    count = m.code[at + 3]
    term = at + 4
    while count > 0:
        if m.known[m.code[term]] == 0:
            return OUT_OF_RANGE
        value = value + m.code[term + 1] * m.variables[m.code[term]]
        term = term + 2
        count = count - 1
    if value < m.code[at] or value > m.code[at + 1]:
        return OUT_OF_RANGE
    return value


def _addresses(m: Record, at: int, end: int) -> int:
    """Set words to addresses: word, base, count, and for each expression its bytes and itself.

    1, or 0 where an expression is out of range.
    """
    while at < end:
        word = m.code[at]
        address = m.bases[m.code[at + 1]]
        count = m.code[at + 2]
        at = at + 3
        while count > 0:
            value = _affine(m, at + 1)
            if value == OUT_OF_RANGE:
                return 0
            address = address + value * m.code[at]
            at = at + 5 + 2 * m.code[at + 4]
            count = count - 1
        m.words[word] = address
    return 1
