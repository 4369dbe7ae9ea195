"""Ways to damage files: bytes, text, protobuf fields, and the integers inside a machine program.

Each takes a generator and a sound file and returns a damaged one; equal seeds give equal files.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import itertools
import json
import re
import struct
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from random import Random
from typing import Any
from unittest import mock

from glia.machine.binary import encode
from glia.machine.binary.bytestream import ByteWriter
from glia.neff.package import Neff
from glia.ntff.trace_file import FORMAT, MAGIC
from glia.ntff.trace_file import HEADER as TRACE_HEADER

Mutation = Callable[[Random, bytes], bytes]

MOST_CHANGES = 4
HEADER_BYTES = 1024
EXTREMES = (
    0, 1, -1, 2, 7, 127, 128, 255, 256, 1000, 65535, 65536, 1 << 20, (1 << 31) - 1, 1 << 31,
    (1 << 32) - 1, 1 << 40, 1 << 48, (1 << 62) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
)  # fmt: skip
LARGEST_WRITTEN = (1 << 69) - 1


def changed_integer(random: Random, value: int) -> int:
    """A neighbour of the value, a multiple, a value with another bit, or an extreme."""
    match random.randrange(5):
        case 0:
            return value + random.choice((-2, -1, 1, 2))
        case 1:
            return value * random.choice((2, 3, -1, 16)) + random.choice((0, 0, 1))
        case 2:
            return value ^ 1 << random.randrange(40)
        case 3:
            return random.choice(EXTREMES) * random.choice((1, 1, 1, -1))
    return random.getrandbits(random.randrange(1, 64))


def replace_bytes(random: Random, data: bytes) -> bytes:
    """Overwrite single bytes, or flip single bits."""
    changed = bytearray(data)
    for _ in range(random.randint(1, MOST_CHANGES)):
        at = random.randrange(len(changed))
        changed[at] = random.choice((changed[at] ^ 1 << random.randrange(8), random.randrange(256)))
    return bytes(changed)


def move_bytes(random: Random, data: bytes) -> bytes:
    """Delete, double, insert or exchange spans."""
    changed = bytearray(data)
    for _ in range(random.randint(1, MOST_CHANGES)):
        at = random.randrange(len(changed) + 1)
        span = bytes(changed[at : at + random.choice((1, 2, 4, 16, 300))])
        to = random.randrange(len(changed) + 1)
        match random.randrange(4):
            case 0:
                del changed[at : at + len(span)]
            case 1:
                changed[to:to] = span
            case 2:
                changed[at:at] = random.randbytes(random.randint(1, 8))
            case 3:
                changed[to : to + len(span)] = span
    return bytes(changed)


def cut_bytes(random: Random, data: bytes) -> bytes:
    """Cut the file short, or put other bytes behind its head."""
    at = random.randrange(len(data))
    tail = random.choice((b"", bytes(random.randrange(300)), data[random.randrange(len(data)) :]))
    return data[:at] + tail


# --- text ----------------------------------------------------------------------------------------


def change_numbers(random: Random, data: bytes) -> bytes:
    """Replace integers in a text."""
    return _change_matches(
        random, data, rb"-?\d+", lambda t: b"%d" % changed_integer(random, int(t))
    )


def change_words(random: Random, data: bytes) -> bytes:
    """Replace words of a text by other words of it, or characters by others."""
    words = re.findall(rb"[\w.]+", data)
    if random.random() < 0.3:
        return replace_bytes(random, data)
    return _change_matches(random, data, rb"[\w.]+", lambda _: random.choice(words))


def move_lines(random: Random, data: bytes) -> bytes:
    """Delete, double or exchange lines of a text."""
    lines = data.split(b"\n")
    for _ in range(random.randint(1, MOST_CHANGES)):
        if not lines:
            break
        at, to = random.randrange(len(lines)), random.randrange(len(lines))
        match random.randrange(3):
            case 0:
                del lines[at]
            case 1:
                lines.insert(to, lines[at])
            case 2:
                lines[at], lines[to] = lines[to], lines[at]
    return b"\n".join(lines)


def _change_matches(
    random: Random, data: bytes, what: bytes, change: Callable[[bytes], bytes]
) -> bytes:
    for _ in range(random.randint(1, MOST_CHANGES)):
        found = list(re.finditer(what, data))
        if not found:
            return data
        chosen = random.choice(found)
        data = data[: chosen.start()] + change(chosen.group()) + data[chosen.end() :]
    return data


# --- protobuf ------------------------------------------------------------------------------------


def change_fields(make: Callable[[], Any]) -> Mutation:
    """A mutation that replaces scalar fields of a protobuf message."""

    def change(random: Random, data: bytes) -> bytes:
        message = make()
        message.ParseFromString(data)
        places = [*_scalars(message)]
        words = sorted({text for _, _, text in places if isinstance(text, str) and text})
        for _ in range(random.randint(1, MOST_CHANGES)):
            parent, place, value = random.choice(places)
            _set_scalar(parent, place, _changed_scalar(random, value, words))
        return bytes(message.SerializeToString())

    return change


def move_messages(make: Callable[[], Any]) -> Mutation:
    """A mutation that deletes, doubles or exchanges parts of a protobuf message."""

    def change(random: Random, data: bytes) -> bytes:
        message = make()
        message.ParseFromString(data)
        for _ in range(random.randint(1, MOST_CHANGES)):
            places = [*_lists(message)]
            if not places:
                break
            _move_element(random, *random.choice(places))
        return bytes(message.SerializeToString())

    return change


def _move_element(random: Random, parent: Any, name: str) -> None:
    found = getattr(parent, name)
    if not hasattr(found, "__len__"):
        parent.ClearField(name)
        return
    at, to = random.randrange(len(found)), random.randrange(len(found))
    elements = [e if not hasattr(e, "SerializeToString") else _copy(e) for e in found]
    match random.randrange(3):
        case 0:
            del elements[at]
        case 1:
            elements.insert(to, elements[at])
        case 2:
            elements[at], elements[to] = elements[to], elements[at]
    del found[:]
    found.extend(elements)


def _copy(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _scalars(message: Any) -> list[tuple[Any, Any, Any]]:
    """(parent, field or (field, index), value) of every scalar in a message."""
    found = []
    for field, value in message.ListFields():
        is_list = hasattr(value, "__len__") and not isinstance(value, str | bytes)
        for index, each in enumerate(value if is_list else [value]):
            if hasattr(each, "ListFields"):
                found += _scalars(each)
            else:
                found.append((message, (field.name, index) if is_list else field.name, each))
    return found


def _lists(message: Any) -> list[tuple[Any, str]]:
    """(parent, field) of every list and message in a message."""
    found = []
    for field, value in message.ListFields():
        is_list = hasattr(value, "__len__") and not isinstance(value, str | bytes)
        if is_list or hasattr(value, "ListFields"):
            found.append((message, field.name))
        for each in value if is_list else [value]:
            if hasattr(each, "ListFields"):
                found += _lists(each)
    return found


def _changed_scalar(random: Random, value: Any, words: list[str]) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return changed_integer(random, value)
    if isinstance(value, float):
        return random.choice((0.0, -value, 1e30, float("inf"), float("nan")))
    if isinstance(value, bytes):
        return random.choice((replace_bytes, move_bytes, cut_bytes))(random, value or b"\0")
    return random.choice([*words, ""])


def _set_scalar(parent: Any, place: Any, value: Any) -> None:
    for attempt in (value, int(value) % 128 if isinstance(value, int) else value):
        try:
            if isinstance(place, str):
                setattr(parent, place, attempt)
            elif place[1] < len(getattr(parent, place[0])):
                getattr(parent, place[0])[place[1]] = attempt
            return
        except ValueError:  # it does not fit the field's width
            continue


# --- NEFF ----------------------------------------------------------------------------------------


def sealed(data: bytes) -> bytes:
    """The same bytes with the header's size and hash made right, so that the data is parsed."""
    if len(data) < HEADER_BYTES:
        return data
    header = bytearray(data[:HEADER_BYTES])
    struct.pack_into("<Q", header, 16, len(data) - HEADER_BYTES)
    header[172:204] = hashlib.sha256(data[HEADER_BYTES:]).digest()
    return bytes(header) + data[HEADER_BYTES:]


