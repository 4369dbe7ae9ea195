"""Array files that cannot be read are refused with a code and a reason, whatever is in them."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from glia.runtime.arrays import read_array, read_arrays
from glia.runtime.errors import BadArrayFile


def zipped(content: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.writestr("y.npy", content)
    return stream.getvalue()


def npy(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


SOUND = zipped(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n") + bytes(4))
UNREADABLE = {
    "a method that does not exist": SOUND.replace(b"PK\x01\x02\x14\x03\x14\x00\x00\x00\x08",
                                               b"PK\x01\x02\x14\x03\x14\x00\x00\x00\x63"),
    "deflated data that is damaged": SOUND[:40] + b"\xff" * 8 + SOUND[48:],
    "a header that does not end": zipped(npy("{'descr': '<f4', 'shape': ((1,\n")),
    "an array beyond any memory":
        zipped(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1125899906842624,), }\n")),
    "objects": zipped(npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n") + b"N."),
    "a bomb": zipped(bytes(100 << 20)),
    "nothing": b"",
}  # fmt: skip


def test_the_sound_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "y.npz"
    path.write_bytes(SOUND)
    assert read_arrays(str(path))[0].tolist() == [0.0]


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_is_no_array_has_a_code_and_a_reason(name: str, tmp_path: Path) -> None:
    path = tmp_path / "y.npz"
    path.write_bytes(UNREADABLE[name])
    for read in (read_array, read_arrays):
        with pytest.raises(BadArrayFile) as caught:
            read(str(path))
        assert str(caught.value.facts["reason"]).strip()


def test_an_error_without_a_text_has_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "y.npy"
    path.write_bytes(npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**70},), }}\n"))
    with pytest.raises(BadArrayFile):
        read_array(str(path))
