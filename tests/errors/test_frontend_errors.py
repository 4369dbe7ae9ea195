"""Whatever is wrong with a module or file, the user gets a CompileError that says what."""

from __future__ import annotations

import gzip
import os
import re
import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glia.base.errors import ERRORS, CompileError
from glia.base.files import read_file
from glia.frontend import errors
from glia.frontend.hlo import import_hlo
from glia.frontend.hlo_import import module_context
from glia.frontend.hlo_import.hlo_proto import messages
from glia.frontend.registry import read_module_file
from glia.graph.ir import Graph
from glia.graph.legal import verify
from support.corpus import BY_NAME, hlo_bytes
from support.examples import with_examples
from support.hlo_text import (
    F32_TYPE,
    S32_TYPE,
    TUPLE_TYPE,
    adding_module,
    entry,
    from_text,
    module,
)

GOOD = adding_module().SerializeToString()


# Files


def test_a_device_without_end_is_refused() -> None:
    with pytest.raises(errors.UnreadableFile, match="it is a device"):
        read_module_file("/dev/zero")


def test_no_more_is_read_of_a_file_than_it_may_hold(tmp_path: Path) -> None:
    path = tmp_path / "held"
    path.write_bytes(b"12345678")
    assert read_file(path, 8) == b"12345678"
    with pytest.raises(OSError, match="more than 7 bytes"):
        read_file(path, 7)


@pytest.mark.parametrize("most_bytes", [7, 8])
def test_no_more_is_read_of_a_pipe_than_it_may_hold(most_bytes: int) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"12345678")
    os.close(writer)
    refused = pytest.raises(OSError, match="more than 7") if most_bytes < 8 else nullcontext()
    with refused, os.fdopen(reader):
        assert read_file(Path(f"/dev/fd/{reader}"), most_bytes) == b"12345678"


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.UnreadableFile, match="no such file"):
        read_module_file(tmp_path / "missing.pb")


def test_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.UnreadableFile, match="directory"):
        read_module_file(tmp_path)


def test_path_with_a_null_byte_is_refused() -> None:
    with pytest.raises(errors.UnreadableFile, match="null"):
        read_module_file("a\0b")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is empty"),
        (b"HloModule main\nENTRY e { }", "HLO text"),
        (b"module @jit_f { func.func public @main() }", "MLIR"),
        (b"ML\xefR\x06StableHLO", "MLIR"),
        (b"hello, world\n" * 9, "it is text"),
        (gzip.compress(GOOD)[:-9], "damaged gzip"),
        (gzip.compress(b"", mtime=0), "it is empty"),
        (b"\x1f\x8bnot gzip at all", "damaged gzip"),
        (b"\x00" * 64, "not a serialized HLO module"),
        (messages()["Module"](name="empty").SerializeToString(), "holds no computation"),
    ],
)
def test_bytes_that_are_no_module_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(errors.NotAnHloModule, match=reason):
        import_hlo(data)


def test_a_gzip_bomb_is_refused_before_it_fills_the_memory() -> None:
    bomb = gzip.compress(bytes(512 << 20), 1)
    tracemalloc.start()
    try:
        with pytest.raises(errors.NotAnHloModule, match="inflate to more than 100 times"):
            import_hlo(bomb)
        assert tracemalloc.get_traced_memory()[1] < 150 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", range(1, len(GOOD), 17))
def test_truncated_module_is_refused_or_whole(length: int) -> None:
    try:
        graph = import_hlo(GOOD[:length])
    except CompileError:
        return
    assert len(graph.parameters) == 1  # only trailing optional fields were cut


# Instructions


def _changed(change: Any, text: str = "") -> bytes:
    """A module after `change` had its two or more instructions."""
    message = module(entry(text)) if text else adding_module()
    change(message, *message.computations[-1].instructions)
    return message.SerializeToString()


def _set(**fields: Any) -> Any:
    def change(_: Any, *instructions: Any) -> None:
        for name, value in fields.items():
            setattr(instructions[-1], name, value)

    return change


def _located(change: Any) -> Any:
    def both(message: Any, *instructions: Any) -> None:
        instructions[-1].metadata.source_file = "model.py"
        instructions[-1].metadata.source_line = 7
        change(message, *instructions)

    return both


def test_unknown_opcode_names_the_nearest_and_the_source_line() -> None:
    with pytest.raises(errors.UnsupportedOperator) as caught:
        import_hlo(_changed(_located(_set(opcode="multipy"))))
    assert caught.value.code == "NCC_EVRF001"
    for part in ("multipy", "did you mean multiply?", "%y", "model.py:7"):
        assert part in str(caught.value)


