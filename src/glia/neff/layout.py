"""The 1024-byte NEFF header, field by field at the documented offsets."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from glia.machine.binary.errors import UnsupportedNeffVersion
from glia.neff.errors import NotANeff

HEADER_BYTES = 1024
NAME_BYTES = 256
BUILD_BYTES = 128
NEFF_VERSION = (2, 0)
PACKAGE_SHA256 = 1
PACKAGE_MD5 = 2
BUILD_PREFIX = "glia-"
GLIA_PROGRAMS = 1 << 63  # our feature bit: the public documentation gives no bit numbers

# pkg_version header_size data_size major minor build num_tpb hash uuid name
# requested_tpb_count tpb_per_node feature_bits lnc_size pad
_LAYOUT = struct.Struct("<5Q 128s I 32s 16s 256s I 64s Q I 468s")
assert _LAYOUT.size == HEADER_BYTES


@dataclass(frozen=True)
class Header:
    """The fields of a NEFF header; sizes are in bytes."""

    data_bytes: int
    data_hash: bytes
    uuid: bytes
    name: str
    build: str
    cores: int = 1
    logical_core_cores: int = 1
    feature_bits: int = GLIA_PROGRAMS
    version: tuple[int, int] = NEFF_VERSION
    package_version: int = PACKAGE_SHA256

    @property
    def is_from_glia(self) -> bool:
        """Whether the payload is in our encoding."""
        return bool(self.feature_bits & GLIA_PROGRAMS) and self.build.startswith(BUILD_PREFIX)

    def pack(self) -> bytes:
        """The 1024 bytes."""
        return _LAYOUT.pack(
            self.package_version,
            HEADER_BYTES,
            self.data_bytes,
            *self.version,
            clip_text(self.build, BUILD_BYTES),
            self.cores,
            self.data_hash,
            self.uuid,
            clip_text(self.name, NAME_BYTES),
            self.cores,
            bytes([self.cores]),
            self.feature_bits,
            self.logical_core_cores,
            b"",
        )


def unpack_header(data: bytes | memoryview) -> Header:
    """Read the header at the start of a whole file; NotANeff when it does not describe the file."""
    if len(data) < HEADER_BYTES:
        raise NotANeff(reason=f"it has {len(data)} bytes, the header alone has {HEADER_BYTES}")
    fields = _LAYOUT.unpack(data[:HEADER_BYTES])
    package_version, header_bytes, data_bytes, major, minor = fields[:5]
    build, cores, data_hash, uuid, name, _, _, feature_bits, logical_core_cores, _ = fields[5:]
    if header_bytes != HEADER_BYTES:
        raise NotANeff(
            reason=f"it does not begin with a header, which says that it has {HEADER_BYTES} bytes"
        )
    if data_bytes != len(data) - HEADER_BYTES:
        present_bytes = len(data) - HEADER_BYTES
        raise NotANeff(
            reason=f"the header promises {data_bytes} data bytes, the file has {present_bytes}"
        )
    if package_version not in (PACKAGE_SHA256, PACKAGE_MD5):
        raise UnsupportedNeffVersion(
            what="package version", supported="1 and 2", received=package_version
        )
    return Header(
        data_bytes=data_bytes,
        data_hash=data_hash,
        uuid=uuid,
        name=_text(name),
        build=_text(build),
        cores=cores,
        logical_core_cores=logical_core_cores,
        feature_bits=feature_bits,
        version=(major, minor),
        package_version=package_version,
    )


def clip_text(text: str, size: int) -> bytes:
    """UTF-8 that leaves at least one NUL in a field of `size` bytes, cut between characters."""
    clipped = text.encode("utf-8", "replace")[: size - 1]
    return clipped.decode("utf-8", "ignore").encode("utf-8")


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "replace")