def change_trace(random: Random, data: bytes) -> bytes:
    """Damage the text of an NTFF, and make its header right."""
    change = random.choice((replace_bytes, change_numbers, change_words, cut_bytes))
    text = change(random, data[TRACE_HEADER.size :])
    digest = hashlib.sha256(text).digest()
    return TRACE_HEADER.pack(MAGIC, FORMAT, len(text), digest) + text


def change_archive(random: Random, data: bytes) -> bytes:
    """Damage the archive of a NEFF, plain or inside gzip, and make the header's hash right."""
    change = random.choice((replace_bytes, move_bytes, cut_bytes))
    payload = data[HEADER_BYTES:]
    if random.random() < 0.7:
        payload = zlib.compress(change(random, _inflated(payload)), 1, wbits=31)
    else:
        payload = change(random, payload)
    return sealed(data[:HEADER_BYTES] + payload)


def change_member(random: Random, data: bytes) -> bytes:
    """Damage one member of a NEFF's archive, and make everything around it right."""
    members = archive_members(data)
    name = random.choice([name for name, content in members.items() if content])
    change = random.choice((replace_bytes, move_bytes, cut_bytes))
    if name.endswith(".json"):
        change = random.choice((change_numbers, change_words, move_lines))
    members[name] = change(random, members[name])
    return with_members(data, members)


