"""Threads that share the iterations of one call: handed out by a counter, in machine code.

One pool serves all models of the process, one run at a time; a run that finds it lent runs by
itself, with the same results. Its threads wait in Python and are woken when a run begins. Until it
ends they look for work, with a pause between looks after some time without any; then for about a
millisecond more, since another run may begin. A process that was forked makes its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import numpy as np
from llvmlite import binding, ir

from glia.base.machine_code.native import address_of, current_processor, invoke
from glia.sim.host.library import host_library
from glia.sim.host.loops import BYTES, PART, counted_loop, pointer, word_at
from glia.sim.host.scalar_code import WORD, Value

VARIABLE = "GLIA_NUM_THREADS"
LINE = 8  # words of a cache line
# Words of a pool. The ticket counts jobs in its upper half and the iterations that are taken in its
# lower half; all of that is set while a job is described, so that nobody takes an iteration then.
TICKET, DONE, JOB, RUNNING = 0, LINE, 2 * LINE, 3 * LINE
LANE = 4 * LINE  # from here on a line for each thread: 1 while it looks for work
CLOSED = (1 << 32) - 1
MOST_ITERATIONS = 1 << 30
SPINS = 20_000  # looks for work before a thread pauses, or goes to sleep if nothing runs
PAUSE_MICROSECONDS = 30
YIELDS = 255  # looks between offers of the processor to others: all bits below a power of two
SHARED_NANOSECONDS = 10_000  # a call that takes as long is shared among threads
HEADER = 4  # words before those of a call: function, iterations, grain, where the pool's address is


@cache
def lanes() -> int:
    """How many threads work on a call: GLIA_NUM_THREADS, or what this process may run on."""
    given = os.environ.get(VARIABLE, "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@cache
def _processors() -> frozenset[int]:
    """The processors that this process may run on; none where that cannot be asked or changed."""
    is_known = hasattr(os, "sched_setaffinity") and current_processor() >= 0
    return frozenset(os.sched_getaffinity(0)) if is_known else frozenset()


def leave_processor(number: int) -> None:
    """Let the calling thread run on any other processor.

    A thread that is woken is put beside the one that wakes it, and both take turns for
    milliseconds until the system divides them.
    """
    others = _processors() - {number}
    if number in _processors() and others:
        with suppress(OSError):  # the process was given other ones meanwhile
            os.sched_setaffinity(0, others)


class Pool:
    """The threads beside the one that runs a program."""

    def __init__(self, work: int, threads: int) -> None:
        self._work, self._threads = work, threads
        space = np.zeros(LANE + LINE * (threads + 2), np.int64)
        self._words = space[-(address_of(space) // 8) % LINE :]
        self._lent = threading.Lock()
        self._calls = [threading.Semaphore(0) for _ in range(threads)]
        self._is_started = False
        self._caller = -1  # the processor that the run began on

    @contextmanager
    def for_one_run(self) -> Iterator[int]:
        """The pool's address for one run; 0 where another run has it."""
        if not self._threads or not self._lent.acquire(blocking=False):
            yield 0
            return
        try:
            self._words[RUNNING] = 1
            self._wake()
            yield address_of(self._words)
        finally:
            self._words[RUNNING] = 0
            self._lent.release()

    def _wake(self) -> None:
        self._caller = current_processor()
        if not self._is_started:
            self._is_started = True
            for number in range(self._threads):
                name = f"glia host {number + 1}"
                threading.Thread(target=self._serve, args=[number], name=name, daemon=True).start()
        for number, call in enumerate(self._calls):
            if not self._words[LANE + LINE * number]:
                call.release()

    def _serve(self, number: int) -> None:
        given = np.array([address_of(self._words), number + 1], np.int64)
        while True:
            self._words[LANE + LINE * number] = 0
            if not self._words[RUNNING]:  # else one may have begun that saw this thread at work
                self._calls[number].acquire()
                leave_processor(self._caller)
            self._words[LANE + LINE * number] = 1
            invoke(self._work, address_of(given))


class PoolCode:
    """`call(header)` runs a call with all threads; `work(pool and lane)` is what the others do."""

    name = "pool_call"

    def write(self, module: Any) -> None:
        """Add both functions to a module."""
        claim = _write_claim(module)
        _write_work(module, claim)
        _write_call(module, claim)


