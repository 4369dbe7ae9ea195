"""Every fast way of making an object does what its plain twin does."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glia.base import fast_objects
from glia.base.affine import Affine
from glia.base.dtype import BF16, F32
from glia.base.fast_objects import (
    allocate,
    allocate_plainly,
    fields_of,
    fields_of_plainly,
    from_fields,
    from_fields_plainly,
    frozen_value,
    frozen_value_plainly,
    identities,
    identities_plainly,
    set_field,
    set_field_plainly,
    with_defaults,
    with_defaults_plainly,
)
from glia.isa.examples import examples
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Signal, Tile, Wait
from glia.machine.footprint import Footprint
from glia.nki import language as nl
from glia.nki.run.trace import trace
from glia.nki.tensors.nki_object import NkiInstruction
from glia.nki.tensors.nki_tensor import NkiTensor
from support.examples import with_examples
from support.generated_programs import instructions

EXAMPLES = examples()
NUMBERS = st.integers(-(2**70), 2**70)


def test_every_trick_has_a_plain_twin() -> None:
    public = {name for name in vars(fast_objects) if callable(getattr(fast_objects, name))}
    own = {"allocate", "fields_of", "set_field"} | {
        name
        for name in public
        if getattr(getattr(fast_objects, name), "__module__", "") == fast_objects.__name__
        and not name.startswith("_")
    }
    fast = {name for name in own if not name.endswith("_plainly")}
    assert own - fast == {f"{name}_plainly" for name in fast}


# A value


class _Point:
    x: int
    y: tuple[int, ...] = ()


class _Named:
    name: str
    weight: int

    def __hash__(self) -> int:
        return hash(self.name)


def twins(kind: type) -> list[type]:
    """A class as `frozen_value` and as its plain twin make it."""
    return [
        make(type(kind.__name__, (), dict(vars(kind))))
        for make in (frozen_value, frozen_value_plainly)
    ]


POINTS, NAMED = twins(_Point), twins(_Named)
CONTENTS = st.tuples(NUMBERS, st.lists(NUMBERS, max_size=3).map(tuple))


@given(CONTENTS, CONTENTS)
def test_values_compare_hash_and_print_as_frozen_dataclasses(
    one: tuple[Any, ...], other: tuple[Any, ...]
) -> None:
    (a, b), (plain_a, plain_b) = ((kind(*one), kind(*other)) for kind in POINTS)
    assert (a == b) == (plain_a == plain_b) == (one == other)
    assert hash(a) == hash(plain_a)
    assert repr(a) == repr(plain_a)
    assert dataclasses.astuple(a) == dataclasses.astuple(plain_a) == one
    moved, plain_moved = (dataclasses.replace(p, x=0) for p in (a, plain_a))
    assert dataclasses.astuple(moved) == dataclasses.astuple(plain_moved)
    assert (a == a.x) == (plain_a == plain_a.x)


@given(st.text(), NUMBERS)
def test_values_keep_a_hash_of_their_own(name: str, weight: int) -> None:
    fast, plain = (kind(name, weight) for kind in NAMED)
    assert hash(fast) == hash(plain) == hash(name)


def test_values_have_slots_and_are_referred_to_weakly_as_frozen_dataclasses() -> None:
    fast, plain = POINTS
    assert fast.__slots__ == plain.__slots__
    assert "__weakref__" in fast.__slots__
    assert not hasattr(fast(1), "__dict__")
    with pytest.raises(AttributeError):
        fast(1).z = 1
    with pytest.raises(TypeError):
        fast()


@pytest.mark.parametrize("kind", [Affine, Tile, Pattern, Wait, Signal])
def test_values_of_programs_are_made_this_way(kind: type) -> None:
    assert "__weakref__" in kind.__slots__
    assert not hasattr(kind, "__dict__") or "__dict__" not in vars(kind)


# Objects from their fields


@dataclass(frozen=True)
class _Sum:
    a: int
    b: int = 2
    c: list[int] = field(default_factory=list)


@given(instructions())
def test_instructions_from_fields_are_as_from_their_initialiser(instr: Instr) -> None:
    fields = dict(vars(instr))
    fast = from_fields(type(instr), dict(fields))
    plain = from_fields_plainly(type(instr), fields)
    assert fast == plain == instr
    assert vars(fast) == vars(plain) == fields
    assert repr(fast) == repr(plain)
    assert dataclasses.replace(fast) == dataclasses.replace(plain)


@given(
    st.lists(st.tuples(st.integers(-9, 9), st.integers(1, 9)), min_size=1, max_size=4),
    st.integers(0, 64),
    st.sampled_from([F32, BF16]),
    st.sampled_from([Memory.SBUF, Memory.HBM]),
)
def test_footprints_compute_the_fields_that_the_initialiser_computes(
    dims: list[tuple[int, int]], offset: int, dtype: Any, memory: Memory
) -> None:
    """`Footprint.at` gives all fields itself, those too that are derived from others."""
    tile = Tile("t", memory, dtype, 128, 2048)
    pattern = Pattern(tile, dtype, tuple(dims), Affine.of("i") + offset)
    made = Footprint.of(pattern)
    assert vars(made) == vars(from_fields_plainly(Footprint, vars(made)))


def test_an_object_from_fields_keeps_the_dictionary() -> None:
    fields: dict[str, Any] = {"a": 1, "b": 2, "c": []}
    assert vars(from_fields(_Sum, fields)) is fields


@pytest.mark.parametrize("name", EXAMPLES)
def test_fields_that_are_not_given_have_their_defaults(name: str) -> None:
    instr = EXAMPLES[name]
    declared = {each.name: each for each in dataclasses.fields(instr)}
    required = {
        name: content
        for name, content in vars(instr).items()
        if declared[name].default is dataclasses.MISSING
        and declared[name].default_factory is dataclasses.MISSING
    }
    for given_fields in (required, vars(instr)):
        fast = with_defaults(type(instr), given_fields)
        assert vars(fast) == vars(with_defaults_plainly(type(instr), given_fields))


@given(NUMBERS, st.none() | NUMBERS)
def test_defaults_are_those_of_the_class(a: int, b: int | None) -> None:
    fields = {"a": a} if b is None else {"a": a, "b": b}
    assert with_defaults(_Sum, fields) == with_defaults_plainly(_Sum, fields)
    assert fields == ({"a": a} if b is None else {"a": a, "b": b})


# Objects whose initialiser did not run


@pytest.mark.parametrize("kind", [NkiTensor, NkiInstruction, Tile, _Sum])
def test_an_allocated_object_is_of_its_class_and_empty(kind: type) -> None:
    fast, plain = allocate(kind), allocate_plainly(kind)
    assert type(fast) is type(plain) is kind
    for each in (fast, plain):
        assert getattr(each, "__dict__", {}) == {}
        slots = [name for name in getattr(kind, "__slots__", ()) if name != "__weakref__"]
        assert not [name for name in slots if hasattr(each, name)]


@given(st.lists(st.integers(0, 100), min_size=2, max_size=2).map(sorted), st.integers(0, 127))
@with_examples(20)
def test_views_have_every_field_that_an_initialiser_sets(ends: list[int], row: int) -> None:
    """Views and tensors are allocated, and set their fields themselves."""
    seen: list[set[str]] = []

    def kernel(x: NkiTensor) -> NkiTensor:
        chip = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
        made = [x, chip, chip[row:, ends[0] : ends[1] + 1], chip[row], x[..., ends[0] :]]
        made += [chip.reshape((128, 2, 64)), chip.view(nl.bfloat16)]
        made.append(NkiTensor((128, 128), nl.float32, chip.tile))
        seen.extend({name for name in NkiTensor.__slots__ if hasattr(each, name)} for each in made)
        return nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)

    trace(kernel, np.zeros((128, 128), np.float32))
    assert seen and all(names == set(NkiTensor.__slots__) for names in seen)


class _Slotted:
    __slots__ = ("a",)

    def __setattr__(self, name: str, content: Any) -> None:
        raise AttributeError(name)


@given(NUMBERS)
def test_a_field_is_set_although_the_class_refuses_it(content: int) -> None:
    for kind in (_Sum, _Slotted):
        fast, plain = allocate(kind), allocate(kind)
        set_field(fast, "a", content)
        set_field_plainly(plain, "a", content)
        assert fast.a == plain.a == content
        assert getattr(fast, "__dict__", None) == getattr(plain, "__dict__", None)


@given(instructions())
def test_the_fields_of_an_instruction_are_its_own_dictionary(instr: Instr) -> None:
    assert fields_of(instr) is fields_of_plainly(instr)


# Identities


@given(st.lists(st.sampled_from([None, "a", (1,), 7, F32, object(), [1]]), max_size=9))
def test_identities_are_those_of_the_objects(objects: list[Any]) -> None:
    column = np.fromiter(objects, object, len(objects))
    found = identities(column)
    assert found.dtype == np.int64
    assert found.tolist() == identities_plainly(column).tolist()
