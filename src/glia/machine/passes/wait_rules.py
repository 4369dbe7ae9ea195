"""The waits of a program without control flow: functions that `base.machine_code.native` compiles.

They find what `insert_semaphores` finds for any program: for every instruction, the counts of other
streams that it waits for. `m` is the record that `machine.passes.straight_waits` makes.
"""

from __future__ import annotations

from glia.base.machine_code.native_records import Words, words
from glia.machine.columns import box_rules
from glia.machine.columns.box_rules import (  # noqa: F401 - compiled with the functions here
    NONE,
    BoxRecord,
    covers,
    extent_modulo,
    interleave,
    may_overlap,
)
from glia.machine.columns.table import READS, WRITES

MAXIMUM_KNOWN = 24  # accesses that are told apart of a tile; more are summarised
FUNCTIONS = (
    "find_waits", "visit", "touch", "emit", "collect", "record_of", "claim", "split_parts",
    "move_parts", "set_part", "find_part", "inherit", "evict", "add", "share", "drop_covered",
    "is_covered", "covers_tile", "summarise", "append", "release", *box_rules.FUNCTIONS,
)  # fmt: skip


class WaitRecord(BoxRecord):
    """The accesses of instructions in program order; what each tile and each byte was used for."""

    instructions: Words = words("1", "instructions", "how many there are")
    streams: Words = words("1", "streams", "how many there are, in order of their names")
    begin: Words = words("instruction offsets", "access", "its accesses")
    stream: Words = words("instruction", "stream", "that completes it")
    engine: Words = words("instruction", "engine", "that issues it")
    is_queued: Words = words("instruction", "flag", "its stream is a DMA queue")
    tile: Words = words("access", "tile", "it touches")
    access: Words = words("access", "ACCESSES", "what it does")
    memory: Words = words("tile", "memory", "whose bytes it shares with others; -1 for none")
    tile_begin: Words = words("tile", "bytes", "where it begins in its memory")
    tile_end: Words = words("tile", "bytes", "where it ends in its memory")
    tile_last: Words = words("tile", "bytes", "its last byte")
    tile_bottom: Words = words("tile", "rows", "its last row")
    is_known: Words = words("tile", "flag", "it has accesses")
    is_sole: Words = words("tile", "flag", "it owns all of its bytes")
    known: Words = words("tile", "entry", "the latest of its accesses; -1 for none")
    known_count: Words = words("tile", "entries", "how many")
    entry_next: Words = words("entry", "entry", "an earlier one of the same tile; -1 for none")
    entry_access: Words = words("entry", "access", "where; -1 for all of the tile")
    entry_write: Words = words("entry", "flag", "it writes")
    entry_stream: Words = words("entry", "stream", "that completes it")
    entry_count: Words = words("entry", "count", "of its stream when it is complete")
    entry_stamp: Words = words("entry", "instruction", "that accesses")
    unused: Words = words("1", "entry", "the first of those that are free; -1 for none")
    is_full: Words = words("1", "flag", "an entry was needed and none was free")
    parts: Words = words("memory", "parts", "that are owned")
    part_room: Words = words("1", "parts", "the stride of a memory in `part_begin`")
    part_begin: Words = words("memory, part", "bytes", "where it begins; ascending")
    part_end: Words = words("memory, part", "bytes", "where it ends")
    part_owner: Words = words("memory, part", "tile", "that owns it")
    count: Words = words("stream", "count", "of what it has completed")
    need_stamp: Words = words("stream", "instruction", "the latest that is needed; -1 for none")
    need_count: Words = words("stream", "count", "that is needed")
    observed: Words = words("engine, stream", "count", "the greatest that it has waited for")
    summary: Words = words("stream, kind", "entry", "the latest of a tile; -1 for none")
    wait_begin: Words = words("instruction offsets", "wait", "its waits")
    wait_stream: Words = words("wait", "stream", "that is waited for")
    wait_count: Words = words("wait", "count", "that it has to reach")


