"""Values that programs hold many of: nobody changes them, though only development mode looks."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from glia.base.affine import Affine
from glia.base.dtype import F32
from glia.isa.operand import Memory, Pattern, Signal, Tile, Wait

TESTS = Path(__file__).parents[1]
TILE = Tile("x", Memory.SBUF, F32, 128, 16)
VALUES = [
    Affine((("i", 2),), 3),
    TILE,
    Pattern(TILE, F32, ((1, 128), (1, 16))),
    Wait("vector", Affine((), 1)),
    Signal("vector"),
]
WRITE = """
from dataclasses import FrozenInstanceError
from glia.base.affine import Affine
value = Affine((), 1)
try:
    value.constant = 2
except FrozenInstanceError:
    print("refused")
"""


def in_development_mode(*arguments: str) -> str:
    """What Python prints in development mode."""
    command = [sys.executable, "-X", "dev", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_development_mode_refuses_to_write_to_a_field():
    assert in_development_mode("-c", WRITE).strip() == "refused"


def test_nothing_writes_to_a_field_from_a_model_to_its_results():
    assert " passed" in in_development_mode(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS / "tiny")
    )


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_copy_is_equal_and_one_with_another_field_is_not(value):
    name = type(value).__slots__[0]
    assert replace(value) == value and hash(replace(value)) == hash(value)
    assert replace(value, **{name: None}) != value


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_has_no_other_attributes(value):
    with pytest.raises(AttributeError):
        value.anything = 1