class WaveCode:
    """`wave(words, first, end, lane)`: chains of calls, each of which one thread makes.

    Words: for each chain where its calls begin and how many they are; then for each call where its
    header is, 0 for none.
    """

    name = "pool_wave"

    def write(self, module: Any) -> None:
        """Add the function to a module."""
        function = ir.Function(module, PART, self.name)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        words, first, end, lane = function.args

        def word(number: Value) -> Value:
            return builder.load(builder.gep(words, [number], source_etype=WORD), typ=WORD)

        def call(number: Value) -> None:
            place = word(number)
            with builder.if_then(builder.icmp_signed("!=", place, WORD(0))):
                header = pointer(builder, place)
                target, parts = (word_at(builder, header, i) for i in range(2))
                given = builder.gep(header, [WORD(HEADER)], source_etype=WORD)
                called = builder.inttoptr(target, PART.as_pointer())
                builder.call(called, [given, WORD(0), parts, lane])

        def chain(number: Value) -> None:
            at = builder.shl(number, WORD(1))
            start, count = word(at), word(builder.add(at, WORD(1)))
            counted_loop(builder, start, builder.add(start, count), 1, call)

        counted_loop(builder, first, end, 1, chain)
        builder.ret(WORD(0))


WORK = "pool_work"


@cache
def host_pool() -> Pool:
    """The pool of this process."""
    library = host_library()
    library.load([PoolCode()])
    return Pool(library.function(WORK), lanes() - 1)


os.register_at_fork(after_in_child=host_pool.cache_clear)


def _atomic(builder: Any, words: Value, number: int) -> Value:
    return builder.load_atomic(_at(builder, words, number), "acquire", 8)


def _set(builder: Any, words: Value, number: int, value: Value) -> None:
    builder.store_atomic(value, _at(builder, words, number), "release", 8)


def _at(builder: Any, words: Value, number: int) -> Value:
    address = builder.add(builder.ptrtoint(words, WORD), WORD(8 * number))
    return builder.inttoptr(address, WORD.as_pointer())


def _write_claim(module: Any) -> Any:
    """`claim(pool, lane)`: take some iterations and run them; 0 where there are none to take."""
    function = ir.Function(module, ir.FunctionType(WORD, [BYTES, WORD]), "pool_claim")
    function.linkage = "internal"
    pool, lane = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    ticket = _atomic(builder, pool, TICKET)
    target, words, count, grain = (_atomic(builder, pool, JOB + i) for i in range(4))
    first = builder.and_(ticket, WORD(CLOSED))
    with builder.if_then(builder.icmp_unsigned(">=", first, count)):
        builder.ret(WORD(0))
    taken = builder.cmpxchg(
        _at(builder, pool, TICKET), ticket, builder.add(ticket, grain), "acq_rel", "acquire"
    )
    with builder.if_then(builder.extract_value(taken, 1)):
        end = builder.add(first, grain)
        is_last = builder.icmp_unsigned(">", end, count)
        end = builder.select(is_last, count, end)
        called = builder.inttoptr(target, PART.as_pointer())
        builder.call(called, [pointer(builder, words), first, end, lane])
        builder.atomic_rmw("add", _at(builder, pool, DONE), builder.sub(end, first), "release")
    builder.ret(WORD(1))
    return function


def _write_work(module: Any, claim: Any) -> None:
    """`work(words)`, the pool's address and a lane: claim until nothing runs any more."""
    function = ir.Function(module, ir.FunctionType(WORD, [BYTES]), WORK)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    address, lane = (word_at(builder, function.args[0], i) for i in range(2))
    pool = pointer(builder, address)

    def goes_on() -> Value:
        is_running = builder.icmp_signed("!=", _atomic(builder, pool, RUNNING), WORD(0))
        with builder.if_then(is_running):
            _sleep(builder)
        return is_running

    _spin(builder, lambda: builder.call(claim, [pool, lane]), SPINS, goes_on)
    builder.ret(WORD(0))