@pytest.mark.parametrize("opcode", ["infeed", "outfeed", "send", "recv", "stochastic-convert"])
def test_operation_with_the_host_is_refused(opcode: str) -> None:
    with pytest.raises(errors.UnsupportedOperator, match=opcode):
        import_hlo(_changed(_set(opcode=opcode, is_host_transfer=True)))


def test_unknown_custom_call_target_lists_the_known_ones() -> None:
    with pytest.raises(errors.UnknownCustomCall, match="did you mean AwsNeuronSoftmax") as caught:
        import_hlo(_changed(_set(opcode="custom-call", custom_call_target="AwsNeuronSofmax")))
    assert caught.value.code == "NCC_EVRF015" and "AwsNeuronTopK" in str(caught.value)


@pytest.mark.parametrize(
    ("target", "config"),
    [
        ("AwsNeuronSoftmax", b"x"),
        ("AwsNeuronSoftmax", b"4"),
        ("AwsNeuronSoftmax", b"9" * 4000),
        ("AwsNeuronGelu", b""),
        ("AwsNeuronSiluBackward", b""),
        ("ResizeNearest", b"11"),
    ],
)
def test_custom_call_that_does_not_fit_its_target_is_refused(target: str, config: bytes) -> None:
    change = _set(opcode="custom-call", custom_call_target=target, backend_config=config)
    with pytest.raises(errors.BadCustomCall, match=target):
        import_hlo(_changed(change))


def test_unknown_element_type_is_refused() -> None:
    def change(_: Any, x: Any, y: Any) -> None:
        x.shape.element_type = 200

    with pytest.raises(errors.UnknownDType, match="200"):
        import_hlo(_changed(change))


def test_dynamic_shape_is_refused() -> None:
    def change(_: Any, x: Any, y: Any) -> None:
        x.shape.is_dynamic[:] = [True]

    with pytest.raises(errors.DynamicShape, match=r"%x.* f32\[4\]") as caught:
        import_hlo(_changed(change))
    assert caught.value.code == "NCC_EMOD025"


@pytest.mark.parametrize("dimensions", [[2**60], [2**31, 2**31], [1] * 40, [2**62] * 3])
def test_shape_beyond_every_memory_is_refused(dimensions: list[int]) -> None:
    text = "x = f32[] parameter(0)\nROOT y = f32[4] broadcast(x), dimensions={}"

    def change(_: Any, x: Any, y: Any) -> None:
        y.shape.dimensions[:] = dimensions
        y.shape.is_dynamic[:] = []

    with pytest.raises(errors.TensorTooLarge):
        import_hlo(_changed(change, text))


def test_negative_dimension_is_refused() -> None:
    def change(_: Any, x: Any, y: Any) -> None:
        x.shape.dimensions[:] = [-4]

    with pytest.raises(errors.MalformedModule, match="negative"):
        import_hlo(_changed(change))


@pytest.mark.parametrize(
    "operands", [[], [0], [0, 0, 0], [0, 99], [0, 1]], ids=["none", "one", "three", "gone", "self"]
)
def test_wrong_operands_are_refused(operands: list[int]) -> None:
    def change(_: Any, x: Any, y: Any) -> None:
        y.operand_ids[:] = operands

    with pytest.raises(errors.MalformedModule, match="operand"):
        import_hlo(_changed(change))


@pytest.mark.parametrize("number", [1, -1, 2**40])
def test_parameter_number_out_of_order_is_refused(number: int) -> None:
    def change(_: Any, x: Any, y: Any) -> None:
        x.parameter_number = number

    with pytest.raises(errors.MalformedModule, match="numbers its"):
        import_hlo(_changed(change))


def test_missing_root_and_missing_entry_are_refused() -> None:
    def no_root(message: Any, *_: Any) -> None:
        message.computations[0].root_id = 9

    def no_entry(message: Any, *_: Any) -> None:
        message.entry_computation_id, message.entry_computation_name = 9, "nobody"

    with pytest.raises(errors.MalformedModule, match="root"):
        import_hlo(_changed(no_root))
    with pytest.raises(errors.MalformedModule, match="entry"):
        import_hlo(_changed(no_entry))


def test_two_things_with_one_id_are_refused() -> None:
    def twins(_: Any, x: Any, y: Any) -> None:
        y.id = x.id
        del y.operand_ids[:]

    with pytest.raises(errors.MalformedModule, match="two instructions"):
        import_hlo(_changed(twins))
    doubled = adding_module()
    doubled.computations.add().CopyFrom(doubled.computations[0])
    with pytest.raises(errors.MalformedModule, match="two computations"):
        import_hlo(doubled.SerializeToString())


