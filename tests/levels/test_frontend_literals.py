"""Constants of every dtype and layout arrive as the arrays they were."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glia.base.dtype import DTYPES
from glia.frontend.errors import BadLiteral
from glia.frontend.hlo_import.hlo_proto import messages
from glia.frontend.hlo_import.literals import read_literal
from glia.frontend.hlo_import.shapes import ELEMENT_TYPES
from support.hlo_text import adding_module, module

_NUMBERS = {name: number for number, name in ELEMENT_TYPES.items()}


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
@settings(max_examples=50, deadline=None)
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
