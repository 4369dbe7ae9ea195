"""Counted loops and words of arguments in LLVM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from glia.sim.host.scalar_code import WORD, Value

BYTES = ir.PointerType()
PART = ir.FunctionType(WORD, [BYTES, WORD, WORD, WORD])
"""A call: its words, its first iteration, where these end, and the number of the thread."""


def counted_loop(
    builder: Any, start: Value, end: Value, by: int, body: Callable[[Value], None]
) -> None:
    """Write `body` for i = start, start + by, ... below end; the builder stands after it then."""
    before = builder.block
    test, inside, after = (builder.append_basic_block(n) for n in ("test", "body", "after"))
    builder.branch(test)
    builder.position_at_end(test)
    i = builder.phi(WORD)
    i.add_incoming(start, before)
    builder.cbranch(builder.icmp_signed("<", i, end), inside, after)
    builder.position_at_end(inside)
    body(i)
    i.add_incoming(builder.add(i, WORD(by)), builder.block)
    builder.branch(test)
    builder.position_at_end(after)


def word_at(builder: Any, words: Value, number: int) -> Value:
    """A word of an array of words."""
    at = builder.gep(words, [WORD(number)], source_etype=WORD)
    return builder.load(at, typ=WORD)


def prefetch(builder: Any, address: Value, *, is_written: bool = False) -> None:
    """Ask for a cache line that is needed soon; any address will do."""
    number = ir.IntType(32)
    name = "llvm.prefetch.p0"
    kind = ir.FunctionType(ir.VoidType(), [BYTES, number, number, number])
    found = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    near, data = number(3), number(1)
    builder.call(found, [pointer(builder, address), number(int(is_written)), near, data])


def pointer(builder: Any, address: Value) -> Value:
    """An address as a pointer."""
    return builder.inttoptr(address, BYTES)
