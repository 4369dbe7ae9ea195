"""Every code of AWS's public error reference: a program that triggers it, or why none can."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from jax import lax

import glia
import glia.core_programs
from glia.base.error_catalogue import product_codes
from glia.base.errors import CompileError
from glia.base.unraised_codes import UNRAISED
from glia.cli.glia import main
from glia.custom_call.backend_config import write_kernel
from glia.kernels.tensor_add import tensor_add
from support.hlo_text import adding_module, entry, from_text

# The public reference's list; those of one line have one meaning.
REFERENCE = """
EARG001
EBIR023
EBVF030 EVRF007 EXTP004
EHCA005 EVRF015
EMOD025
EOOM001 EOOM002 EVRF009 EXSP001
ESFH002
ESPP004
ESPP047 EVRF005
EUOC002
EVRF001
EVRF004 EVRF006 EVRF010 EVRF011 EVRF013 EVRF016 EVRF017 EVRF018 EVRF019 EVRF022 EVRF031 EVRF035
EVRF036 EVRF037 EVRF038 EVRF039 EVRF040 EVRF041 EVRF042 EVRF043 EVRF044 EVRF045 EVRF046 EVRF047
EVRF048 EVRF049 EVRF050 EVRF051 EVRF052 EVRF053 EVRF054 EVRF055 EVRF056 EVRF057 EVRF058 EVRF059
EVRF060 EVRF061 EVRF062 EVRF063 EVRF064 EVRF065
"""
CODES = [f"NCC_{code}" for code in REFERENCE.split()]
ALIASES = [line.split() for line in REFERENCE.split("\n") if len(line.split()) in (2, 3, 4)]


def lowered(function: Callable[..., Any], *shapes: tuple[str, tuple[int, ...]]) -> Any:
    with jax.enable_x64(True):
        structs = [jax.ShapeDtypeStruct(shape, dtype) for dtype, shape in shapes]
        return jax.jit(function).lower(*structs).compiler_ir("hlo").as_serialized_hlo_module_proto()


def convolution(**options: Any) -> Callable[..., Any]:
    layout_of = ("NHWC", "HWIO", "NHWC")
    return lambda x, k: lax.conv_general_dilated(
        x, k, padding=((2, 2), (2, 2)), dimension_numbers=layout_of, **options
    )


def window(**options: Any) -> Callable[..., Any]:
    return lambda x: lax.reduce_window(x, 0.0, lax.add, (2,), (1,), "VALID", **options)


def two_windows(x: Any, y: Any) -> Any:
    def combine(a: Any, b: Any) -> Any:
        return jnp.maximum(a[0], b[0]), jnp.minimum(a[1], b[1])

    starts = np.float32(-np.inf), np.float32(np.inf)
    return lax.reduce_window((x, y), starts, combine, (2,), (1,), "VALID")


def set_rows(x: Any) -> Any:
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    indices = lax.iota(jnp.int32, 10).reshape(10, 1)
    return lax.scatter(x, indices, jnp.ones((10, 4), jnp.float32), numbers)


def take_rows(x: Any) -> Any:
    numbers = lax.GatherDimensionNumbers((1,), (0,), (0,))
    indices = lax.iota(jnp.int32, 10).reshape(10, 1)
    return lax.gather(x, indices, numbers, (1, 4), mode="clip")


def collective(opcode: str, result: str, more: str) -> bytes:
    return from_text(f"""HloModule test, replica_count=2

add {{
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT c = s32[] add(a, b)
}}