def find_waits(m: WaitRecord) -> int:
    """Fill `wait_begin`, `wait_stream` and `wait_count`; returns 1 when it runs out of entries."""
    instruction = 0
    while instruction < m.instructions[0]:
        visit(m, instruction)
        if m.is_full[0]:
            return 1
        instruction += 1
    return 0


def visit(m: WaitRecord, instruction: int) -> int:
    """Find what an instruction needs, then record what it does."""
    touch(m, instruction, 0)
    touch(m, instruction, 1)
    stream = m.stream[instruction]
    if not m.is_queued[instruction]:
        m.need_stamp[stream] = NONE
    emit(m, instruction)
    m.count[stream] += 1
    is_write = 0
    while is_write < 2:
        access = m.begin[instruction]
        while access < m.begin[instruction + 1]:
            if m.access[access] != (READS if is_write else WRITES):
                add(m, instruction, access, is_write)
            access += 1
        is_write += 1
    return 0


def touch(m: WaitRecord, instruction: int, is_write: int) -> int:
    """Collect the needs of an instruction's reads, or of its writes."""
    access = m.begin[instruction]
    while access < m.begin[instruction + 1]:
        if m.access[access] != (READS if is_write else WRITES):
            record_of(m, m.tile[access])
            collect(m, access, is_write)
        access += 1
    return 0


def emit(m: WaitRecord, instruction: int) -> int:
    """Turn needs into waits, but for counts that the engine has waited for already."""
    found = m.wait_begin[instruction]
    base = m.engine[instruction] * m.streams[0]
    stream = 0
    while stream < m.streams[0]:
        if m.need_stamp[stream] != NONE:
            m.need_stamp[stream] = NONE
            if m.need_count[stream] > m.observed[base + stream]:
                m.observed[base + stream] = m.need_count[stream]
                m.wait_stream[found] = stream
                m.wait_count[found] = m.need_count[stream]
                found += 1
        stream += 1
    m.wait_begin[instruction + 1] = found
    return 0


def collect(m: WaitRecord, access: int, is_write: int) -> int:
    """The latest access of each stream that an access has to wait for."""
    entry = m.known[m.tile[access]]
    while entry >= 0:
        stream = m.entry_stream[entry]
        is_later = m.need_stamp[stream] < m.entry_stamp[entry]
        conflicts = is_write or m.entry_write[entry]
        if is_later and conflicts and may_overlap(m, access, m.entry_access[entry]):
            m.need_stamp[stream] = m.entry_stamp[entry]
            m.need_count[stream] = m.entry_count[entry]
        entry = m.entry_next[entry]
    return 0


def record_of(m: WaitRecord, tile: int) -> int:
    """Begin a tile's record where it takes over bytes: it inherits what used them."""
    if m.is_known[tile] and (m.memory[tile] < 0 or m.is_sole[tile]):
        return 0
    if m.memory[tile] >= 0:
        claim(m, tile)
    m.is_known[tile] = 1
    return 0


def claim(m: WaitRecord, tile: int) -> int:
    """Make a tile the owner of its bytes, with the accesses of those who had them."""
    memory = m.memory[tile]
    base = memory * m.part_room[0]
    end = base + m.parts[memory]
    first = find_part(m, base, m.parts[memory], m.tile_begin[tile])
    last = first
    owns_some = 0
    while last < end and m.part_begin[last] < m.tile_end[tile]:
        if m.part_owner[last] == tile:
            owns_some = 1
        last += 1
    if not owns_some:
        release(m, tile)
    part = first
    while part < last:
        inherit(m, tile, m.part_owner[part])
        part += 1
    part = first
    while part < last:
        evict(m, tile, part)
        part += 1
    summarise(m, tile)
    m.is_sole[tile] = 1
    return split_parts(m, tile, first, last)


