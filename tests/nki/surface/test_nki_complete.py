"""NKI is complete: every documented name is there, with its signature, types and help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import glia.isa
from glia import nki
from glia.isa import INSTRUCTIONS
from glia.nki import collectives, isa, language, typing
from glia.nki.tensors.nki_tensor import NkiTensor
from support.nki_signatures import COLLECTIVES, ISA, LANGUAGE, TENSOR

DTYPES = (
    "bool_", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32",
    "bfloat16", "tfloat32", "float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float8_e5m2_x4",
    "float8_e4m3fn_x4", "float8_e8m0fnu", "float4_e2m1fn_x4",
)  # fmt: skip
ENUMS = {
    "engine": {
        "unknown": 0,
        "tensor": 1,
        "scalar": 2,
        "gpsimd": 3,
        "dma": 4,
        "vector": 5,
        "sync": 6,
    },
    "reduce_cmd": {"idle": 0, "reset": 1, "reduce": 2, "reset_reduce": 3, "load_reduce": 4},
    "dge_mode": {"unknown": 0, "swdge": 1, "hwdge": 2, "none": 3},
    "oob_mode": {"error": 0, "skip": 1},
    "matmul_perf_mode": {"none": "none", "double_row": "double_row"},
    "nc_version": {"gen2": 2, "gen3": 3, "gen4": 4},
    "dma_engine": {"dma": 1, "gpsimd_dma": 2},
}
TILE_SIZES = (
    "pmax", "psum_fmax", "psum_bank_fmax", "psum_bank_fmax_bytes", "gemm_stationary_fmax",
    "gemm_moving_fmax", "bn_stats_fmax", "psum_min_align", "sbuf_min_align",
    "psum_num_banks", "sbuf_size_bytes", "sbuf_fmax", "sbuf_fmax_bytes",
    "total_available_sbuf_size",
)  # fmt: skip
OTHERS = {
    language: "DType MemoryRegion NKIObject NkiTensor average bypass prelu hbm private_hbm psum "
    "sbuf shared_hbm tile_size",
    isa: "NkiInstruction NkiValidationError VirtualRegister tensor_engine vector_engine "
    "scalar_engine gpsimd_engine unknown_engine",
    collectives: "ReplicaGroup",
    typing: "tensor mutable_tensor scalar mutable immutable",
    nki: "jit simulate language isa collectives typing dtype",
}


def documented(text: str) -> Iterator[tuple[str, str]]:
    """(name, parameters) of each signature."""
    for line in re.sub(r"\n +", " ", text).strip().splitlines():
        name, _, parameters = line.partition("(")
        yield name, parameters.removesuffix(")")


def shown(default: Any) -> str:
    """A default as the documentation writes it."""
    if isinstance(default, language.MemoryRegion):
        return default.name
    if isinstance(default, Enum):
        return f"{type(default).__name__}.{default.name}"
    if callable(default):
        return default.__name__
    return "uint8" if default == "uint8" else repr(default)


def parameters_of(function: Callable[..., Any]) -> str:
    parameters = inspect.signature(function).parameters.values()
    texts = [
        p.name if p.default is inspect.Parameter.empty else f"{p.name}={shown(p.default)}"
        for p in parameters
        if p.name != "self"
    ]
    return ", ".join(texts)


FUNCTIONS = [
    (home, name, parameters)
    for home, text in (
        (isa, ISA), (collectives, COLLECTIVES), (language, LANGUAGE), (NkiTensor, TENSOR)
    )
    for name, parameters in documented(text)
]  # fmt: skip


@pytest.mark.parametrize(
    ("home", "name", "parameters"), FUNCTIONS, ids=[f"{h.__name__}.{n}" for h, n, _ in FUNCTIONS]
)
def test_every_function_has_its_documented_signature(home: Any, name: str, parameters: str) -> None:
    assert parameters_of(getattr(home, name)) == parameters


@pytest.mark.parametrize(
    ("home", "name"), [(h, n) for h, n, _ in FUNCTIONS], ids=lambda v: getattr(v, "__name__", v)
)
def test_every_function_has_types_and_help(home: Any, name: str) -> None:
    function = getattr(home, name)
    signature = inspect.signature(function)
    untyped = [
        p.name
        for p in signature.parameters.values()
        if p.annotation is inspect.Parameter.empty and p.name != "self"
    ]
    assert not untyped
    assert function.__doc__


def test_help_of_instructions_comes_from_their_declarations() -> None:
    text = isa.nc_matmul.__doc__ or ""
    declared = INSTRUCTIONS["nc_matmul"]
    assert (declared.__doc__ or "").splitlines()[0] in text
    assert all(rule.sentence in text for rule in declared.rules)


@pytest.mark.parametrize("name", ENUMS)
def test_enumerations_have_their_documented_values(name: str) -> None:
    assert {member.name: member.value for member in getattr(isa, name)} == ENUMS[name]


@pytest.mark.parametrize("home", OTHERS, ids=lambda home: home.__name__)
def test_all_other_names_are_there(home: Any) -> None:
    missing = [name for name in OTHERS[home].split() if not hasattr(home, name)]
    assert not missing


def test_dtypes_are_names() -> None:
    assert all(getattr(language, name) == name.rstrip("_") for name in DTYPES)


def test_memory_regions_have_their_documented_values() -> None:
    names = ("sbuf", "psum", "private_hbm", "shared_hbm")
    assert [region.value for region in language.MemoryRegion] == list(names)
    assert language.hbm is language.private_hbm


@pytest.mark.parametrize(
    ("target", "usable"), [("trn1", 180224), ("trn2", 212984), ("trn3", 245752)]
)
def test_tile_sizes_are_those_of_the_target(
    target: str, usable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
    sizes = {name: getattr(language.tile_size, name) for name in TILE_SIZES}
    assert sizes["total_available_sbuf_size"] == sizes["sbuf_fmax_bytes"] == usable
    assert (sizes["pmax"], sizes["gemm_stationary_fmax"], sizes["gemm_moving_fmax"]) == (
        128, 128, 512,
    )  # fmt: skip
    assert (sizes["psum_bank_fmax"], sizes["psum_num_banks"], sizes["bn_stats_fmax"]) == (
        512, 8, 512,
    )  # fmt: skip


@pytest.mark.parametrize("home", [language, isa, collectives, typing, nki])
def test_modules_export_documented_names_only(home: Any) -> None:
    known = {name for each, name, _ in FUNCTIONS if each is home}
    known |= set(OTHERS[home].split())
    known |= set(DTYPES) if home is language else set()
    known |= set(ENUMS) if home is isa else set()
    assert set(home.__all__) == known


def test_rules_do_not_see_where_in_a_tile_an_operand_lies() -> None:
    """What was found legal once is not asked again, whatever the offset (nki.issue)."""
    folder = Path(glia.isa.__file__).parent
    wrong = [
        f"{path.name}:{number}"
        for path in sorted(folder.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"(?<!\bself)\.offset\b", line) and path.name != "operand.py"
    ]
    assert not wrong