ENTRY main {{
  x = s32[8] parameter(0)
  ROOT y = {result} {opcode}(x), replica_groups={{{{0,1}}}}, to_apply=add{more}
}}
""")


IMAGE, KERNEL, ROW = ("float32", (1, 4, 4, 1)), ("float32", (3, 3, 1, 1)), ("float32", (9,))
TABLE = ("float32", (3, 4))
LIMITED: dict[str, Callable[[], Any]] = {
    "EVRF004": lambda: lowered(lambda x: x * 2, ("complex64", (4,))),
    "EVRF005": lambda: entry(
        "  x = f8e4m3fnuz[8] parameter(0)\n  ROOT y = f8e4m3fnuz[8] negate(x)"
    ),
    "EVRF006": lambda: lowered(
        lambda key: lax.rng_bit_generator(key, (8,), algorithm=lax.RandomAlgorithm.RNG_THREE_FRY),
        ("uint64", (2,)),
    ),
    "EVRF010": lambda: lowered(
        convolution(window_strides=(1, 1), lhs_dilation=(2, 2), rhs_dilation=(2, 2)), IMAGE, KERNEL
    ),
    "EVRF011": lambda: lowered(
        convolution(window_strides=(2, 2), lhs_dilation=(2, 2)), IMAGE, KERNEL
    ),
    "EVRF013": lambda: lowered(lambda x: lax.top_k(x, 2), ("int32", (9,))),
    "EVRF016": lambda: lowered(
        lambda x, i: x.at[i].add(jnp.int8(1)), ("int8", (9,)), ("int32", (3,))
    ),
    "EVRF017": lambda: lowered(window(base_dilation=(2,)), ROW),
    "EVRF018": lambda: lowered(window(window_dilation=(2,)), ROW),
    "EVRF019": lambda: lowered(two_windows, ROW, ROW),
    "EVRF022": lambda: lowered(lax.shift_right_arithmetic, ("int16", (9,)), ("int16", (9,))),
    "EVRF031": lambda: lowered(set_rows, TABLE),
    "EVRF035": lambda: lowered(jnp.matmul, ("int32", (4, 4)), ("int32", (4, 4))),
    "EVRF051": lambda: lowered(lambda x: x * 2, ("float8_e4m3fn", (8,))),
    "EVRF056": lambda: lowered(take_rows, TABLE),
    "EVRF060": lambda: lowered(lambda x, i: x.at[i].add(1), ("int32", (9,)), ("int32", (3,))),
    "EVRF061": lambda: collective("all-reduce", "s32[8]", ""),
    "EVRF062": lambda: entry("  x = s64[4] parameter(0)\n  ROOT y = s64[4] power(x, x)"),
    "EVRF063": lambda: collective("reduce-scatter", "s32[4]", ", dimensions={0}"),
}


@pytest.mark.parametrize("code", LIMITED)
def test_the_products_limits_apply_where_they_are_asked_for(code: str) -> None:
    with pytest.raises(CompileError) as caught:
        glia.compile(LIMITED[code](), product_limits=True)
    assert f"NCC_{code}" in (caught.value.code, *caught.value.also)


@pytest.mark.parametrize("code", sorted(set(LIMITED) - {"EVRF061", "EVRF063"}))
def test_without_the_option_the_same_programs_compile(code: str) -> None:
    assert glia.compile(LIMITED[code]()).programs


@pytest.mark.parametrize(
    ("code", "name"),
    [("EVRF035", "dot"), ("EVRF060", "scatter"), ("EVRF062", "pow")],
)
def test_integers_that_may_be_narrowed_are_not_refused(code: str, name: str) -> None:
    neff = glia.compile(LIMITED[code](), product_limits=True, implicit_integer_downcast=(name,))
    assert neff.programs


def test_a_kernel_within_the_limits_compiles_under_them() -> None:
    module = lowered(lambda x: jnp.tanh(x @ x), ("float32", (8, 8)))
    assert glia.compile(module, product_limits=True).programs


def quantize(
    config: object, x: str = "bf16[4,32]", result: str = "(u32[4,8], u8[4,1])", count: int = 1
) -> bytes:
    text = config if isinstance(config, str) else json.dumps(config)
    names = ", ".join(f"x{n}" for n in range(count))
    lines = [f"  x{n} = {x} parameter({n})" for n in range(count)]
    call = f'custom-call({names}), custom_call_target="QuantizeMX", backend_config={quoted(text)}'
    return entry("\n".join([*lines, f"  ROOT r = {result} {call}"]))


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


GOOD_QUANTIZE = {"dtype": "float8_e5m2", "dim": -1}
QUANTIZE: dict[str, Callable[[], bytes]] = {
    "EVRF036": lambda: quantize("x"),
    "EVRF037": lambda: quantize(GOOD_QUANTIZE, count=2),
    "EVRF038": lambda: quantize(GOOD_QUANTIZE | {"dim": 0}, "bf16[2,4,32]"),
    "EVRF039": lambda: quantize(GOOD_QUANTIZE | {"block_size": 16}),
    "EVRF040": lambda: quantize(GOOD_QUANTIZE | {"scale_method": "FLOOR"}),
    "EVRF041": lambda: quantize(GOOD_QUANTIZE, "f32[4,32]"),
    "EVRF042": lambda: quantize({"dtype": "float32", "dim": -1}),
    "EVRF057": lambda: quantize(GOOD_QUANTIZE, result="u32[4,8]"),
    "EVRF058": lambda: quantize(GOOD_QUANTIZE, "bf16[4,30]"),
}


def scaled(
    config: object = "",
    left: str = "u32[4,8]",
    right: str = "u32[4,8]",
    result: str = "f32[4,4]",
    count: int = 4,
) -> bytes:
    text = config if isinstance(config, str) else json.dumps({"scaled_dot_backend_config": config})
    types = (left, right, "u8[4,1]", "u8[4,1]")[:count]
    names = ", ".join(f"x{n}" for n in range(count))
    lines = [f"  x{n} = {kind} parameter({n})" for n, kind in enumerate(types)]
    target = "__op$block_scaled_dot"
    call = f'custom-call({names}), custom_call_target="{target}", backend_config={quoted(text)}'
    return entry("\n".join([*lines, f"  ROOT r = {result} {call}"]))


SCALED: dict[str, Callable[[], bytes]] = {
    "EVRF043": lambda: scaled(count=2),
    "EVRF044": lambda: scaled(left="bf16[4,8]"),
    "EVRF045": lambda: scaled(result="f16[4,4]"),
    "EVRF046": lambda: scaled(left="u32[8]"),
    "EVRF047": lambda: scaled(right="u32[8]"),
    "EVRF048": lambda: scaled(
        {"lhs_batch_dimensions": [0], "rhs_batch_dimensions": [0]}, "u32[2,4,8]", "u32[3,4,8]"
    ),
    "EVRF049": lambda: scaled("x"),
    "EVRF050": lambda: scaled(right="u32[4,16]"),
    "EVRF053": lambda: scaled({"lhs_batch_dimensions": [1]}),
    "EVRF054": lambda: scaled({"lhs_batch_dimensions": [5]}),
    "EVRF055": lambda: scaled({"lhs_contracting_dimensions": [5]}),
}


def kernel_of_another_version() -> bytes:
    x = np.zeros((128, 512), np.float32)
    config = json.loads(base64.b64decode(write_kernel(tensor_add.compile(x, x).programs, [[]])))
    neff = bytearray(base64.b64decode(config["neff"]))
    neff[24:32] = (9).to_bytes(8, "little")  # the container's version
    config["neff"] = base64.b64encode(neff).decode("ascii")
    text = base64.b64encode(json.dumps(config).encode()).decode("ascii")
    call = 'custom-call(a, b), custom_call_target="AwsNeuronCustomNativeKernel"'
    return entry(
        "  a = f32[128,512] parameter(0)\n  b = f32[128,512] parameter(1)\n"
        f'  ROOT r = f32[128,512] {call}, backend_config="{text}"'
    )


def wrong_shape() -> bytes:
    message = adding_module()
    message.computations[0].instructions[1].shape.dimensions[0] = 5
    data: bytes = message.SerializeToString()
    return data


def loop_in_a_reduction() -> bytes:
    return from_text("""HloModule test

