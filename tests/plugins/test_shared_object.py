"""Object code becomes a library that the loader of the machine takes."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import pytest
from llvmlite import binding

from glia.base.errors import InternalError
from glia.base.machine_code.shared_object import shared_object

pytestmark = pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"),
    reason="the libraries are for another machine",
)

TRIPLE = "x86_64-unknown-linux-gnu"

# A constant, a variable without a value, one that holds an address, and functions of two libraries
SOURCE = """
@factors = internal constant [4 x i64] [i64 2, i64 3, i64 5, i64 7]
@calls = internal global i64 0
@absolute = internal global ptr @labs
@missing = internal global ptr @no_library_has_this
@own = internal global ptr @factor
declare extern_weak i64 @labs(i64)
declare extern_weak i64 @no_library_has_this(i64)

define internal i64 @factor(i64 %n) noinline nounwind {
  %place = getelementptr [4 x i64], ptr @factors, i64 0, i64 %n
  %value = load i64, ptr %place
  ret i64 %value
}

define i64 @scaled(i64 %n) nounwind {
  %absolute = load ptr, ptr @absolute
  %size = call i64 %absolute(i64 %n)
  %own = load ptr, ptr @own
  %first = call i64 %own(i64 %size)
  %second = call i64 @factor(i64 %size)
  %product = mul i64 %first, %second
  ret i64 %product
}

define i64 @counted() nounwind {
  %before = load volatile i64, ptr @calls
  %after = add i64 %before, 1
  store volatile i64 %after, ptr @calls
  %missing = load ptr, ptr @missing
  %is_there = icmp ne ptr %missing, null
  %added = select i1 %is_there, i64 100, i64 0
  %count = add i64 %after, %added
  ret i64 %count
}
"""
THROUGH_A_TABLE = """
declare i64 @labs(i64)
define i64 @size(i64 %n) nounwind {
  %found = call i64 @labs(i64 %n)
  ret i64 %found
}
"""


def object_code(source: str) -> bytes:
    """A module of LLVM as object code that may be loaded anywhere."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_triple(TRIPLE)
    machine = target.create_target_machine(opt=1, reloc="pic", codemodel="small")
    code: bytes = machine.emit_object(binding.parse_assembly(source))
    return code


def test_a_library_computes_with_its_data_and_with_functions_of_others(tmp_path: Path) -> None:
    path = tmp_path / "libscaled.so"
    path.write_bytes(shared_object(object_code(SOURCE), path.name, ["scaled", "counted"]))
    loaded = ctypes.CDLL(str(path))
    loaded.scaled.argtypes, loaded.scaled.restype = [ctypes.c_int64], ctypes.c_int64
    assert [loaded.scaled(n) for n in (0, -1, 2, -3)] == [4, 9, 25, 49]
    assert [loaded.counted() for _ in range(3)] == [1, 2, 3]
    assert not hasattr(loaded, "factor")


def test_equal_code_makes_equal_libraries() -> None:
    first, second = (shared_object(object_code(SOURCE), "a.so", ["scaled"]) for _ in range(2))
    assert first == second


def test_what_is_no_object_code_is_refused() -> None:
    with pytest.raises(InternalError, match="not ELF"):
        shared_object(bytes(64), "a.so", ["scaled"])


def test_a_name_that_is_not_defined_is_not_exported() -> None:
    with pytest.raises(InternalError, match="does not define labs"):
        shared_object(object_code(SOURCE), "a.so", ["scaled", "labs"])


def test_a_call_through_a_table_that_the_library_lacks_is_refused() -> None:
    with pytest.raises(InternalError, match="relocation of kind"):
        shared_object(object_code(THROUGH_A_TABLE), "a.so", ["size"])
