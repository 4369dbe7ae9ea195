"""What is declared is declared whole: instructions, operations, functions, errors, options."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from glia.base.dtype import BF16, F32, PRED, S32, U8, U32, DType
from glia.base.error_catalogue import declared_errors
from glia.base.errors import ERRORS, CompileError
from glia.cli.neuronx_cc import main as neuronx_cc
from glia.frontend.hlo import operators
from glia.graph import ops
from glia.graph.ir import OPS, Graph, Node, Parameter, TensorType
from glia.graph.scalar import FUNCTIONS
from glia.isa.instructions.multicore import RankId
from glia.isa.instructions.sync import Barrier, RegisterMove
from glia.isa.kit import INSTRUCTIONS, Instr
from glia.machine.ir import Program
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from support.graph_cases import CASES, Case

LAWLESS = {RegisterMove, Barrier, RankId}  # no operand and no attribute that could be wrong

COMPILED_BY_REFUSAL = {
    "parameter",  # an input, not an operation
    "custom_call",  # calls are expanded at import, those that are not are refused there
}


@pytest.mark.parametrize("instruction", INSTRUCTIONS.values(), ids=INSTRUCTIONS.keys())
def test_every_instruction_is_declared_whole(instruction: type[Instr]) -> None:
    assert instruction.__doc__ and not instruction.__doc__.startswith(f"{instruction.__name__}(")
    assert bool(instruction.rules) != (instruction in LAWLESS)
    assert instruction.cost_source.strip()
    assert instruction.compute is not Instr.compute
    assert instruction.cycles is not Instr.cycles
    assert instruction.engine in instruction.engines


@pytest.mark.parametrize("operation", OPS.values(), ids=OPS.keys())
def test_every_operation_is_declared_whole(operation: type[Node]) -> None:
    assert operation.__doc__ and not operation.__doc__.startswith(f"{operation.__name__}(")
    assert operation.infer is not Node.infer
    assert operation.compute is not Node.compute or operation is Parameter


@cache
def _first_cases() -> dict[str, Case]:
    """For each operation the first of the test programs that has it."""
    found: dict[str, Case] = {}
    for case in CASES:
        for node in case.graph().nodes:
            found.setdefault(node.opcode, case)
    return found


@pytest.mark.parametrize("opcode", sorted(OPS.keys() - COMPILED_BY_REFUSAL))
def test_every_operation_compiles(opcode: str) -> None:
    graph = _first_cases()[opcode].graph()
    assert isinstance(run_pipeline(graph, CompileOptions(auto_cast="none", verify=True)), Program)


def _dtypes(name: str) -> list[DType]:
    """The element types of the device that a scalar function takes."""
    return [d for d in (F32, BF16, S32, U32, U8, PRED) if d.kind in FUNCTIONS[name].kinds]


def _map(name: str, dtype: DType) -> Graph:
    arity = FUNCTIONS[name].arity
    kinds = [TensorType(dtype, (3, 5))] * arity
    if name == "select":
        kinds[0] = TensorType(PRED, (3, 5))
    parameters = tuple(Parameter(i, kind, f"x{i}") for i, kind in enumerate(kinds))
    return Graph(name, parameters, (ops.Map(function=name, args=parameters),))


REAL_FUNCTIONS = sorted(
    name for name, f in FUNCTIONS.items() if f.result != "complex" and _dtypes(name)
)


@pytest.mark.parametrize("name", REAL_FUNCTIONS)
def test_every_scalar_function_compiles_on_every_dtype(name: str) -> None:
    failed = []
    for dtype in _dtypes(name):
        try:
            run_pipeline(_map(name, dtype), CompileOptions(auto_cast="none"))
        except Exception as error:
            failed.append(f"{dtype}: {type(error).__name__}: {str(error).splitlines()[0]}")
    assert not failed, "\n".join(["", *failed])


def test_every_scalar_function_has_prose() -> None:
    assert [n for n, f in FUNCTIONS.items() if not f.prose.strip()] == []


@pytest.mark.parametrize("error", declared_errors().values(), ids=declared_errors().keys())
def test_every_error_tells_cause_fix_and_example(error: type[CompileError]) -> None:
    text = error.__doc__ or ""
    headings = re.findall(r"^ *(Cause|Fix|Example):", text, re.MULTILINE)
    assert headings == ["Cause", "Fix", "Example"], text
    assert re.fullmatch(r"NCC_E[A-Z]{3}\d{3}|GLIA\d{3}", error.code)
    placeholders = set(re.findall(r"\{(\w+)", error.message + error.help))
    assert error.render is CompileError.render, placeholders


def test_codes_are_unique() -> None:
    names = [error.__name__ for error in declared_errors().values()]
    assert len(ERRORS) == len(declared_errors())
    assert len(set(names)) == len(names)


# Options of the product's documentation, each with a value it documents.
PRODUCT_OPTIONS = {
    "--framework": "XLA",
    "--target": "inf2 trn1 trn1n trn2 trn3",
    "--model-type": "generic transformer unet-inference",
    "--auto-cast": "matmult none all",
    "--auto-cast-type": "bf16 fp16 tf32 fp8_e4m3",
    "--enable-mixed-precision-accumulation": "",
    "--disable-mixed-precision-accumulation": "",
    "--enable-saturate-infinity": "",
    "--native-int64": "default enabled disabled",
    "--implicit-integer-downcast": "all none dot scatter all_reduce reduce_scatter pow",
    "--distribution-strategy": "llm-training nemo fsdp",
    "--distribution_strategy": "llm-training nemo fsdp",
    "--logical-nc-config": "1 2",
    "-lnc": "1 2",
    "--lnc": "1 2",
    "--optlevel": "1 2 3",
    "-O": "1 2 3",
    "--enable-experimental-O1": "",
    "--num-parallel-jobs": "8",
    "--enable-fast-context-switch": "",
    "--enable-fast-loading-neuron-binaries": "",
    "--logfile": "log-neuron-cc.txt",
    "--output": "file.neff",
    "--verbose": "warning info error critical debug 20",
}


@pytest.mark.parametrize("option", PRODUCT_OPTIONS)
def test_every_option_of_the_product_is_known(option: str) -> None:
    command = neuronx_cc.commands["compile"]  # type: ignore[attr-defined]
    known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
    assert option in known


def test_every_listed_operator_is_sorted_and_once() -> None:
    listed = list(operators())
    assert listed == sorted(set(listed))
    assert np.all([name.strip() for name in listed])
