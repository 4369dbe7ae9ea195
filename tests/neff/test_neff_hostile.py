"""Whatever a NEFF file's bytes are, reading it ends in a program or in a NeffError."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glia.base.affine import Affine
from glia.isa.instructions.dma import DmaCopy
from glia.isa.kit import Instr
from glia.isa.operand import Signal, Wait
from glia.machine.binary.errors import DamagedNeff, NeffError, UnsupportedNeffVersion
from glia.machine.ir import Loop
from glia.neff.archive import unpack_archive
from glia.neff.errors import ForeignNeff, IllegalProgram, NotANeff
from glia.neff.package import Neff
from glia.neff.write import neff_pieces
from support.examples import with_examples
from support.neff_programs import every_statement, example_neff

NEFF = example_neff().to_bytes()
PLAIN = example_neff(is_compressed=False).to_bytes()
STATEMENTS = b"".join(neff_pieces((every_statement(),), {}, {}, False))


def sealed(data: bytes) -> bytes:
    """The same bytes with the header's size and hash made right, so that the data is parsed."""
    header = bytearray(data[:1024])
    struct.pack_into("<Q", header, 16, len(data) - 1024)
    header[172:204] = hashlib.sha256(data[1024:]).digest()
    return bytes(header) + data[1024:]


def read(data: bytes) -> Neff | None:
    try:
        return Neff.from_bytes(data)
    except NeffError:
        return None


edits = st.lists(
    st.tuples(
        st.integers(0, 1 << 20),
        st.integers(0, 255),
        st.sampled_from(["replace", "insert", "cut"]),
    ),
    min_size=1,
    max_size=6,
)


def edited(data: bytes, changes: list[tuple[int, int, str]], start: int) -> bytes:
    """Replace, insert or delete bytes at positions from `start` on."""
    changed = bytearray(data)
    for position, value, kind in changes:
        at = start + position % max(1, len(changed) - start)
        if kind == "replace":
            changed[at : at + 1] = bytes([value])
        elif kind == "insert":
            changed[at:at] = bytes([value])
        else:
            del changed[at : at + 1]
    return bytes(changed)


@with_examples(200)
@given(edits)
def test_a_changed_file_is_never_read_as_something_else(changes: list) -> None:
    data = edited(NEFF, changes, 0)
    found = read(data)
    assert found is None or data[1024:] == NEFF[1024:]


@with_examples(200)
@given(st.sampled_from([PLAIN, NEFF]), edits)
def test_a_changed_archive_with_a_right_hash_raises_nothing_else(
    base: bytes, changes: list
) -> None:
    read(sealed(edited(base, changes, 1024)))


@with_examples(400)
@given(st.sampled_from(["program", "PE", "DVE", "Pool", "SP"]), edits)
def test_changed_streams_raise_nothing_else(member: str, changes: list) -> None:
    def change(name: str, data: bytes) -> bytes:
        return edited(data, changes, 0) if data and name == f"sg00/{member}.bin" else data

    restored = read(rebuilt(STATEMENTS, change))
    assert restored is None or restored.to_bytes()


@with_examples(100)
@given(st.binary(max_size=3000))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    assert read(data) is None
    assert read(NEFF[:1024] + data) is None


@pytest.mark.parametrize("length", [0, 1, 1023, 1024, 1025, len(NEFF) - 1])
def test_cut_files_are_refused(length: int) -> None:
    with pytest.raises(NeffError):
        Neff.from_bytes(NEFF[:length])