def change_integers(random: Random, data: bytes) -> bytes:
    """Re-encode a NEFF with some integers of its programs changed."""
    return _re_encoded(data, random, lambda value: changed_integer(random, value))


def nudge_integers(random: Random, data: bytes) -> bytes:
    """Re-encode a NEFF with some small integers changed to their neighbours."""
    return _re_encoded(data, random, lambda value: max(0, value + random.choice((-1, 1))))


def repeat_integers(random: Random, data: bytes) -> bytes:
    """Re-encode a NEFF with some integers replaced by other integers of it."""
    _, written = _decoded(data)
    return _re_encoded(data, random, lambda _: random.choice(written))


class _Writer(ByteWriter):
    """A writer that passes every integer through a function."""

    def __init__(self, change: Callable[[int], int]) -> None:
        super().__init__()
        self.change = change

    def unsigned(self, value: int) -> None:
        super().unsigned(min(abs(self.change(value)), LARGEST_WRITTEN))

    def signed(self, value: int) -> None:
        value = min(abs(value), LARGEST_WRITTEN >> 1) * (-1 if value < 0 else 1)
        changed = self.change(value)
        super().unsigned(
            min(changed << 1 if changed >= 0 else (-changed << 1) - 1, LARGEST_WRITTEN)
        )


@cache
def _decoded(data: bytes) -> tuple[Neff, list[int]]:
    """A sound NEFF, and the integers that encoding it writes, in order."""
    neff, written = Neff.from_bytes(data), [0]
    with mock.patch.object(encode, "ByteWriter", lambda: _Writer(lambda v: written.append(v) or v)):
        neff.to_bytes()
    return neff, written[1:]


def _re_encoded(data: bytes, random: Random, change: Callable[[int], int]) -> bytes:
    neff, written = _decoded(data)
    chosen = {random.randrange(len(written)) for _ in range(random.randint(1, MOST_CHANGES))}
    numbers = itertools.count()

    def changed(value: int) -> int:
        return change(value) if next(numbers) in chosen else value

    with mock.patch.object(encode, "ByteWriter", lambda: _Writer(changed)):
        return neff.to_bytes()


def archive_members(data: bytes) -> dict[str, bytes]:
    """The members of a sound NEFF's archive by name."""
    return tar_members(_inflated(data[HEADER_BYTES:]))