def split_parts(m: WaitRecord, tile: int, first: int, last: int) -> int:
    """Put a tile in the place of the parts `first` to `last`, which keep what it leaves of them."""
    memory = m.memory[tile]
    place = first
    tail_end = 0
    tail_owner = NONE
    if first < last:
        if m.part_end[last - 1] > m.tile_end[tile]:
            tail_end = m.part_end[last - 1]
            tail_owner = m.part_owner[last - 1]
        if m.part_begin[first] < m.tile_begin[tile]:
            m.part_end[first] = m.tile_begin[tile]
            place = first + 1
    behind = place + 1
    if tail_owner != NONE:
        behind = place + 2
    move_parts(m, memory, last, behind)
    set_part(m, place, m.tile_begin[tile], m.tile_end[tile], tile)
    if tail_owner != NONE:
        set_part(m, place + 1, m.tile_end[tile], tail_end, tail_owner)
    return 0


def move_parts(m: WaitRecord, memory: int, source: int, target: int) -> int:
    """Move the parts of a memory from `source` on to `target`."""
    end = memory * m.part_room[0] + m.parts[memory]
    m.parts[memory] += target - source
    part = end - 1
    while target > source and part >= source:
        shifted = part + target - source
        set_part(m, shifted, m.part_begin[part], m.part_end[part], m.part_owner[part])
        part -= 1
    part = source
    while target < source and part < end:
        shifted = part + target - source
        set_part(m, shifted, m.part_begin[part], m.part_end[part], m.part_owner[part])
        part += 1
    return 0


def set_part(m: WaitRecord, part: int, begin: int, end: int, owner: int) -> int:
    """Write a part."""
    m.part_begin[part] = begin
    m.part_end[part] = end
    m.part_owner[part] = owner
    return 0


def find_part(m: WaitRecord, base: int, parts: int, begin: int) -> int:
    """The first part of a memory that ends behind a byte."""
    low = base
    high = base + parts
    while low < high:
        middle = (low + high) >> 1
        if m.part_end[middle] <= begin:
            low = middle + 1
        else:
            high = middle
    return low


def inherit(m: WaitRecord, tile: int, owner: int) -> int:
    """Let a tile inherit another's accesses, as accesses to all of it."""
    if owner == tile:
        return 0
    entry = m.known[owner]
    while entry >= 0:
        append(m, tile, NONE, m.entry_write[entry], m.entry_stream[entry],
               m.entry_count[entry], m.entry_stamp[entry])  # fmt: skip
        entry = m.entry_next[entry]
    return 0


def evict(m: WaitRecord, tile: int, part: int) -> int:
    """End the sole ownership of a part's owner, and its record if all of its bytes are gone."""
    owner = m.part_owner[part]
    is_inside = m.tile_begin[tile] <= m.part_begin[part] and m.part_end[part] <= m.tile_end[tile]
    if owner != tile and m.is_sole[owner] and is_inside:
        release(m, owner)
        m.is_known[owner] = 0
    m.is_sole[owner] = 0
    return 0


def add(m: WaitRecord, instruction: int, access: int, is_write: int) -> int:
    """Record an access; it drops those that it covers and that it has waited for."""
    tile = m.tile[access]
    stream = m.stream[instruction]
    if m.is_known[tile]:
        drop_covered(m, tile, access, is_write, stream)
        append(m, tile, access, is_write, stream, m.count[stream], instruction)
        if m.known_count[tile] > MAXIMUM_KNOWN:
            summarise(m, tile)
    if m.memory[tile] >= 0 and not m.is_sole[tile]:
        share(m, instruction, tile, is_write)
    return 0


