"""Constants of every dtype and layout arrive as the arrays they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxlib import _hlo

from glia.base.dtype import DTYPES
from glia.base.errors import CompileError
from glia.base.files import map_file
from glia.frontend import hlo
from glia.frontend.errors import BadLiteral
from glia.frontend.hlo_import import payloads
from glia.frontend.hlo_import.hlo_proto import (
    ParsedModule,
    messages,
    parse_module,
    parse_module_apart,
)
from glia.frontend.hlo_import.literals import read_literal
from glia.frontend.hlo_import.payloads import APART_BYTES, split_payloads, with_payloads
from glia.frontend.hlo_import.shapes import ELEMENT_TYPES
from glia.graph import ops
from glia.plugins.hlo_module import HloModule
from support.examples import with_examples
from support.hlo_text import TUPLE_TYPE, adding_module, module

_NUMBERS = {name: number for number, name in ELEMENT_TYPES.items()}
_LARGE = APART_BYTES + 100  # elements, of a byte at least


def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _literal(array: np.ndarray, name: str, order: tuple[int, ...] = ()) -> object:
    literal = messages()["Literal"]()
    literal.shape.element_type = _NUMBERS[name]
    literal.shape.dimensions.extend(array.shape)
    literal.shape.layout.minor_to_major.extend(order)
    stored = array.transpose(order[::-1]) if order else array
    if name in ("s32", "s64", "u32", "u64"):
        payload = b"".join(_varint(int(value)) for value in stored.flat)
    else:
        payload = np.ascontiguousarray(stored).tobytes()
    getattr(literal, f"{name}s").append(payload)
    return literal


@pytest.mark.parametrize("name", DTYPES)
def test_literal_of_every_dtype_is_read(name: str) -> None:
    array = np.array([[0, 1, 2], [1, 3, 2]]).astype(DTYPES[name].numpy)
    found = read_literal(_literal(array, name))
    assert found.dtype == array.dtype and not found.flags.writeable
    assert found.tobytes() == array.tobytes()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
@with_examples(50)
def test_varints_keep_every_64_bit_integer(values: list[int]) -> None:
    array = np.array(values, np.int64)
    np.testing.assert_array_equal(read_literal(_literal(array, "s64")), array)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1)])
def test_layout_of_a_literal_is_undone(order: tuple[int, ...]) -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(read_literal(_literal(array, "f32", order)), array)


def test_payload_in_several_pieces_is_joined() -> None:
    array = np.arange(6, dtype=np.float32)
    literal = _literal(array, "f32")
    payload = literal.f32s.pop()
    literal.f32s.extend([payload[:8], payload[8:]])
    np.testing.assert_array_equal(read_literal(literal), array)


@pytest.mark.parametrize("name", ["f32", "s32", "pred", "s4", "bf16"])
def test_short_payload_is_refused(name: str) -> None:
    literal = _literal(np.ones((4,)).astype(DTYPES[name].numpy), name)
    field = getattr(literal, f"{name}s")
    field[0] = field[0][:-1]
    with pytest.raises(BadLiteral, match=r"expected (4|8|16)"):
        read_literal(literal)


def test_huge_shape_with_small_payload_allocates_nothing() -> None:
    literal = _literal(np.ones(4, np.float32), "f32")
    literal.shape.dimensions[:] = [2**19, 2**19]
    with pytest.raises(BadLiteral, match="16 bytes"):
        read_literal(literal)


def test_pred_bytes_other_than_0_and_1_are_refused() -> None:
    literal = _literal(np.ones(4, bool), "pred")
    literal.preds[0] = b"\x00\x01\x02\x00"
    with pytest.raises(BadLiteral, match="only 0 and 1"):
        read_literal(literal)


def test_layout_that_is_no_permutation_is_refused() -> None:
    literal = _literal(np.ones((2, 2), np.float32), "f32")
    literal.shape.layout.minor_to_major.extend([0, 0])
    with pytest.raises(BadLiteral, match="permutation"):
        read_literal(literal)


def test_overlong_varint_is_refused() -> None:
    literal = _literal(np.ones(1, np.int64), "s64")
    literal.s64s[0] = b"\x80" * 10 + b"\x01"
    with pytest.raises(BadLiteral, match="varint of 11"):
        read_literal(literal)


def test_module_survives_our_schema() -> None:
    message = adding_module()
    assert module(message.SerializeToString()) == message


# --- payloads apart from the message -------------------------------------------------------------


def _written(*arrays: np.ndarray) -> bytes:
    written = HloModule("constants")
    return written.serialized([written.entry.constant(each) for each in arrays])


def _constants(data: bytes) -> list[np.ndarray]:
    graph = hlo.import_hlo(data)
    return [node.value for node in graph.results if isinstance(node, ops.Constant)]


@pytest.mark.parametrize("name", DTYPES)
def test_large_constants_of_every_dtype_are_read_where_they_are(name: str) -> None:
    random = np.random.default_rng(0)
    array = random.integers(0, 2, (2, _LARGE // 2)).astype(DTYPES[name].numpy)
    data = _written(array, array[:1, :3])
    assert [len(each) for each in parse_module_apart(data).payloads] == [
        len(getattr(parse_module(data).computations[0].instructions[0].literal, f"{name}s")[0])
    ]
    found, small = _constants(data)
    assert found.dtype == array.dtype and found.flags.aligned and not found.flags.writeable
    assert found.tobytes() == array.tobytes() and small.tobytes() == array[:1, :3].tobytes()


def test_xla_reads_the_large_constants_that_are_written() -> None:
    array = np.arange(_LARGE, dtype=np.float32)
    message = module(_written(array, -array))
    (computation,) = message.computations
    *constants, root = computation.instructions
    shapes = [shape for each in constants for shape in (each.shape, each.literal.shape)]
    for shape in (*shapes, *root.shape.tuple_shapes):
        shape.layout.minor_to_major.append(0)  # XLA asks for layouts, and the program's shape
    for shape in (computation.program_shape, message.host_program_shape):
        shape.result.CopyFrom(root.shape)
    data = message.SerializeToString()
    text = _hlo.HloModule.from_serialized_hlo_module_proto(data).to_string()
    assert text.count(f"f32[{_LARGE}]{{0}} constant(") == 2


_LITERALS = st.recursive(
    st.tuples(
        st.sampled_from(["f32", "s32", "pred", "u8"]),
        st.lists(st.binary(max_size=40), max_size=2),
    ),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


def _message_of(drawn: Any) -> Any:
    if isinstance(drawn, list):
        found = messages()["Literal"](tuple_literals=[_message_of(each) for each in drawn])
        found.shape.element_type = TUPLE_TYPE
        return found
    name, chunks = drawn
    found = messages()["Literal"]()
    found.shape.element_type = _NUMBERS[name]
    getattr(found, f"{name}s").extend(chunks)
    return found


def _with_literals(drawn: list[Any]) -> Any:
    message = adding_module()
    for each in drawn:
        message.computations[0].instructions.add(
            name="c", opcode="constant", id=9, literal=_message_of(each)
        )
    return message


@given(st.lists(_LITERALS, max_size=4))
@with_examples(100)
def test_payloads_taken_apart_and_joined_are_the_module(drawn: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payloads, "APART_BYTES", 8)
        message = _with_literals(drawn)
        data = message.SerializeToString(deterministic=True)
        for kind, whole in (("Module", data), ("Hlo", _in_hlo(message))):
            slim, taken = split_payloads(whole, kind)
            assert all(len(each) >= 8 for each in taken)
            parsed = messages()[kind].FromString(slim)
            found = parsed if kind == "Module" else parsed.hlo_module
            assert (
                b"".join(with_payloads(found.SerializeToString(deterministic=True), taken)) == data
            )


def _in_hlo(message: Any) -> bytes:
    return bytes(messages()["Hlo"](hlo_module=message).SerializeToString())


def _outcome(data: bytes) -> object:
    try:
        return [(each.dtype, each.tobytes()) for each in _constants(data)]
    except CompileError as refused:
        return type(refused)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_modules_are_read_alike_with_payloads_apart(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads, "APART_BYTES", 16)
    random = np.random.default_rng(seed)
    data = np.frombuffer(_written(np.arange(9, dtype=np.float32), np.arange(40)), np.uint8)
    outcomes = set()
    for _ in range(300):
        damaged = data.copy()
        places = random.integers(0, len(data), random.integers(1, 4))
        damaged[places] = random.integers(0, 256, len(places))
        taken = _outcome(damaged.tobytes())
        with monkeypatch.context() as patch:
            patch.setattr(hlo, "parse_module_apart", lambda d: ParsedModule(parse_module(d)))
            assert taken == _outcome(damaged.tobytes())
        outcomes.add(str(taken)[:30])
    assert len(outcomes) > 3


def test_a_number_that_a_file_has_itself_is_no_payload() -> None:
    array = np.arange(_LARGE, dtype=np.float32)
    message = module(_written(array, array[:2]))
    first, second, _ = message.computations[0].instructions
    second.literal.CopyFrom(first.literal)
    second.literal.f32s[:] = [b""]
    second.literal.payload_number = 1
    with pytest.raises(BadLiteral, match="holds 0 bytes"):
        hlo.import_hlo(message.SerializeToString())


def test_a_literal_that_occurs_twice_is_merged() -> None:
    array = np.arange(_LARGE, dtype=np.float32)
    message = module(_written(array))
    computation = message.computations.pop()
    root = computation.instructions[1].SerializeToString()
    half = messages()["Literal"](f32s=[array[:10].tobytes()]).SerializeToString()
    computation.instructions[0].literal.f32s[0] = array[10:].tobytes()
    constant = computation.instructions[0].SerializeToString()
    twice = b"\x42" + bytes([len(half)]) + half + constant
    del computation.instructions[:]
    rest = computation.SerializeToString()
    body = b"".join(b"\x12" + _varint(len(each)) + each for each in (twice, root)) + rest
    data = message.SerializeToString() + b"\x1a" + _varint(len(body)) + body
    (found,) = _constants(data)
    np.testing.assert_array_equal(found, array)


def test_a_file_of_nothing_but_fields_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    real = payloads._read_varint

    def counted(data: memoryview, position: int, end: int) -> tuple[int, int]:
        looked.append(position)
        return real(data, position, end)

    monkeypatch.setattr(payloads, "_read_varint", counted)
    monkeypatch.setattr(payloads, "MOST_FIELDS", 1000)
    message = adding_module()
    message.computations[0].instructions.add(
        opcode="constant", literal=messages()["Literal"](f32s=[b""] * 100_000)
    )
    data = message.SerializeToString()
    assert split_payloads(data, "Module") == (data, ()) and len(looked) < 4000


@pytest.mark.parametrize("number", [0, 2, 2**40])
def test_a_number_without_a_payload_means_nothing(number: int) -> None:
    message = module(_written(np.arange(3, dtype=np.float32)))
    message.computations[0].instructions[0].literal.payload_number = number
    (found,) = _constants(message.SerializeToString())
    np.testing.assert_array_equal(found, np.arange(3))


def test_a_module_of_gigabytes_is_parsed_without_its_payload(tmp_path: Path) -> None:
    length = 5 << 30
    zeros, path = tmp_path / "zeros", tmp_path / "module.pb"
    with zeros.open("wb") as file:
        file.truncate(length)
    slim, _ = split_payloads(_written(np.zeros(_LARGE, np.uint8)), "Module")
    with path.open("wb") as file:
        for piece in with_payloads(slim, [map_file(zeros, length)]):
            if len(piece) == length:
                file.seek(length, 1)  # a hole, which takes no room
            else:
                file.write(piece)
    found, (payload,) = split_payloads(map_file(path, 2 * length), "Module")
    assert len(payload) == length and found == slim
