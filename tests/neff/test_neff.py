"""A NEFF holds exactly the program that was put in, in the documented container."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import mmap
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glia.base.affine import Affine
from glia.base.errors import InternalError
from glia.base.gzip_members import stored
from glia.isa.operand import Pattern
from glia.machine.ir import Program
from glia.neff.archive import pack_archive
from glia.neff.inspect import describe_neff
from glia.neff.layout import Header, clip_text, unpack_header
from glia.neff.package import Neff
from support.neff_programs import (
    WEIGHTS,
    every_statement,
    example_neff,
    program,
    rows,
    scale_and_add,
)

# offset, struct code, name: the table of the public documentation
HEADER_FIELDS = (
    (0, "Q", "pkg_version"),
    (8, "Q", "header_size"),
    (16, "Q", "data_size"),
    (24, "Q", "neff_version_major"),
    (32, "Q", "neff_version_minor"),
    (40, "128s", "neff_build_version"),
    (168, "I", "num_tpb"),
    (172, "32s", "hash"),
    (204, "16s", "uuid"),
    (220, "256s", "name"),
    (476, "I", "requested_tpb_count"),
    (480, "64s", "tpb_per_node"),
    (544, "Q", "feature_bits"),
    (552, "I", "lnc_size"),
    (556, "468s", "pad"),
)


def same_program(a: Program, b: Program) -> bool:
    """Equality of everything, constants by value."""
    same_constants = a.constants.keys() == b.constants.keys() and all(
        np.array_equal(a.constants[name], b.constants[name]) for name in a.constants
    )
    bare = [dataclasses.replace(each, constants={}) for each in (a, b)]
    return same_constants and bare[0] == bare[1]


@pytest.mark.parametrize("make", [scale_and_add, every_statement])
@pytest.mark.parametrize("is_compressed", [True, False])
def test_program_survives_the_round_trip(make: object, is_compressed: bool) -> None:
    original = Neff((make(),), {"target": "trn2"}, {"flops": 12.5}, is_compressed)  # type: ignore[operator]
    restored = Neff.from_bytes(original.to_bytes())
    assert same_program(original.program, restored.program)
    assert restored.options == {"target": "trn2"}
    assert restored.statistics == {"flops": 12.5}
    assert restored.is_compressed is is_compressed


def test_equal_programs_give_equal_bytes() -> None:
    assert example_neff().to_bytes() == example_neff().to_bytes()


def test_the_archive_says_nothing_of_the_machine_that_made_it() -> None:
    """The last byte of a gzip header names the system; versions of Python differ in it."""
    pieces = pack_archive([("a", b"text")], [("w", bytes(100))], compress=True)
    data = b"".join(pieces)
    second = data.index(b"\x1f\x8b", 10)
    for header in (data[:10], data[second : second + 10]):
        assert header == bytes((0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255))
    assert gzip.decompress(data)[:1] == b"a"


@pytest.mark.parametrize("length", [0, 1, 0xFFFE, 0xFFFF, 0x10000, 200_000])
def test_what_is_stored_in_a_gzip_is_not_copied_and_read_by_others(length: int) -> None:
    data = np.random.default_rng(length).bytes(length)
    pieces = list(stored([b"", memoryview(data), b"end"]))
    assert gzip.decompress(b"".join(pieces)) == data + b"end"
    views = [each for each in pieces if isinstance(each, memoryview)]
    assert all(each.obj is data for each in views) and sum(map(len, views)) == length


def test_reading_and_writing_again_changes_no_byte() -> None:
    data = example_neff().to_bytes()
    assert Neff.from_bytes(data).to_bytes() == data


def test_several_cores_keep_their_programs_and_share_their_constants() -> None:
    pair = Neff((scale_and_add(), scale_and_add()))
    restored = Neff.from_bytes(pair.to_bytes())
    assert all(same_program(a, b) for a, b in zip(pair.programs, restored.programs, strict=True))
    with archive(pair.to_bytes()) as members:
        assert [name for name in members.getnames() if "constant" in name] == [
            "sg00/constant-0.bin"
        ]


def test_header_fields_stand_at_the_documented_offsets() -> None:
    data = example_neff().to_bytes()
    found = {name: struct.unpack_from("<" + code, data, at)[0] for at, code, name in HEADER_FIELDS}
    assert HEADER_FIELDS[-1][0] + 468 == 1024
    assert found["pkg_version"] == 1
    assert found["header_size"] == 1024
    assert found["data_size"] == len(data) - 1024
    assert (found["neff_version_major"], found["neff_version_minor"]) == (2, 0)
    assert found["neff_build_version"].startswith(b"glia-")
    assert found["num_tpb"] == found["requested_tpb_count"] == found["lnc_size"] == 1
    assert found["hash"] == hashlib.sha256(data[1024:]).digest()
    assert found["name"].rstrip(b"\0") == b"probe"
    assert found["tpb_per_node"] == b"\1" + bytes(63)
    assert found["feature_bits"] == 1 << 63
    assert found["pad"] == bytes(468)


def test_header_survives_the_round_trip() -> None:
    header = Header(data_bytes=3, data_hash=bytes(range(32)), uuid=b"u" * 16, name="n", build="b")
    assert unpack_header(header.pack() + b"abc") == header


def test_long_names_are_cut_between_characters() -> None:
    assert clip_text("ä" * 200, 256) == ("ä" * 127).encode()


def test_archive_holds_the_documented_members() -> None:
    with archive(example_neff().to_bytes()) as members:
        names = set(members.getnames())
        assert {
            "neff.json", "kelf-0.json", "info.json", "hlo_stats.json", "metrics.json",
            "sg00/def.json", "sg00/program.bin", "sg00/constant-0.bin",
            "sg00/Activation.json", "sg00/Activation.bin", "sg00/DVE.json", "sg00/DVE.bin",
        } <= names  # fmt: skip
        assert all(member.mtime == 0 for member in members.getmembers())
        weights = members.extractfile("sg00/constant-0.bin")
        assert weights is not None
        assert weights.read() == WEIGHTS.tobytes()


def test_def_json_describes_queues_and_variables() -> None:
    described = member_json("sg00/def.json")
    assert described["dma_queue"]["in"] == {"type": "data", "owner": "sync"}
    assert described["dma_queue"]["out"] == {"type": "out", "owner": "scalar"}
    kinds = {name: variable["type"] for name, variable in described["var"].items()}
    assert kinds == {"x": "input", "y": "output", "w": "file"}
    assert described["var"]["w"]["file_name"] == "constant-0.bin"
    assert len({variable["var_id"] for variable in described["var"].values()}) == 3


def test_engine_json_describes_transfers_in_bytes_innermost_first() -> None:
    (store,) = member_json("sg00/Activation.json")["dma"]
    (described,) = store["desc"]
    assert described["to"] == "y"
    assert described["to_steps"] == [1, 32]
    assert described["to_sizes"] == [32, 128]
    assert described["to_off"] == 0
    assert described["to_off_by_variable"] == {"i": 4096}
    assert described["to_dtype"] == "float32"


def test_constants_of_a_loaded_neff_are_read_only() -> None:
    array = Neff.from_bytes(example_neff().to_bytes()).program.constants["w"]
    assert isinstance(array, np.ndarray)
    assert not array.flags.writeable


def test_save_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "model.neff"
    path.write_bytes(b"old")
    example_neff().save(path)
    assert Neff.load(path).name == "probe"
    assert list(tmp_path.iterdir()) == [path]


def test_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.neff"
    path.write_bytes(b"old")
    broken = scale_and_add()
    with pytest.raises(InternalError, match="not one of the program's tiles"):
        Neff((dataclasses.replace(broken, tiles={}),)).save(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_tensors_are_described() -> None:
    neff = example_neff()
    assert [(b.name, b.shape, b.dtype.name) for b in neff.inputs] == [("x", (384, 8), "f32")]
    assert [binding.name for binding in neff.outputs] == ["y"]
    assert neff.notes == ("the weights are resident",)


def test_inspect_describes_a_neff_in_plain_values() -> None:
    described = json.loads(json.dumps(describe_neff(example_neff().to_bytes())))
    assert described["header"]["compiled_by_glia"] is True
    assert described["target"] == "trn2"
    assert described["inputs"] == [{"name": "x", "dtype": "f32", "shape": [384, 8], "tile": "x"}]
    assert described["cores"][0]["opcodes"]["dma_copy"] == 3
    assert described["constant_bytes"] == WEIGHTS.nbytes


def test_unused_loop_depth_and_empty_program_are_kept() -> None:
    empty = program((), {})
    assert same_program(empty, Neff.from_bytes(Neff((empty,)).to_bytes()).program)


def test_negative_steps_survive() -> None:
    reversed_rows = dataclasses.replace(rows(scale_and_add().tiles["a"]), dims=((-1, 128), (-1, 8)))
    assert isinstance(reversed_rows, Pattern)
    reversed_rows = dataclasses.replace(
        reversed_rows, offset=Affine.of(7), partition=Affine.of(127)
    )
    copy = dataclasses.replace(next(scale_and_add().instructions()), dst=reversed_rows)
    changed = program((copy,), {"w": WEIGHTS})
    assert same_program(changed, Neff.from_bytes(Neff((changed,)).to_bytes()).program)


def archive(data: bytes) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(data[1024:]))


def member_json(name: str) -> dict[str, dict]:
    with archive(example_neff().to_bytes()) as members:
        stream = members.extractfile(name)
        assert stream is not None
        return json.load(stream)


def test_weights_of_a_file_that_is_not_compressed_are_the_files_pages(tmp_path: Path) -> None:
    """Those of a compressed one are copies; both are the same, also when the file is replaced."""
    for is_compressed in (False, True):
        neff = dataclasses.replace(example_neff(), is_compressed=is_compressed)
        neff.save(tmp_path / "m.neff")
        found = Neff.load(tmp_path / "m.neff")
        (tmp_path / "m.neff").unlink()
        for name, array in neff.program.constants.items():
            read = found.program.constants[name]
            np.testing.assert_array_equal(read, array)
            memory: Any = read
            while isinstance(memory, np.ndarray):
                memory = memory.base
            assert isinstance(memory.obj, mmap.mmap) is not is_compressed