def test_rule_of_hlo_that_does_not_hold_shows_the_numbers() -> None:
    def change(_: Any, x: Any, y: Any) -> None:
        y.shape.dimensions[:] = [5]

    with pytest.raises(errors.VerificationFailed, match=r"f32\[4\].*f32\[5\]") as caught:
        import_hlo(_changed(_located(change)))
    assert caught.value.code == "NCC_EVRF064" and "model.py:7" in str(caught.value)


# Calls


def _call_chain(calls: list[list[int]]) -> bytes:
    """Computation i calls the computations calls[i], one after the other; the last is the entry."""
    message = messages()["Module"](name="chain", entry_computation_id=len(calls) - 1)
    for number, called in enumerate(calls):
        computation = message.computations.add(name=f"f{number}", id=number, root_id=len(called))
        computation.instructions.add(name="x", opcode="parameter", id=0)
        for position, callee in enumerate(called):
            computation.instructions.add(
                name=f"c{position}",
                opcode="call",
                id=position + 1,
                operand_ids=[position],
                called_computation_ids=[callee],
            )
        for instruction in computation.instructions:
            instruction.shape.element_type = 11
    return message.SerializeToString()


@pytest.mark.parametrize("calls", [[[0]], [[1], [0]], [[1], [2], [0]]])
def test_recursion_is_refused(calls: list[list[int]]) -> None:
    with pytest.raises(errors.MalformedModule, match="calls itself"):
        import_hlo(_call_chain(calls))


def test_call_of_a_missing_computation_is_refused() -> None:
    with pytest.raises(errors.MalformedModule, match="no computation 7"):
        import_hlo(_call_chain([[7]]))


def test_calls_nested_too_deeply_are_refused() -> None:
    deep = [[], *([i] for i in range(200))]
    with pytest.raises(errors.ModuleTooComplex, match="deep"):
        import_hlo(_call_chain(deep))


def test_calls_that_double_are_refused_before_they_explode(monkeypatch) -> None:
    monkeypatch.setattr(module_context, "MOST_INSTRUCTIONS", 1000)
    doubling = [[], *([i, i] for i in range(50))]
    with pytest.raises(errors.ModuleTooComplex, match="1000 instructions"):
        import_hlo(_call_chain(doubling))


def test_deep_chain_of_instructions_is_no_recursion() -> None:
    message = adding_module()
    computation = message.computations[0]
    for number in range(2, 20_000):
        computation.instructions.add().CopyFrom(computation.instructions[1])
        computation.instructions[-1].id = number
        computation.instructions[-1].operand_ids[:] = [number - 1, number - 1]
    computation.root_id = 19_999
    assert len(import_hlo(message.SerializeToString()).nodes) == 20_000


def test_nested_tuple_type_of_a_hostile_depth_is_refused() -> None:
    data = b""
    for _ in range(5000):
        data = bytes([0x10, TUPLE_TYPE]) + _field(4, data)  # element_type, tuple_shapes
    instruction = _field(2, b"parameter") + _field(3, data)
    with pytest.raises(errors.NotAnHloModule):
        import_hlo(_field(3, _field(2, instruction)))


def _field(number: int, payload: bytes) -> bytes:
    """A length-delimited protobuf field."""
    length, header = len(payload), bytearray([number << 3 | 2])
    while length > 127:
        header.append(length & 127 | 128)
        length >>= 7
    return bytes([*header, length]) + payload


@pytest.mark.parametrize("attribute", ["neff_input_names", "neff_output_names"])
@pytest.mark.parametrize("names", ["a,b", "a,a,a"])
def test_list_of_names_that_does_not_fit_is_refused(attribute: str, names: str) -> None:
    message = adding_module()
    message.frontend_attributes.map.add(key=attribute, value=names)
    with pytest.raises(errors.MalformedModule, match=attribute):
        import_hlo(message.SerializeToString())


@pytest.mark.parametrize(
    "alias",
    [{"parameter_number": 3}, {"output_index": [0]}, {"parameter_index": [1]}],
)
def test_alias_of_something_missing_is_refused(alias: dict[str, Any]) -> None:
    message = adding_module()
    message.aliases.entries.add(**alias)
    with pytest.raises(errors.MalformedModule, match="alias"):
        import_hlo(message.SerializeToString())


def test_only_a_size_that_changes_nothing_is_static() -> None:
    text = """x = f32[4] parameter(0)
        n = s32[] constant({})
        y = f32[<=4] set-dimension-size(x, n), dimensions={{0}}
        ROOT z = f32[] constant(1)"""

    def static(_: Any, *instructions: Any) -> None:
        instructions[2].shape.is_dynamic[:] = [False]

    assert isinstance(import_hlo(_changed(static, text.format(4))), Graph)
    with pytest.raises(errors.DynamicShape):
        import_hlo(_changed(static, text.format(3)))