def share(m: WaitRecord, instruction: int, tile: int, is_write: int) -> int:
    """Record an access with tiles of other operands that own some of its tile's bytes by now."""
    stream = m.stream[instruction]
    memory = m.memory[tile]
    base = memory * m.part_room[0]
    end = base + m.parts[memory]
    part = find_part(m, base, m.parts[memory], m.tile_begin[tile])
    while part < end and m.part_begin[part] < m.tile_end[tile]:
        owner = m.part_owner[part]
        if owner != tile:
            append(m, owner, NONE, is_write, stream, m.count[stream], instruction)
            if m.known_count[owner] > MAXIMUM_KNOWN:
                summarise(m, owner)
        part += 1
    return 0


def drop_covered(m: WaitRecord, tile: int, access: int, is_write: int, stream: int) -> int:
    """Drop what an access covers: all for a write, for a read the reads of its own stream."""
    before = NONE
    entry = m.known[tile]
    while entry >= 0:
        following = m.entry_next[entry]
        replaces = is_write or (m.entry_stream[entry] == stream and not m.entry_write[entry])
        if replaces and is_covered(m, tile, access, m.entry_access[entry]):
            if before >= 0:
                m.entry_next[before] = following
            else:
                m.known[tile] = following
            m.entry_next[entry] = m.unused[0]
            m.unused[0] = entry
            m.known_count[tile] -= 1
        else:
            before = entry
        entry = following
    return 0


def is_covered(m: WaitRecord, tile: int, access: int, other: int) -> int:
    """Whether an access touches all that another does; NONE touches all of the tile."""
    if other == NONE:
        return covers_tile(m, tile, access)
    return covers(m, access, other)


def covers_tile(m: WaitRecord, tile: int, access: int) -> int:
    """Whether an access touches all of a tile."""
    if m.first[access] > 0 or m.last[access] < m.tile_last[tile]:
        return 0
    return m.is_dense[access] and m.top[access] <= 0 and m.bottom[access] >= m.tile_bottom[tile]


def summarise(m: WaitRecord, tile: int) -> int:
    """Keep the latest access of each stream and kind, as one to all of the tile."""
    entry = m.known[tile]
    while entry >= 0:
        slot = 2 * m.entry_stream[entry] + m.entry_write[entry]
        latest = m.summary[slot]
        if latest == NONE or m.entry_stamp[latest] < m.entry_stamp[entry]:
            m.summary[slot] = entry
        entry = m.entry_next[entry]
    before = NONE
    entry = m.known[tile]
    while entry >= 0:
        following = m.entry_next[entry]
        slot = 2 * m.entry_stream[entry] + m.entry_write[entry]
        if m.summary[slot] == entry:
            m.entry_access[entry] = NONE
            before = entry
        else:
            if before >= 0:
                m.entry_next[before] = following
            else:
                m.known[tile] = following
            m.entry_next[entry] = m.unused[0]
            m.unused[0] = entry
            m.known_count[tile] -= 1
        entry = following
    entry = m.known[tile]
    while entry >= 0:
        m.summary[2 * m.entry_stream[entry] + m.entry_write[entry]] = NONE
        entry = m.entry_next[entry]
    return 0


def append(
    m: WaitRecord, tile: int, access: int, is_write: int, stream: int, count: int, stamp: int
) -> int:
    """Record an access of a stream to a tile."""
    entry = m.unused[0]
    if entry == NONE:
        m.is_full[0] = 1
        return 0
    m.unused[0] = m.entry_next[entry]
    m.entry_access[entry] = access
    m.entry_write[entry] = is_write
    m.entry_stream[entry] = stream
    m.entry_count[entry] = count
    m.entry_stamp[entry] = stamp
    m.entry_next[entry] = m.known[tile]
    m.known[tile] = entry
    m.known_count[tile] += 1
    return 0


def release(m: WaitRecord, tile: int) -> int:
    """Forget the accesses of a tile."""
    entry = m.known[tile]
    while entry >= 0:
        following = m.entry_next[entry]
        m.entry_next[entry] = m.unused[0]
        m.unused[0] = entry
        entry = following
    m.known[tile] = NONE
    m.known_count[tile] = 0
    return 0