def test_a_wrong_hash_is_said_first_where_it_is_computed_beside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether the data can be read otherwise or not."""
    monkeypatch.setattr("glia.neff.read.LARGE_BYTES", 0)
    assert Neff.from_bytes(NEFF).to_bytes() == NEFF
    random = np.random.default_rng(0)
    for _ in range(100):
        data = bytearray(NEFF)
        data[int(random.integers(1024, len(data)))] ^= 1 << int(random.integers(8))
        with pytest.raises(DamagedNeff, match="hash"):
            Neff.from_bytes(bytes(data))


def test_wrong_hash_is_damage() -> None:
    with pytest.raises(DamagedNeff, match="hash"):
        Neff.from_bytes(NEFF[:-1] + bytes([NEFF[-1] ^ 1]))


def test_md5_packages_are_read() -> None:
    data = bytearray(NEFF)
    struct.pack_into("<Q", data, 0, 2)
    data[172:204] = hashlib.md5(data[1024:]).digest() + bytes(16)
    assert Neff.from_bytes(bytes(data)).name == "probe"


def test_other_compilers_files_are_named() -> None:
    data = bytearray(NEFF)
    data[40:168] = b"2.0.1234.0".ljust(128, b"\0")
    with pytest.raises(ForeignNeff, match=r"2\.0\.1234"):
        Neff.from_bytes(bytes(data))


@pytest.mark.parametrize(("at", "value"), [(0, 7), (24, 9)])
def test_other_versions_are_named(at: int, value: int) -> None:
    data = bytearray(NEFF)
    struct.pack_into("<Q", data, at, value)
    with pytest.raises(UnsupportedNeffVersion, match=f"received: {value}"):
        Neff.from_bytes(bytes(data))


def test_impossible_header_sizes_are_not_believed() -> None:
    data = bytearray(NEFF)
    struct.pack_into("<Q", data, 16, 2**63)
    with pytest.raises(NotANeff, match="promises"):
        Neff.from_bytes(bytes(data))


def test_core_counts_are_bounded() -> None:
    data = bytearray(NEFF)
    struct.pack_into("<I", data, 168, 2**32 - 1)
    with pytest.raises(DamagedNeff, match="cores"):
        Neff.from_bytes(bytes(data))


def test_a_bomb_is_not_inflated() -> None:
    with pytest.raises(DamagedNeff, match="inflate to more than 100 times"):
        unpack_archive(memoryview(gzip.compress(bytes(70 << 20), 9)))


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/../b", "a//b", "./a", "a\nb", "sg00/../neff.json"]
)
def test_names_that_leave_the_archive_are_refused(name: str) -> None:
    with pytest.raises(DamagedNeff, match="not allowed"):
        unpack_archive(memoryview(tar([(name, tarfile.REGTYPE, b"x")])))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, b"x", b"L"])
def test_links_devices_and_extensions_are_refused(kind: bytes) -> None:
    with pytest.raises(DamagedNeff, match="not a regular file"):
        unpack_archive(memoryview(tar([("a", kind, b"")])))


def test_duplicate_members_are_refused() -> None:
    members = [("a", tarfile.REGTYPE, b"1"), ("a", tarfile.REGTYPE, b"2")]
    with pytest.raises(DamagedNeff, match="twice"):
        unpack_archive(memoryview(tar(members)))


def test_members_that_promise_too_much_are_refused() -> None:
    with pytest.raises(DamagedNeff, match="cut short"):
        unpack_archive(memoryview(tar([("a", tarfile.REGTYPE, bytes(600))])[:1024]))


@pytest.mark.parametrize(
    "missing", ["info.json", "hlo_stats.json", "sg00/program.bin", "sg00/DVE.bin"]
)
def test_missing_members_are_named(missing: str) -> None:
    with pytest.raises(DamagedNeff, match="missing"):
        Neff.from_bytes(rebuilt(PLAIN, lambda name, data: None if name == missing else data))


@pytest.mark.parametrize(
    "text", [b"[]", b"{", b"\xff", b'{"a": NaN}', b"[" * 100_000, b'{"a": "x"}', b"1" * 5000]
)
def test_bad_json_is_damage(text: bytes) -> None:
    with pytest.raises(DamagedNeff, match=r"hlo_stats\.json"):
        Neff.from_bytes(rebuilt(PLAIN, lambda n, data: text if n == "hlo_stats.json" else data))


def test_left_over_bytes_in_a_stream_are_damage() -> None:
    with pytest.raises(DamagedNeff, match="left over"):
        Neff.from_bytes(
            rebuilt(PLAIN, lambda n, data: data + b"\0" if n.endswith("DVE.bin") else data)
        )


def test_an_attribute_of_another_type_is_damage() -> None:
    def change(name: str, data: bytes) -> bytes:
        # memset's value 0.5 (tag REAL) becomes NONE
        value = b"\4" + struct.pack("<d", 0.5)
        return data.replace(value, b"\0") if name.endswith("Pool.bin") or "DVE" in name else data

    with pytest.raises(DamagedNeff, match="memset cannot have value"):
        Neff.from_bytes(rebuilt(STATEMENTS, change))


def test_a_program_beyond_the_devices_memory_is_illegal() -> None:
    def change(name: str, data: bytes) -> bytes:
        return data.replace(b"\x80\x18", b"\x80\x80\x80\x80\x80\x01")  # 3072 elements

    with pytest.raises((IllegalProgram, DamagedNeff), match="bytes"):
        Neff.from_bytes(rebuilt(PLAIN, lambda n, d: change(n, d) if "program" in n else d))


@pytest.mark.parametrize("amount", [0, -1, 1 << 16, 1 << 40])
def test_a_signal_of_many_counts_is_illegal(amount: int) -> None:
    with pytest.raises(IllegalProgram, match=f"adds {amount} to semaphore"):
        edited_program(lambda i: replace(i, signals=(Signal("loaded", amount),)))


@pytest.mark.parametrize("step", [(1 << 48) + 1, -(1 << 60)])
def test_an_integer_beyond_any_memory_is_damage(step: int) -> None:
    def far(i: Instr) -> Instr:
        return replace(i, waits=(Wait("loaded", Affine((("i", step),), 0)),))

    with pytest.raises(DamagedNeff, match="beyond any memory"):
        edited_program(far)


def test_an_operand_that_repeats_without_end_is_damage() -> None:
    def repeated(i: Instr) -> Instr:
        if not isinstance(i, DmaCopy):
            return i
        dims = ((0, 1 << 30), *i.src.dims)
        return replace(i, src=replace(i.src, dims=dims), dst=replace(i.dst, dims=dims))

    with pytest.raises(DamagedNeff, match="an access pattern covers"):
        edited_program(repeated)


def test_a_count_beyond_any_run_is_illegal() -> None:
    def waiting(i: Instr) -> Instr:
        return replace(i, waits=(Wait("loaded", Affine((("i", 1 << 48),), 0)),))

    with pytest.raises(IllegalProgram, match="no run counts so far"):
        edited_program(waiting)


def test_a_program_beyond_the_hosts_memory_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise MemoryError

    monkeypatch.setattr("glia.neff.read.decode_program", refuse)
    with pytest.raises(DamagedNeff, match="does not fit into memory"):
        Neff.from_bytes(NEFF)


def test_cores_of_different_targets_are_damage() -> None:
    program = example_neff().program
    data = b"".join(neff_pieces((program, replace(program, target="trn1")), {}, {}, True))
    with pytest.raises(DamagedNeff, match="different targets"):
        Neff.from_bytes(data)


@pytest.mark.parametrize("make", ["missing", "directory", "pipe", "empty"])
def test_paths_that_are_no_neff_are_refused(make: str, tmp_path: Path) -> None:
    path = tmp_path / "f.neff"
    if make == "directory":
        path.mkdir()
    elif make == "empty":
        path.touch()
    elif make == "pipe":
        path = Path("/dev/null")
    with pytest.raises(NeffError):
        Neff.load(path)


def test_a_name_with_a_nul_is_refused() -> None:
    with pytest.raises(NeffError):
        Neff.load("a\0b")


def edited_program(change: Callable[[Instr], Instr]) -> Neff:
    """The example NEFF, read again, with the instructions of its loop changed."""
    neff = example_neff()
    first, loop = neff.program.body
    assert isinstance(loop, Loop) and isinstance(first, Instr)
    changed = replace(loop, body=tuple(change(i) for i in loop.body if isinstance(i, Instr)))
    programs = (replace(neff.program, body=(first, changed)),)
    return Neff.from_bytes(replace(neff, programs=programs).to_bytes())


def rebuilt(data: bytes, change: Callable[[str, bytes], bytes | None]) -> bytes:
    """The NEFF with every member passed through `change` (None leaves it out) and sealed again."""
    members = []
    with tarfile.open(fileobj=io.BytesIO(data[1024:])) as archive:
        for entry in archive.getmembers():
            stream = archive.extractfile(entry)
            assert stream is not None
            content = change(entry.name, stream.read())
            if content is not None:
                members.append((entry.name, tarfile.REGTYPE, content))
    return sealed(data[:1024] + tar(members))


def tar(members: list[tuple[str, bytes, bytes]]) -> bytes:
    pieces = []
    for name, kind, content in members:
        entry = tarfile.TarInfo(name)
        entry.type, entry.size = kind, len(content)
        pieces += [entry.tobuf(tarfile.USTAR_FORMAT), content, bytes(-len(content) % 512)]
    return b"".join(pieces) + bytes(1024)