ARITHMETIC = ("add", "compare", "divide", "maximum", "minimum", "multiply", "power", "remainder",
              "subtract")  # fmt: skip
BINARIES = {
    "f32": (*ARITHMETIC, "atan2"),
    "s32": (*ARITHMETIC, "and", "shift-left", "xor"),
    "pred": ("and", "compare", "xor"),
}
OTHER_TYPES = {"f32": (S32_TYPE, 16, 10, 5), "s32": (F32_TYPE, 8, 5, 2), "pred": (S32_TYPE, 6)}


@pytest.mark.parametrize(
    ("base", "opcode"), [(base, opcode) for base in BINARIES for opcode in BINARIES[base]]
)
def test_operands_of_two_dtypes_are_refused(base: str, opcode: str) -> None:
    result = "pred" if opcode == "compare" else base
    direction = ", direction=LT" if opcode == "compare" else ""
    text = f"""x = {base}[4] parameter(0)
        y = {base}[4] parameter(1)
        ROOT z = {result}[4] {opcode}(x, y){direction}"""
    for position in (0, 1):
        for element_type in OTHER_TYPES[base]:
            message = module(entry(text))
            message.computations[0].instructions[position].shape.element_type = element_type
            with pytest.raises(errors.VerificationFailed):
                import_hlo(message.SerializeToString())


# Every declaration


@pytest.mark.parametrize(
    "error", [e for e in ERRORS.values() if e.__module__ == errors.__name__], ids=lambda e: e.code
)
def test_error_is_declared_with_cause_fix_and_example(error: type[CompileError]) -> None:
    assert error.__doc__ is not None
    for heading in ("Cause:", "Fix:", "Example:"):
        assert heading in error.__doc__
    facts = dict.fromkeys(re.findall(r"{(\w+)", error.message + error.help), "it")
    assert "{" not in str(error(**facts))


# Hostile bytes

SEEDS = [GOOD, *(hlo_bytes(BY_NAME[name]) for name in (
    "cond", "conv_nhwc_strided", "scatter_add", "sort_pairs", "while_loop", "gather_rows", "pad",
    "odd_dot_general", "max_pool_gradient", "fft", "dynamic_slice", "slice",
))]  # fmt: skip


def _import_or_refuse(data: bytes) -> None:
    try:
        graph = import_hlo(data)
    except CompileError as error:
        assert error.code in ERRORS
        return
    verify(graph)


_EDITS = st.lists(st.tuples(st.integers(0), st.binary(max_size=4)), max_size=4)


@given(st.sampled_from(SEEDS), _EDITS)
@with_examples(300)
def test_mutated_module_imports_or_is_refused(seed: bytes, edits: list[tuple[int, bytes]]) -> None:
    data = bytearray(seed)
    for position, replacement in edits:
        start = position % len(data)
        data[start : start + max(1, len(replacement))] = replacement
        data = data or bytearray(b"\0")
    _import_or_refuse(bytes(data))


_INTEGERS = st.sampled_from(
    [0, 1, -1, 2, 3, 5, 7, 63, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63)]
)


def _fields(message: Any) -> list[tuple[Any, Any]]:
    """Every (message, field) below a message that holds numbers."""
    found = []
    for field, value in message.ListFields():
        repeated = isinstance(value, list) or hasattr(value, "extend")
        if field.message_type is not None:
            for each in value if repeated else [value]:
                found += _fields(each)
        elif field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_INT32):
            found.append((message, field))
    return found


@given(st.sampled_from(SEEDS), st.data())
@with_examples(300)
def test_module_with_wrong_numbers_imports_or_is_refused(seed: bytes, data: st.DataObject) -> None:
    message = module(seed)
    fields = _fields(message)
    for _ in range(data.draw(st.integers(1, 3))):
        owner, field = fields[data.draw(st.integers(0, len(fields) - 1))]
        value = data.draw(_INTEGERS)
        if field.cpp_type == field.CPPTYPE_INT32:
            value = int(np.clip(value, -(2**31), 2**31 - 1))
        current = getattr(owner, field.name)
        if isinstance(current, int):
            setattr(owner, field.name, value)
        else:
            current[data.draw(st.integers(0, len(current) - 1))] = value
    _import_or_refuse(message.SerializeToString())


@given(st.binary(max_size=200))
@with_examples(200)
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CompileError):
        import_hlo(data)


def test_module_of_one_program_text_is_deterministic() -> None:
    text = "HloModule m\nENTRY e { x = f32[4] parameter(0)  ROOT y = f32[4] add(x, x) }"
    first, second = (import_hlo(from_text(text)) for _ in range(2))
    assert [n.opcode for n in first.nodes] == [n.opcode for n in second.nodes]
