"""Recurrences become scans by algebra, keep their values on every target, and stay in order."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import glia
from glia.base.affine import Affine
from glia.base.dtype import F32, S32
from glia.base.errors import InternalError
from glia.frontend.registry import read_module
from glia.graph import ops
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.vector_statistics import TensorTensorScan
from glia.isa.operand import Pattern
from glia.machine.ir import walk
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.tile import ir
from glia.tile.column_operands import column_axes
from glia.tile.evaluate import evaluate
from glia.tile.legal import verify
from glia.tile.nest_rewriting import rename_axes
from glia.tile.text import parse_program, print_program
from support.targets import CORES

RNG = np.random.default_rng(5)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


A, B, START = floats(24, 3, 5) * 0.5, floats(24, 3, 5), floats(3, 5)


def linear(*, reverse: bool) -> Callable[..., Any]:
    def advance(h: Any, now: Any) -> Any:
        h = now[0] * h + now[1]
        return h, jnp.tanh(h)

    return lambda a, b, h: lax.scan(advance, h, (a, b), reverse=reverse)


def loop(advance: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda b, h: lax.scan(lambda h, x: (advance(h, x), h), h, b)


def associative(combine: Callable[..., Any], axis: int = 0, **options: Any) -> Callable[..., Any]:
    return lambda *xs: lax.associative_scan(combine, xs, axis=axis, **options)


def compose(left: Any, right: Any) -> tuple[Any, Any]:
    return right[0] * left[0], right[0] * left[1] + right[1]


def by_shifts(x: Any) -> Any:
    """Running sums along the last dimension by log2(n) additions of the row to itself."""
    reach = 1
    while reach < x.shape[-1]:
        x = x + jnp.pad(x[:, :-reach], ((0, 0), (reach, 0)))
        reach *= 2
    return x


NETWORKS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "linear": (lambda a, b: associative(compose)(a, b)[1], (A, B)),
    "with its products": (associative(compose), (A, B)),
    "of an odd number": (lambda a, b: associative(compose)(a, b)[1], (A[:23], B[:23])),
    "of a prime number backwards": (
        lambda a, b: associative(compose, axis=1, reverse=True)(a, b)[1],
        (floats(3, 37, 2), floats(3, 37, 2)),
    ),
    "of computed terms": (
        lambda a, b: associative(compose)(jnp.exp(-(a**2)), jnp.tanh(b) * 2)[1] + b, (A, B)),
    "sums": (lambda x: associative(lambda a, b: (a[0] + b[0],), 1)(x)[0], (floats(5, 33),)),
    "extremes": (
        lambda x: associative(lambda a, b: (jnp.maximum(a[0], b[0]),), 1)(x)[0], (floats(5, 40),)),
    "products": (lambda x: associative(lambda a, b: (a[0] * b[0],), 1)(x)[0], (floats(5, 12),)),
    "sums by shifts": (by_shifts, (floats(3, 50),)),
}  # fmt: skip

CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "cumsum": (lambda x: jnp.cumsum(x, 1), (floats(130, 40),)),
    "of columns": (lambda x: jnp.cumsum(x, 0), (floats(140, 9),)),
    "of flags": (lambda x: jnp.cumsum((x > 0).astype(np.int32), 0), (floats(140, 9),)),
    "of ranges": (
        lambda x: lax.cumsum(jnp.clip(x.astype(np.int32), -900, 900), 1, reverse=True),
        (floats(9, 30) * 1000,),
    ),
    "greatest flag": (lambda x: lax.cummax((x > 0).astype(np.int8), 1), (floats(9, 40),)),
    "backwards": (lambda x: lax.cumsum(x, 1, reverse=True), (floats(9, 40),)),
    "cummax": (lambda x: lax.cummax(x, 1), (floats(3, 30, 4),)),
    "cummin": (lambda x: lax.cummin(x * 2, 0) + 1, (floats(20),)),
    "cumprod": (lambda x: jnp.cumprod(x, 1), (floats(5, 30),)),
    "longer than a tile": (lambda x: jnp.cumsum(x * 0.5, 1), (floats(2, 20000),)),
    "linear": (linear(reverse=False), (A, B, START)),
    "constant factor": (loop(lambda h, x: 0.9 * h + 0.1 * x), (B, START)),
    "difference": (loop(lambda h, x: x - h * 0.5), (B, START)),
    "maximum": (loop(lambda h, x: jnp.maximum(x - 1, h)), (B, START)),
    "by choice": (loop(lambda h, x: jnp.where(x > 0, h * 0.5 + x, h - x)), (B, START)),
    "product": (loop(lambda h, x: x * h), (B, START)),
    "of the counter": (
        lambda h: lax.fori_loop(0, 20, lambda i, h: h * 0.5 + i.astype(jnp.float32), h),
        (START,),
    ),
}


def compiled_scans(function: Callable[..., Any], arrays: Any, target: str) -> glia.Neff:
    module = jax.jit(function).lower(*arrays)
    return glia.compile(module, target=target, optlevel=1, auto_cast="none", verify=True)


def assert_close(found: Any, expected: Any) -> None:
    leaves = jax.tree.leaves(expected)
    assert len(leaves) == len(found)
    for mine, theirs in zip(found, leaves, strict=True):
        scale = max(1.0, float(np.abs(theirs).max()))
        np.testing.assert_allclose(mine / scale, np.asarray(theirs) / scale, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_a_recurrence_is_a_scan_and_keeps_its_values(name: str) -> None:
    function, arrays = CASES[name]
    neff = compiled_scans(function, arrays, "trn2")
    kinds = {type(each) for each in neff.program.instructions()}
    assert TensorTensorScan in kinds and not _loops_of_control(function, arrays)
    assert_close(glia.load(neff)(*arrays), jax.jit(function)(*arrays))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_prefixes_is_a_scan_and_keeps_its_values(name: str) -> None:
    function, arrays = NETWORKS[name]
    graph = read_module(jax.jit(function).lower(*arrays))
    graph = run_pipeline(graph, CompileOptions(auto_cast="none"), stop_after="simplify_live")
    kinds = {type(node) for node in graph.nodes}
    assert ops.Scan in kinds and not kinds & {ops.Concatenate, ops.Pad}
    neff = compiled_scans(function, arrays, "trn2")
    assert_close(glia.load(neff)(*arrays), jax.jit(function)(*arrays))


@pytest.mark.parametrize(
    "combine",
    [
        lambda a, b: (b[0] * a[0], a[0] * a[1] + b[1]),
        lambda a, b: (b[0] + a[0], b[0] * a[1] + b[1]),
        lambda a, b: (b[0] * a[0], b[0] * a[1] - b[1]),
        lambda a, b: (b[0] * a[0], a[0] * b[1] + a[1]),
        lambda a, b: (b[0] * a[0], jnp.maximum(b[0] * a[1], b[1])),
    ],
    ids=["earlier factor", "sum of factors", "difference", "other way round", "maximum"],
)
def test_a_network_that_is_no_recurrence_keeps_its_values(combine: Any) -> None:
    function, arrays = associative(combine), (A, B)
    neff = compiled_scans(function, arrays, "trn2")
    assert_close(glia.load(neff)(*arrays), jax.jit(function)(*arrays))


def test_the_factor_of_the_first_element_is_not_applied_in_a_network() -> None:
    a = A.copy()
    a[0, 0, 0], a[0, 1, 1] = np.inf, np.nan
    function, _ = NETWORKS["linear"]
    (found,) = glia.load(compiled_scans(function, (a, B), "trn1"))(a, B)
    np.testing.assert_allclose(found, jax.jit(function)(a, B), rtol=1e-5, atol=2e-6)


TOTALS: dict[str, Callable[[Any], Any]] = {
    "any": lambda x: jnp.cumsum(x, 1),
    "not negative": lambda x: jnp.cumsum(jnp.clip(x, 0, 1 << 20), 1),
    "wrapped": lambda x: jnp.cumsum((x & 15).astype(np.int8), 1),
    "unsigned": lambda x: jnp.cumsum(x.astype(np.uint32), 0),
    "of 16 bits": lambda x: lax.cumsum(x.astype(np.int16), 1, reverse=True),
    "of 64 bits": lambda x: jnp.cumsum(x.astype(np.int64) * 0x10001, 1),
    "extremes": lambda x: lax.cummax(x, 1),
    "products": lambda x: jnp.cumprod(jnp.clip(x, 1, 2), 1),
}


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("name", TOTALS)
def test_totals_beyond_float32_are_counted_exactly(name: str, target: str) -> None:
    x = np.random.default_rng(3).integers(-(1 << 31), 1 << 31, (12, 50)).astype(np.int32)
    with jax.enable_x64(True):
        neff = compiled_scans(TOTALS[name], (x,), target)
        expected = np.asarray(jax.jit(TOTALS[name])(x))
    scans = sum(isinstance(each, TensorTensorScan) for each in neff.program.instructions())
    assert bool(scans) == (name not in ("extremes", "products"))
    np.testing.assert_array_equal(glia.load(neff)(x)[0], expected)


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("name", ["linear", "longer than a tile", "of flags"])
def test_scans_are_right_on_every_target(name: str, target: str) -> None:
    function, arrays = CASES[name]
    neff = compiled_scans(function, arrays, target)
    assert_close(glia.load(neff)(*arrays), jax.jit(function)(*arrays))


def _loops_of_control(function: Callable[..., Any], arrays: Any) -> list[Any]:
    graph = read_module(jax.jit(function).lower(*arrays))
    graph = run_pipeline(graph, CompileOptions(auto_cast="none"), stop_after="simplify_live")
    return [node for node in graph.nodes if isinstance(node, ops.While)]


@pytest.mark.parametrize(
    "advance",
    [
        lambda h, x: h * h * 0.1 + x,
        lambda h, x: jnp.where(h > 0, h * 0.5, h) + x,
        lambda h, x: jnp.maximum(h, x * h),
        lambda h, x: h[::-1] + x,
    ],
    ids=["a square", "a choice by the state", "a maximum with itself", "another element"],
)
def test_what_is_not_linear_in_its_own_element_stays_a_loop(advance: Any) -> None:
    function = loop(advance)
    assert len(_loops_of_control(function, (B, START))) == 1
    neff = compiled_scans(function, (B, START), "trn2")
    assert_close(glia.load(neff)(B, START), jax.jit(function)(B, START))


def test_an_infinite_factor_meets_the_first_state_only() -> None:
    a = A.copy()
    a[0, 0, 0], a[3, 1, 1] = np.inf, 0.0
    function = linear(reverse=False)
    neff = compiled_scans(function, (a, B, START), "trn2")
    for mine, theirs in zip(
        glia.load(neff)(a, B, START), jax.tree.leaves(jax.jit(function)(a, B, START)), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=2e-6)


def tile_program() -> ir.Program:
    """Running sums of 4 rows of 6."""
    index = Affine.of("i"), Affine.of("j")
    body = ir.Scan("scan_add", (ir.Literal(1.0, F32), ir.Load("x", F32, index)), F32, "j")
    axes = ir.Axis("i", 4), ir.Axis("j", 6)
    nest = ir.Nest("sums", axes, body, ir.Store("y", index))
    buffers = {
        "x": ir.Buffer("x", F32, (4, 6), "input"),
        "y": ir.Buffer("y", F32, (4, 6), "output"),
    }
    return ir.Program("sums", buffers, (nest,), ("x",), ("y",))


def test_a_scan_is_printed_parsed_renamed_and_evaluated() -> None:
    program, x = tile_program(), floats(4, 6)
    text = print_program(program)
    assert "y[i, j] = scan_add.f32(j, 1.0:f32, x[i, j])" in text
    assert print_program(parse_program(text)) == text
    verify(parse_program(text))
    (nest,) = program.nests()
    renamed = rename_axes(nest, {"j": "time"})
    assert ir.ordered_axes(renamed) == {"time"}
    (found,) = evaluate(ir.Program("sums", program.buffers, (renamed,), ("x",), ("y",)), [x])
    np.testing.assert_allclose(found, np.cumsum(x, 1), rtol=1e-5)


@pytest.mark.parametrize(
    ("axis", "dtype", "function"),
    [("k", F32, "scan_add"), ("j", F32, "scan_xor")],
    ids=["an axis that is missing", "a monoid without a scan"],
)
def test_the_law_refuses_what_is_no_scan(axis: str, dtype: Any, function: str) -> None:
    program = tile_program()
    (nest,) = program.nests()
    body = ir.Scan(function, nest.body.args, dtype, axis)  # type: ignore[union-attr]
    wrong = ir.Nest(nest.name, nest.axes, body, nest.target)
    with pytest.raises(InternalError):
        verify(ir.Program("sums", program.buffers, (wrong,), ("x",), ("y",)))


@pytest.mark.parametrize(("axis", "is_legal"), [("i", True), ("j", False)])
def test_no_group_cuts_a_recurrence_into_blocks(axis: str, is_legal: bool) -> None:
    program = tile_program()
    (nest,) = program.nests()
    schedule = ir.Schedule("vector", "i", {"i": 4, "j": 6}, ())
    member = ir.Member("sums", (axis,), schedule)
    loop_of_blocks = ir.SharedLoop(nest.extents[axis], 2, (member,))
    group = ir.Group("rows.0", loop_of_blocks)
    grouped = ir.Program(
        "sums", program.buffers, program.body, ("x",), ("y",), schedules={"sums": schedule},
        groups=(group,),
    )  # fmt: skip
    if is_legal:
        verify(grouped)
        return
    with pytest.raises(InternalError, match="has a recurrence along j"):
        verify(grouped)


def test_factors_of_long_rows_are_columns() -> None:
    """exp(x * a), a for each channel and state, is an activation with a as its scale."""
    x, a = floats(64, 512), floats(64, 3)

    def selective(x: Any, a: Any) -> Any:
        kept = jnp.exp(x[:, None] * a[:, :, None])
        return associative(compose, 2)(kept, jnp.broadcast_to(x[:, None], kept.shape))[1]

    neff = glia.compile(jax.jit(selective).lower(x, a))
    scales = [
        each.scale
        for each in walk(neff.program.body)
        if isinstance(each, Activation) and each.function == "exp"
    ]
    assert scales and all(isinstance(scale, Pattern) and scale.free == 1 for scale in scales)
    (found,) = glia.load(neff)(x, a)
    np.testing.assert_allclose(found, selective(x, a), rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "column", "found"),
    [((8, 4, 512), "ij", {"j"}), ((8, 4, 64), "ij", set()), ((8, 512, 4), "ik", set())],
)
def test_axes_of_columns_are_outside_of_long_rows(
    shape: tuple[int, ...], column: str, found: set[str]
) -> None:
    whole = tuple(map(Affine.of, "ijk"))
    factor = ir.Load("a", F32, tuple(map(Affine.of, column)))
    body = ir.Apply("multiply", (ir.Load("x", F32, whole), factor), F32)
    axes = tuple(map(ir.Axis, "ijk", shape))
    assert column_axes(ir.Nest("scaled", axes, body, ir.Store("y", whole)), "i") == found


def test_axes_that_choose_run_time_places_have_places_too() -> None:
    i, j, k = map(Affine.of, "ijk")
    body = ir.Apply("multiply", (ir.Load("x", F32, (i, j, k)), ir.Load("a", F32, (i, j))), F32)
    axes = tuple(map(ir.Axis, "ijk", (8, 4, 512)))
    chosen = ir.Dynamic(2, ir.Load("places", S32, (i, j, k)), 4095, clamps=False)
    rows = ir.Store("y", (i, j, Affine()), (chosen,), "add")
    assert column_axes(ir.Nest("rows", axes, body, rows), "i") == {"j"}
    anywhere = ir.Store("y", (i,), (), "add")  # all of a row are added up
    assert column_axes(ir.Nest("anywhere", axes, body, anywhere), "i") == {"j"}


@pytest.mark.parametrize("target", CORES)
def test_products_with_columns_are_scattered_along_long_rows(target: str) -> None:
    def scattered(x: Any, factor: Any, places: Any) -> Any:
        rows = jnp.zeros((3, 4, 700), jnp.float32)
        i, j = jnp.arange(3)[:, None, None], jnp.arange(4)[None, :, None]
        return rows.at[i, j, places].add(x * factor[..., None])

    rng = np.random.default_rng(2)
    x = rng.standard_normal((3, 4, 300)).astype(np.float32)
    factor = rng.standard_normal((3, 4)).astype(np.float32)
    places = rng.integers(0, 700, x.shape).astype(np.int32)
    neff = glia.compile(jax.jit(scattered).lower(x, factor, places), target=target)
    (found,) = glia.load(neff)(x, factor, places)
    np.testing.assert_allclose(found, scattered(x, factor, places), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", CORES)
def test_scans_that_start_with_a_term_are_legal_as_chosen(target: str) -> None:
    lowered = jax.jit(lambda a, b: associative(compose)(a, b)[1]).lower(A, B)
    neff = glia.compile(lowered, target=target)
    assert any(isinstance(each, TensorTensorScan) for each in walk(neff.program.body))
    assert not [note for note in neff.program.notes if "slower way" in note]


def test_expressions_that_share_their_parts_are_hashed_in_time_of_the_parts() -> None:
    shared: ir.Expr = ir.Load("x", F32, (Affine.of("i"),))
    for _ in range(200):  # more paths than can be counted
        shared = ir.Apply("add", (shared, shared), F32)
    scan = ir.Scan("scan_add", (shared, shared), F32, "i")
    assert {scan: 1}[scan] == 1
    assert vars(copy.copy(scan)).keys() == {"function", "args", "dtype", "axis"}
