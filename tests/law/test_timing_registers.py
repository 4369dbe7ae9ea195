"""The timing model's records declare exactly the registers that its rules use."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import ModuleType

import pytest

from glia.arch import get_target
from glia.base.machine_code.native_records import arrays_of
from glia.isa.kit import ENGINES
from glia.timing import events, producers, registers
from glia.timing.plan import make_plan
from glia.timing.plan_tables import lay_out
from glia.timing.registers import CoreRecord, DependenceRecord, Register, state_names
from support.generated_programs import program

RULES = [(events, CoreRecord), (producers, DependenceRecord)]
ENUMERATIONS = [
    each
    for each in vars(registers).values()
    if isinstance(each, type)
    and issubclass(each, registers.IntEnum)
    and each not in (Register, registers.IntEnum)
]
CODES = [each for each in ENUMERATIONS if not issubclass(each, Register)]
WORDS = [each for each in ENUMERATIONS if issubclass(each, Register)]
# Changed by the rules, but no state of the core: buffers, and the rings that hold moments
BUFFERS = {"ring", "pending", "event", "overflow"}


def arrays_named(module: ModuleType, *, written: bool = False) -> set[str]:
    """The arrays of `m` that the functions of a module name, or those that they write."""
    return {
        node.value.attr
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Attribute)
        and isinstance(node.value.value, ast.Name)
        and node.value.value.id == "m"
        and (not written or isinstance(node.ctx, ast.Store))
    }


@pytest.mark.parametrize(("module", "record"), RULES)
def test_a_record_declares_exactly_the_arrays_that_its_rules_use(
    module: ModuleType, record: type
) -> None:
    assert arrays_named(module) == set(arrays_of(record))
    assert list(record.__annotations__) == list(arrays_of(record))


@pytest.mark.parametrize(("module", "record"), RULES)
def test_all_functions_of_the_rules_are_compiled(module: ModuleType, record: type) -> None:
    functions = [name for name, each in vars(module).items() if inspect.isfunction(each)]
    assert sorted(module.FUNCTIONS) == sorted(functions)


@pytest.mark.parametrize("enumeration", ENUMERATIONS)
def test_every_member_is_used(enumeration: type[registers.IntEnum]) -> None:
    """By its name, somewhere in the timing model; engines are numbered as the ISA lists them."""
    texts = [each.read_text() for each in Path(events.__file__).parent.glob("*.py")]
    if enumeration is registers.Engine:
        assert [each.name.lower() for each in enumeration] == list(ENGINES)
        assert len(enumeration) == registers.ENGINES
        return
    for member in enumeration:
        assert any(f"{enumeration.__name__}.{member.name}" in text for text in texts), member


@pytest.mark.parametrize("enumeration", WORDS)
def test_the_words_of_an_array_are_numbered_without_gaps(enumeration: type[Register]) -> None:
    assert [int(each) for each in enumeration] == list(range(len(enumeration)))
    assert all(each.unit and each.meaning for each in enumeration)


@pytest.mark.parametrize("record", [CoreRecord, DependenceRecord])
def test_every_array_has_a_meaning_and_a_unit(record: type) -> None:
    for name, array in arrays_of(record).items():
        assert array.per and array.unit and array.meaning, name


def test_what_the_rules_change_is_the_state() -> None:
    """Arrays that decide when loops are watched and where rings lie are set by the caller only."""
    assert arrays_named(events, written=True) == set(state_names()) | BUFFERS


def test_a_plan_is_laid_out_as_the_record() -> None:
    arch = get_target("trn2").arch
    record = lay_out(make_plan(program([]), arch), arch, {}, 0)
    assert set(record) == set(arrays_of(CoreRecord)) | {"state"}
    assert len(record["parameter"]) == len(registers.RunParameter)
    assert len(record["core"]) == len(registers.CoreState)
    assert len(record["overflow"]) == len(registers.Overflow)


def test_codes_of_one_word_differ() -> None:
    for enumeration in CODES:
        assert len(enumeration.__members__) == len(set(enumeration))
