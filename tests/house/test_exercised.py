"""Every error, instruction, operation and scalar function was exercised by the tests before these.

They run last, and only with the whole suite: what a part of it leaves out says nothing.
"""

from __future__ import annotations

import pytest

from glia.base.error_catalogue import declared_errors
from glia.graph.ir import OPS
from glia.graph.scalar import FUNCTIONS
from glia.isa.kit import INSTRUCTIONS
from support.exercised import COMPUTED, ERRORS_MADE, IS_WATCHING

OTHERWISE_REACHED = {
    "parameter": "an input has no meaning of its own",
}


@pytest.fixture(autouse=True)
def _whole_suite() -> None:
    if not IS_WATCHING[0]:
        pytest.skip("the whole suite was not run before this")


def test_every_error_is_made_by_a_test() -> None:
    assert sorted(declared_errors().keys() - ERRORS_MADE) == []


def test_every_instruction_is_computed_by_a_test() -> None:
    assert [
        n
        for n, i in INSTRUCTIONS.items()
        if "compute" in vars(i) and f"instruction {n}" not in COMPUTED
    ] == []


def test_every_operation_is_computed_by_a_test() -> None:
    missing = [
        n for n, o in OPS.items() if "compute" in vars(o) and f"operation {n}" not in COMPUTED
    ]
    assert [name for name in missing if name not in OTHERWISE_REACHED] == []


def test_every_scalar_function_is_computed_by_a_test() -> None:
    assert [name for name in FUNCTIONS if f"function {name}" not in COMPUTED] == []