def tar_members(data: bytes) -> dict[str, bytes]:
    """The members of a sound archive by name."""
    members = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for entry in archive.getmembers():
            stream = archive.extractfile(entry)
            assert stream is not None
            members[entry.name] = stream.read()
    return members


def with_members(data: bytes, members: dict[str, bytes]) -> bytes:
    """The NEFF with these members, sealed."""
    return sealed(data[:HEADER_BYTES] + tar_of(members))


def tar_of(members: Mapping[str, bytes]) -> bytes:
    """An archive of these members."""
    pieces = []
    for name, content in members.items():
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        pieces += [entry.tobuf(tarfile.USTAR_FORMAT), content, bytes(-len(content) % 512)]
    return b"".join(pieces) + bytes(1024)


def _inflated(payload: bytes) -> bytes:
    found = b""
    while payload[:2] == b"\x1f\x8b":
        stream = zlib.decompressobj(wbits=31)
        found += stream.decompress(payload)
        payload = stream.unused_data
    return found or payload


NEFF_CHANGES: tuple[Mutation, ...] = (
    replace_bytes, change_archive, change_member, change_integers, nudge_integers,
)  # fmt: skip
TEXT_CHANGES: tuple[Mutation, ...] = (change_numbers, change_words, move_lines, cut_bytes)


# --- entries of the compile cache ----------------------------------------------------------------


def change_entry(random: Random, data: bytes) -> bytes:
    """Damage, remove or exchange files of a cache entry; mostly with digests made right again."""
    files = tar_members(data)
    names = sorted(name for name in files if "/" in name)  # those of the entry
    name = random.choice(names)
    match random.randrange(8):
        case 0:
            del files[name]
        case 1:
            files[name] = files[random.choice(names)]
        case _:
            files[name] = _changed_file(random, name, files[name])
    if random.random() < 0.8:
        _make_digests_right(files, names)
    return tar_of(files)


def _changed_file(random: Random, name: str, content: bytes) -> bytes:
    if name.endswith(".neff"):
        return random.choice(NEFF_CHANGES)(random, content)
    if name.endswith(".gz"):
        change = random.choice((replace_bytes, move_bytes, cut_bytes))
        return gzip.compress(change(random, gzip.decompress(content)), 1, mtime=0)
    return random.choice((*TEXT_CHANGES, replace_bytes))(random, content or b"\0")


def _make_digests_right(files: dict[str, bytes], names: Sequence[str]) -> None:
    """Write the digest of the entry's NEFF into its record, where it has both."""
    found = {name.rpartition("/")[2]: name for name in names if name in files}
    if "model.neff" in found and "model.done" in found:
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            record = json.loads(files[found["model.done"]])
            record.update(neff=hashlib.sha256(files[found["model.neff"]]).hexdigest())
            files[found["model.done"]] = json.dumps(record).encode()


# --- custom calls --------------------------------------------------------------------------------


def change_configs(make: Callable[[], Any]) -> Mutation:
    """A mutation of the configurations of a module's custom calls, as far inside as they go."""

    def change(random: Random, data: bytes) -> bytes:
        message = make()
        message.ParseFromString(data)
        calls = [
            each
            for computation in message.computations
            for each in computation.instructions
            if each.backend_config
        ]
        call = random.choice(calls)
        call.backend_config = _changed_config(random, call.backend_config)
        return bytes(message.SerializeToString())

    return change


def _changed_config(random: Random, config: bytes) -> bytes:
    try:
        inside = base64.b64decode(config, validate=True)
    except ValueError:
        return random.choice((*TEXT_CHANGES, replace_bytes))(random, config)
    fields = json.loads(inside)
    if random.random() < 0.3:
        changed = random.choice(TEXT_CHANGES)(random, inside)
    else:
        neff = random.choice(NEFF_CHANGES)(random, base64.b64decode(fields["neff"]))
        changed = json.dumps(fields | {"neff": base64.b64encode(neff).decode("ascii")}).encode()
    return base64.b64encode(changed)