small {
  x = f32[] parameter(0)
  ten = f32[] constant(10)
  ROOT r = pred[] compare(x, ten), direction=LT
}

double {
  x = f32[] parameter(0)
  ROOT r = f32[] add(x, x)
}

combine {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = f32[] add(a, b)
  ROOT r = f32[] while(c), condition=small, body=double
}

ENTRY main {
  x = f32[8] parameter(0)
  zero = f32[] constant(0)
  ROOT r = f32[] reduce(x, zero), dimensions={0}, to_apply=combine
}
""")


ALWAYS: dict[str, Callable[[], Any]] = {
    "EHCA005": lambda: entry(
        '  x = f32[4] parameter(0)\n  ROOT y = f32[4] custom-call(x), custom_call_target="Unknown"'
    ),
    "EMOD025": lambda: entry("  x = f32[<=4] parameter(0)\n  ROOT y = f32[<=4] negate(x)"),
    "EOOM001": lambda: lowered(lambda x: jnp.broadcast_to(x, (80_000_000_000,)), ("float32", ())),
    "ESPP004": lambda: lowered(jnp.sin, ("float64", (4,))),
    "EVRF001": lambda: entry("  t = token[] after-all()\n  ROOT r = (f32[4], token[]) infeed(t)"),
    "EVRF064": wrong_shape,
    "EVRF065": kernel_of_another_version,
    "EUOC002": loop_in_a_reduction,
}


@pytest.mark.parametrize(("code", "make"), [*QUANTIZE.items(), *SCALED.items(), *ALWAYS.items()])
def test_codes_that_are_always_live(code: str, make: Callable[[], Any]) -> None:
    with pytest.raises(CompileError) as caught:
        glia.compile(make())
    assert f"NCC_{code}" in (caught.value.code, *caught.value.also)


def test_too_many_instructions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glia.core_programs, "MOST_INSTRUCTIONS", 3)
    module = lowered(lambda x: jnp.tanh(x @ x), ("float32", (8, 8)))
    with pytest.raises(CompileError, match="NCC_EVRF007"):
        glia.compile(module, product_limits=True)
    assert glia.compile(module).programs


WIDE = "  x = u64[] parameter(0)\n  c = u64[] constant(4294967296)\n  ROOT y = u64[] add(x, c)"
WITH_OPTIONS: dict[str, tuple[bytes, dict[str, Any]]] = {
    "EARG001": (entry(WIDE), {"target": "trn1", "logical_nc_config": 2}),
    "ESFH002": (entry(WIDE), {"native_int64": "disabled"}),
}


@pytest.mark.parametrize("code", WITH_OPTIONS)
def test_codes_of_options(code: str) -> None:
    module, options = WITH_OPTIONS[code]
    with pytest.raises(CompileError, match=f"NCC_{code}"):
        glia.compile(module, **options)


def test_the_codes_are_those_of_the_reference() -> None:
    assert len(CODES) == 60
    assert sorted(product_codes()) == sorted(CODES)
    for line in ALIASES:
        assert len({product_codes()[f"NCC_{code}"] for code in line}) == 1


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_explained(code: str) -> None:
    result = CliRunner().invoke(main, ("explain", code))
    assert result.exit_code == 0
    assert result.stdout.startswith(code)
    for part in ("Cause:", "Fix:", "Example:"):
        assert part in result.stdout
    assert ("it cannot occur" in result.stdout) == (code in UNRAISED)


def test_every_code_that_is_raised_has_a_program_above() -> None:
    tested = {*LIMITED, *QUANTIZE, *SCALED, *ALWAYS, *WITH_OPTIONS, "EVRF007"}
    codes = product_codes()
    meanings = {codes[f"NCC_{code}"] for code in tested}
    assert {codes[code] for code in codes.keys() - UNRAISED.keys()} == meanings