def _spin(
    builder: Any,
    found: Callable[[], Value],
    most: int | None = None,
    goes_on: Callable[[], Value] | None = None,
) -> None:
    """Until one call finds 1; or else with `most`: until so many after each other found 0.

    Then, and after every further one, `goes_on` says whether to go on.
    """
    start = builder.block
    loop, idle, ask, after = (builder.append_basic_block(n) for n in ("spin", "idle", "ask", "end"))
    builder.branch(loop)
    builder.position_at_end(loop)
    count = builder.phi(WORD)
    count.add_incoming(WORD(0), start)
    is_found = builder.icmp_signed("!=", found(), WORD(0))
    builder.cbranch(is_found, loop if most is not None else after, idle)
    if most is not None:
        count.add_incoming(WORD(0), builder.block)
    builder.position_at_end(idle)
    _pause(builder)
    more = builder.add(count, WORD(1))
    limit = WORD(most if most is not None else 2**62)
    is_short = builder.icmp_signed("<", more, limit)
    if goes_on is None:
        builder.cbranch(is_short, ask, after)
    else:
        long = builder.append_basic_block("long")
        builder.cbranch(is_short, ask, long)
        builder.position_at_end(long)
        again = goes_on()
        count.add_incoming(count, builder.block)
        builder.cbranch(again, loop, after)
    builder.position_at_end(ask)
    is_long = builder.icmp_signed("==", builder.and_(more, WORD(YIELDS)), WORD(0))
    with builder.if_then(is_long):
        _yield(builder)
    count.add_incoming(more, builder.block)
    builder.branch(loop)
    builder.position_at_end(after)


def _pause(builder: Any) -> None:
    """Tell the processor that this is a loop that waits."""
    name = "llvm.x86.sse2.pause"
    if not binding.get_process_triple().startswith("x86_64"):
        return
    found = builder.module.globals.get(name)
    builder.call(found or ir.Function(builder.module, ir.FunctionType(ir.VoidType(), []), name), [])


def _yield(builder: Any) -> None:
    _call_library(builder, "sched_yield")


def _sleep(builder: Any) -> None:
    _call_library(builder, "usleep", ir.IntType(32)(PAUSE_MICROSECONDS))


def _call_library(builder: Any, name: str, *arguments: Value) -> None:
    """Call a function of the C library, where there is one of this name."""
    if binding.address_of_symbol(name) is None:
        return
    found = builder.module.globals.get(name)
    kind = ir.FunctionType(ir.IntType(32), [each.type for each in arguments])
    builder.call(found or ir.Function(builder.module, kind, name), arguments)


def _write_call(module: Any, claim: Any) -> None:
    """`call(header)`: describe the job, open it, take part in it, wait for the others."""
    function = ir.Function(module, ir.FunctionType(WORD, [BYTES]), PoolCode.name)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    header = function.args[0]
    target, count, grain, place = (word_at(builder, header, i) for i in range(HEADER))
    words = builder.gep(header, [WORD(HEADER)], source_etype=WORD)
    called = builder.inttoptr(target, PART.as_pointer())
    with builder.if_then(builder.icmp_signed(">=", grain, count)):
        builder.ret(builder.call(called, [words, WORD(0), count, WORD(0)]))
    address = word_at(builder, pointer(builder, place), 0)
    with builder.if_then(builder.icmp_signed("==", address, WORD(0))):
        builder.ret(builder.call(called, [words, WORD(0), count, WORD(0)]))
    pool = pointer(builder, address)
    ticket = builder.or_(_atomic(builder, pool, TICKET), WORD(CLOSED))
    _set(builder, pool, TICKET, ticket)
    job = (target, builder.ptrtoint(words, WORD), count, grain)
    for number, value in enumerate(job):
        _set(builder, pool, JOB + number, value)
    _set(builder, pool, DONE, WORD(0))
    _set(builder, pool, TICKET, builder.add(ticket, WORD(1)))

    def is_done() -> Value:
        builder.call(claim, [pool, WORD(0)])
        all_done = builder.icmp_signed("==", _atomic(builder, pool, DONE), count)
        return builder.zext(all_done, WORD)

    _spin(builder, is_done)
    builder.ret(WORD(0))
