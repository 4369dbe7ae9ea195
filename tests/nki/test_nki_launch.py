"""Launching kernels: decorated or not, on one core or two, on arrays of any framework."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from glia import nki
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki import typing as nt
from glia.nki.collectives import ReplicaGroup, all_reduce, rank_id
from glia.nki.names.errors import BadLaunch, NotAnOutput
from glia.nki.names.language_errors import KernelAdvice
from glia.nki.session import session
from glia.nki.tensors.nki_tensor import NkiTensor
from glia.runtime.model import load
from support.nki_ways import both, normal, stored


@nki.jit
def scaled(x: nt.tensor, factor: float = 2.0) -> nt.tensor:
    return stored(nl.multiply(nl.load(x), factor))


@nki.jit(mode="auto", show_compiler_tb=True)
def doubled_in_place(x: nt.mutable_tensor, y: nt.tensor[4, 4]) -> Any:
    nl.store(x, nl.add(nl.load(x), nl.load(y)))
    return x


def test_a_kernel_without_a_result_runs_simulated_with_a_warning() -> None:
    @nki.jit
    def told(x: nt.tensor) -> None:
        print(f"{nl.num_programs()} of {x.shape}")

    with pytest.warns(KernelAdvice, match="kernel told returns nothing and writes to none"):
        assert nki.simulate(told)(normal(8, 4)) is None
    with pytest.raises(NotAnOutput):
        told(normal(8, 4))


def test_a_kernel_runs_simulated_and_compiled() -> None:
    x = normal(8, 4)
    np.testing.assert_array_equal(nki.simulate(scaled)(x), 2 * x)
    np.testing.assert_array_equal(scaled(x), 2 * x)
    np.testing.assert_array_equal(scaled(x, factor=3.0), 3 * x)
    assert scaled.__name__ == "scaled"


def test_a_compiled_kernel_is_a_neff_that_loads_and_profiles(tmp_path: Path) -> None:
    x = normal(8, 4)
    neff = scaled.compile(x)
    neff.save(tmp_path / "scaled.neff")
    model = load(tmp_path / "scaled.neff")
    np.testing.assert_array_equal(model(x)[0], 2 * x)
    assert model.profile().latency_us > 0


def test_a_kernel_is_traced_once_for_equal_shapes_dtypes_and_constants() -> None:
    traces = []

    @nki.jit
    def kernel(x: NkiTensor, sizes: tuple[int, ...]) -> NkiTensor:
        traces.append(x.shape)
        return stored(nl.load(x)[:, : sizes[0]])

    for shape, sizes in (((4, 8), (3,)), ((4, 8), (3,)), ((4, 8), (5,)), ((2, 8), (3,))):
        x = normal(*shape)
        np.testing.assert_array_equal(kernel(x, sizes), x[:, : sizes[0]])
    assert traces == [(4, 8), (4, 8), (2, 8)]


def test_arguments_that_a_kernel_writes_change_in_place() -> None:
    for way in (nki.simulate(doubled_in_place), doubled_in_place):
        x, y = normal(4, 4), normal(4, 4, seed=1)
        expected = x + y
        np.testing.assert_array_equal(way(x, y), expected)
        np.testing.assert_array_equal(x, expected)


def test_arguments_may_be_written_without_being_returned() -> None:
    def kernel(x: NkiTensor, out: NkiTensor) -> NkiTensor:
        nl.store(out[:, 1:3], nl.load(x)[:, 1:3])
        return stored(nl.load(x))

    for way in (nki.simulate(kernel), nki.jit(kernel)):
        x, out = normal(4, 4), np.zeros((4, 4), np.float32)
        way(x, out)
        assert (out[:, 1:3] == x[:, 1:3]).all() and (out[:, 0] == 0).all()
        strided = np.zeros((4, 8), np.float32)[:, ::2]
        way(x, strided)
        np.testing.assert_array_equal(strided, out)


def test_uninitialised_memory_is_nan_or_four() -> None:
    def kernel(x: NkiTensor) -> tuple[NkiTensor, ...]:
        floats, integers = (nl.ndarray((2, 3), d) for d in (nl.bfloat16, nl.int16))
        outside = nl.ndarray((3,), nl.int32, buffer=nl.shared_hbm)
        return stored(floats), stored(integers), outside

    floats, integers, outside = nki.simulate(kernel)(normal(1, 1))
    assert np.isnan(floats.astype(np.float32)).all()
    assert (integers == 4).all() and (outside == 4).all()


def test_jax_arrays_come_back_as_jax_arrays() -> None:
    x = jnp.arange(32, dtype=jnp.bfloat16).reshape(4, 8)
    for way in (nki.simulate(scaled), scaled):
        result = way(x)
        assert isinstance(result, jnp.ndarray)
        assert result.dtype == jnp.bfloat16
        np.testing.assert_array_equal(np.asarray(result), np.asarray(x) * 2)


def test_results_keep_the_structure_of_what_is_returned() -> None:
    def kernel(weights: list[Any]) -> list[NkiTensor]:
        return [stored(nl.load(each)) for each in weights[::-1]]

    x, y = normal(2, 3), normal(4, 5)
    result = both(kernel, [x, y])
    assert isinstance(result, list)
    np.testing.assert_array_equal(result[0], y)


class Pair(NamedTuple):
    weight: Any
    factor: float


def test_tensors_in_a_named_tuple_keep_their_names() -> None:
    def kernel(pair: Pair) -> NkiTensor:
        return stored(nl.multiply(nl.load(pair.weight), pair.factor))

    x = normal(2, 3)
    np.testing.assert_array_equal(both(kernel, Pair(x, 2.0)), 2 * x)


def test_kernels_call_kernels() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        return scaled(scaled(x), 3.0)

    x = normal(4, 4)
    np.testing.assert_array_equal(both(kernel, x), 6 * x)


def test_the_environment_simulates_every_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @nki.jit
    def kernel(x: NkiTensor) -> NkiTensor:
        sys.stdout.write(f"first is {np.asarray(x)[0, 0]}\n")
        return stored(nl.load(x))

    monkeypatch.setenv("NKI_SIMULATOR", "1")
    kernel(np.full((2, 2), 5, np.float32))
    assert capsys.readouterr().out == "first is 5.0\n"


@pytest.mark.parametrize(
    ("name", "generation"), [("trn1", 2), ("gen2", 2), ("inf2", 2), ("gen3", 3), ("trn3", 4)]
)
def test_the_environment_chooses_the_device(
    name: str, generation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        assert nisa.get_nc_version() is nisa.nc_version(generation)
        assert (nisa.get_nc_version() >= nisa.nc_version.gen3) == (generation >= 3)
        assert nisa.get_nc_sub_version() == 0
        return stored(nl.load(x))

    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", name)
    both(kernel, normal(2, 2))
    assert nisa.get_nc_version().value == generation


def test_tensors_are_printed_in_both_ways(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    @nki.jit
    def kernel(x: NkiTensor) -> NkiTensor:
        tile = nl.load(x)
        nl.device_print("tile", tile)
        return stored(tile)

    x = np.full((1, 2), 7, np.float32)
    nki.simulate(kernel)(x)
    kernel(x)
    assert capsys.readouterr().out == "tile [[7. 7.]]\n" * 2
    monkeypatch.setenv("NEURON_RT_DEBUG_OUTPUT_DIR", str(tmp_path))
    kernel(x)
    (kept,) = (tmp_path / "tile").rglob("*.npy")
    np.testing.assert_array_equal(np.load(kept), x)


def _printed(capsys: pytest.CaptureFixture[str], *ways: Callable[..., Any]) -> list[str]:
    """What each way to run prints."""
    shown = []
    for way in ways:
        way(np.arange(8, dtype=np.float32).reshape(1, 8))
        shown.append(capsys.readouterr().out)
    return shown


def test_every_iteration_of_a_loop_is_printed_in_both_ways(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        tile = nl.load(x)

        def outer(i: nisa.VirtualRegister) -> None:
            def inner(j: nisa.VirtualRegister) -> None:
                nisa.tensor_scalar(tile, tile, nl.add, 10.0)
                nl.device_print("turn", tile[:, nl.ds(j, 2)])

            nl.fori_loop(0, 4, inner, step=2)

        nl.fori_loop(0, 3, outer)
        return stored(tile)

    simulated, compiled = _printed(capsys, nki.simulate(kernel), nki.jit(kernel))
    assert simulated == compiled
    assert [line.split()[1] for line in simulated.splitlines()[:3]] == ["[[10.", "[[22.", "[[30."]
    assert simulated.count("turn") == 6


def test_every_core_prints_in_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    @nki.jit
    def kernel(x: NkiTensor) -> NkiTensor:
        rank = nl.program_id(0)
        out = nl.ndarray((2, *x.shape), x.dtype, buffer=nl.shared_hbm)
        tile = nl.add(nl.load(x), 100.0 * rank)
        nl.device_print("core", tile[:, :2])
        if rank:
            nl.device_print("other", tile[:, 2:3])
        nisa.dma_copy(out[rank], tile)
        return out

    simulated, compiled = _printed(capsys, nki.simulate(kernel[2]), kernel[2])
    assert sorted(simulated.splitlines()) == sorted(compiled.splitlines())
    assert compiled.splitlines() == ["core [[0. 1.]]", "core [[100. 101.]]", "other [[102.]]"]


def test_tensors_and_registers_can_be_looked_at_while_simulated() -> None:
    seen = []

    def kernel(x: NkiTensor) -> NkiTensor:
        tile = nl.load(x)
        seen.append((repr(tile), repr(nisa.register_alloc(3)), np.asarray(tile)[0, 1]))
        return stored(tile)

    nki.simulate(kernel)(np.array([[1.5, 2.5]], np.float32))
    nki.jit(kernel).compile  # noqa: B018  it is there
    text, register, element = seen[0]
    assert "float32[1, 2] in sbuf" in text and "[[1.5 2.5]]" in text
    assert register == "VirtualRegister(3)"
    assert element == 2.5


def test_instructions_are_ordered_and_named() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        tile = nl.ndarray(x.shape, x.dtype, name="held")
        first = nisa.dma_copy(tile, x, name="first")
        with nl.no_reorder():
            second = nisa.activation(tile, nl.exp, tile, name="second").depends_on(first)
        assert isinstance(second, nisa.NkiInstruction)
        assert second.depends_on() is second
        return stored(tile)

    x = normal(2, 2)
    np.testing.assert_allclose(both(kernel, x), np.exp(x), rtol=1e-6)


class Tiling(nl.NKIObject):
    rows: int
    columns: int = 4
    history: list[int] = []  # noqa: RUF012  copied for every object

    def __post_init__(self) -> None:
        self.history.append(self.rows)


def test_objects_of_kernels_have_fields() -> None:
    first, second = Tiling(rows=2), Tiling(rows=3, columns=5)
    assert (first.rows, first.columns, first.history) == (2, 4, [2])
    assert (second.columns, second.history) == (5, [3])
    with pytest.raises(TypeError, match="no field 'depth'"):
        Tiling(rows=1, depth=2)


@dataclasses.dataclass
class Section(nl.NKIObject):
    rows: int
    start = None

    def end(self) -> int:
        return self.start + self.rows


def test_dataclasses_of_kernels_take_every_attribute_of_the_class() -> None:
    assert Section(3).rows == 3
    section = Section(start=4)
    section.rows = 2
    assert section.end() == 6


# --- two cores ---------------------------------------------------------------------------------


@nki.jit
def exchanged(x: NkiTensor) -> NkiTensor:
    rank, ranks = nl.program_id(0), nl.num_programs(0)
    half = x.shape[0] // ranks
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    mine = nl.load(x[nl.ds(rank * half, half)])
    if ranks == 2:
        other = nl.ndarray(mine.shape, mine.dtype)
        nisa.sendrecv(mine, other, 1 - rank, 1 - rank, pipe_id=0)
        mine = other
    nl.store(out[nl.ds(rank * half, half)], mine)
    return out


@nki.jit
def waited_for(x: NkiTensor) -> NkiTensor:
    rank = nl.program_id()
    between = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(between[nl.ds(rank * 4, 4)], nl.load(x[nl.ds(rank * 4, 4)]))
    nisa.core_barrier(between, (0, 1))
    nl.store(out[nl.ds(rank * 4, 4)], nl.load(between[nl.ds(4 - rank * 4, 4)]))
    return out


def test_one_program_has_no_grid() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        assert (nl.program_ndim(), nl.num_programs(), nl.program_id()) == (0, 1, 0)
        return stored(nl.load(x))

    both(kernel, normal(2, 2))


@pytest.mark.parametrize("kernel", [exchanged, waited_for])
def test_two_cores_exchange_and_wait(kernel: Any) -> None:
    x = normal(8, 4)
    expected = np.concatenate([x[4:], x[:4]])
    np.testing.assert_array_equal(nki.simulate(kernel[2])(x), expected)
    np.testing.assert_array_equal(nki.simulate(kernel)[2](x), expected)
    np.testing.assert_array_equal(nki.simulate(kernel)[(2,)](x), expected)
    with pytest.raises(BadLaunch, match="neither"):
        nki.simulate(kernel)[3]


def test_two_compiled_cores_share_hbm() -> None:
    x = normal(8, 4)
    np.testing.assert_array_equal(exchanged[2](x), np.concatenate([x[4:], x[:4]]))


def test_a_collective_of_one_rank_is_its_own() -> None:
    def kernel(x: NkiTensor) -> tuple[NkiTensor, NkiTensor]:
        total = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        all_reduce([x], [total], ReplicaGroup([[0]]), nl.add)
        cell = nl.ndarray((1, 1), nl.int32)
        nisa.register_store(cell, rank_id())
        return total, stored(cell)

    x = normal(4, 4)
    total, rank = both(kernel, x)
    np.testing.assert_array_equal(total, x)
    assert rank[0, 0] == 0


def test_microscaled_products_are_close_to_the_exact_ones() -> None:
    def kernel(a: NkiTensor, b: NkiTensor) -> NkiTensor:
        packed = []
        for x, columns in ((a, 64), (b, 128)):
            tile = nl.load(x)
            data = nl.ndarray((128, columns), nl.float8_e4m3fn_x4)
            scale = nl.ndarray((128, columns), nl.uint8)
            nisa.quantize_mx(data, tile, scale)
            packed.append((data, scale))
        (left, left_scale), (right, right_scale) = packed
        product = nl.ndarray((64, 128), nl.float32, buffer=nl.psum)
        nisa.nc_matmul_mx(product, left, right, left_scale, right_scale)
        return stored(product)

    a, b = (normal(128, n).astype(ml_dtypes.bfloat16) for n in (256, 512))
    exact = np.einsum(
        "kmj,knj->mn",
        a.astype(np.float32).reshape(128, 64, 4),
        b.astype(np.float32).reshape(128, 128, 4),
    )
    np.testing.assert_allclose(both(kernel, a, b), exact, atol=4)


def test_code_that_is_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_CODES", 3)
    for number in range(9):
        names = {"caller": session.caller}
        exec(compile("def place():\n    return caller()", f"cell{number}", "exec"), names)
        assert names["place"]().file == f"cell{number}"
        assert len(session._LOCATIONS) <= 3


def _scaled_if_given(x: NkiTensor, factors: NkiTensor | None = None) -> NkiTensor:
    tile = nl.load(x)
    return stored(nl.multiply(tile, nl.load(factors)) if factors else tile)


def test_an_argument_is_true_whatever_it_holds() -> None:
    x, zeros = normal(8, 4), np.zeros((8, 4), np.float32)
    for way in (nki.simulate(_scaled_if_given), nki.jit(_scaled_if_given)):
        np.testing.assert_array_equal(way(x, zeros), zeros)
        np.testing.assert_array_equal(way(x), x)
