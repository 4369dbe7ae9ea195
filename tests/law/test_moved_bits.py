"""What only moves data keeps it: every bit pattern of every dtype, on every target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import glia
from glia.arch import get_target
from glia.base.dtype import BF16, U8
from glia.isa.instructions.tensor import NcTranspose
from glia.isa.instructions.vector import TensorCopy
from glia.isa.kit import Instr
from glia.machine.ir import walk
from support.corpus import BY_NAME, hlo_bytes
from support.targets import CORES

WORDS = {
    "bfloat16": np.uint16, "float16": np.uint16, "float32": np.uint32,
    "float8_e5m2": np.uint8, "float8_e4m3fn": np.uint8,
}  # fmt: skip
DTYPES = ("int32", "uint32", "float32", "bfloat16", "float16", "int16", "int8", "uint8", "bool")
SHAPES = ((64, 128), (132, 65), (20, 17))
MOVES: dict[str, Callable[[Any], Any]] = {
    "transpose": lambda x: x.T,
    "transpose of three": lambda x: jnp.transpose(x.reshape(4, -1, x.shape[-1]), (2, 0, 1)),
    "part of a transpose": lambda x: x.T[3:, 1:],
    "concatenation": lambda x: jnp.concatenate([x[:, ::-1], x], 1),
}
SUMS: dict[str, Callable[[Any], Any]] = {
    "sum over rows": lambda x: x.sum(0),
    "transpose and one more": lambda x: x.T + 1,
    "greatest of running maxima": lambda x: jax.lax.cummax(x, axis=1).max(0),
}


def any_bits(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """Random bit patterns; the integers among them are small and of both signs."""
    generator = np.random.default_rng([*shape, DTYPES.index(dtype)])
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if kind.kind == "b":
        return generator.integers(0, 2, shape).astype(kind)
    if kind.kind == "i":
        return generator.integers(-100, 100, shape).astype(kind)
    bits = generator.integers(0, 256, (*shape, kind.itemsize), dtype=np.uint8)
    return np.ascontiguousarray(bits).view(kind)[..., 0]


def comparable(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Floats as NumPy's own, for which NaN equals NaN in comparisons; the rest as it is."""
    is_narrow = values.dtype.itemsize == 2 and values.dtype.kind not in "iu"
    return values.astype(np.float32) if is_narrow else values


def on_device(function: Callable[..., Any], target: str, *arrays: Any) -> np.ndarray[Any, Any]:
    (result,) = glia.load(glia.compile(jax.jit(function).lower(*arrays), target=target))(*arrays)
    return result


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_program_that_moves_keeps_every_bit(dtype: str, target: str) -> None:
    moves = MOVES | (SUMS if "int" in dtype else {})
    for shape in SHAPES:
        x = any_bits(shape, dtype)
        for name, function in moves.items():
            expected = comparable(np.asarray(jax.jit(function)(x)))
            found = comparable(on_device(function, target, x))
            np.testing.assert_array_equal(found, expected, f"{name} of {dtype}{list(shape)}")


_ROWS = np.array([5, 0, 16, 16, 3, 9, 2, 8])
MOVES_OF_BITS: dict[str, Callable[[Any], Any]] = MOVES | {
    "roll": lambda x: jnp.roll(x, 3, 1),
    "rows": lambda x: x[_ROWS],
    "columns": lambda x: x[:, _ROWS],
    "select": lambda x: jnp.where(lax.iota(np.int32, x.shape[1]) % 2 == 0, x, x[:, ::-1]),
    "update": lambda x: lax.dynamic_update_slice(x, x[:3, :4], (jnp.int32(2), jnp.int32(3))),
    "padding": lambda x: lax.pad(x, x[0, 0], ((1, 2, 0), (0, 1, 1))),
}
MORE_MOVES_OF_BITS: dict[str, Callable[[Any], Any]] = {
    "more rows": lambda x: jnp.concatenate([x, x[:3]], 0),
    "roll of rows": lambda x: jnp.roll(x, 3, 0),
    "every other": lambda x: x[::2, ::3],
    "slice": lambda x: lax.dynamic_slice(x, (jnp.int32(2), jnp.int32(3)), (7, 9)),
    "elements": lambda x: x[_ROWS, _ROWS],
    "broadcast row": lambda x: jnp.broadcast_to(x[:1], x.shape),
    "broadcast column": lambda x: jnp.broadcast_to(x[:, :1], x.shape),
    "flat": lambda x: x.reshape(-1),
    "repeated": lambda x: jnp.repeat(x, 2, 0),
    "scatter": lambda x: x.at[_ROWS[4:6]].set(x[:2]),
    "loop": lambda x: lax.fori_loop(0, 3, lambda _, x: jnp.roll(x, 1, 1), x),
}


def _check_that_floats_keep_their_bits(
    dtype: str, target: str, shape: tuple[int, int], moves: dict[str, Callable[[Any], Any]]
) -> None:
    """Integers that are read as floats, moved and read as integers, against integers moved."""
    generator = np.random.default_rng(0)
    word = np.dtype(WORDS[dtype])
    small = generator.integers(-100, 0, shape).astype(f"i{word.itemsize}").view(word)
    random = generator.integers(0, 2 ** (8 * word.itemsize), shape, word)
    x = np.where(generator.random(shape) < 0.5, small, random)
    one = word.type(1)
    for name, move in moves.items():

        def moved(x: Any, move: Callable[[Any], Any] = move) -> Any:
            floats = lax.bitcast_convert_type(x, jnp.dtype(dtype))
            return lax.bitcast_convert_type(move(floats), word)

        for made, function, wanted in (
            ("inputs", moved, lambda x, move=move: move(x)),
            ("sums", lambda x, moved=moved: moved(x + one) + one,
             lambda x, move=move: move(x + one) + one),
        ):  # fmt: skip
            expected = np.asarray(jax.jit(wanted)(x))
            found = on_device(function, target, x)
            np.testing.assert_array_equal(found, expected, f"{name} of {dtype}, {made}")


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("dtype", WORDS)
def test_floats_keep_the_bits_of_signalling_nans(dtype: str, target: str) -> None:
    _check_that_floats_keep_their_bits(dtype, target, (132, 65), MOVES_OF_BITS)


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("dtype", WORDS)
def test_floats_of_any_shape_keep_the_bits_of_signalling_nans(dtype: str, target: str) -> None:
    for shape in SHAPES:
        _check_that_floats_keep_their_bits(dtype, target, shape, MOVES_OF_BITS | MORE_MOVES_OF_BITS)


def _copies_on(engine: str, function: Callable[..., Any], *arrays: Any) -> int:
    program = glia.compile(jax.jit(function).lower(*arrays), target="trn2").program
    return sum(isinstance(i, TensorCopy) and i.runs_on == engine for i in walk(program.body))


def test_only_copies_whose_bits_show_are_kept_from_the_scalar_engine() -> None:
    x = np.zeros((512, 512), ml_dtypes.bfloat16)

    def turned(x: Any) -> Any:
        return jnp.concatenate([x[:, ::-1], x], 1)

    assert not _copies_on("scalar", turned, x)
    assert _copies_on("scalar", lambda x: turned(x * x), x)
    assert _copies_on("scalar", lambda x: jnp.exp(turned(x)), x)


@pytest.mark.parametrize("target", CORES)
def test_one_infinity_does_not_spread_over_a_product(target: str) -> None:
    generator = np.random.default_rng(1)
    a, b = (generator.standard_normal((100, 100)).astype(np.float32) for _ in range(2))
    a[5, 7], a[60, 3] = np.inf, np.nan
    found = on_device(lambda a, b: a @ b, target, a, b)
    others = np.delete(np.arange(100), (5, 60))
    assert not np.isfinite(found[[5, 60]]).any()
    np.testing.assert_allclose(found[others], (a @ b)[others], 1e-4, 1e-4)


@pytest.mark.parametrize("target", CORES)
def test_masked_scores_of_minus_infinity_stay_finite_sums(target: str) -> None:
    x = np.random.default_rng(2).standard_normal((64, 96)).astype(np.float32)

    def masked(x: Any) -> Any:
        return jax.nn.logsumexp(jnp.where(x > 0, x, -jnp.inf), 0)

    np.testing.assert_allclose(on_device(masked, target, x), jax.jit(masked)(x), 1e-5, 1e-5)


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("name", ["transpose", "matmul", "mlp", "attention", "sort", "conv_nchw"])
def test_only_bytes_are_multiplied_where_the_array_is_not_exact(name: str, target: str) -> None:
    """Bytes as numbers from 0 to 255 are finite and exact in bfloat16, so their products are."""
    if get_target(target).arch.capabilities.has_bit_exact_transpose:
        return
    neff = glia.compile(hlo_bytes(BY_NAME[name]), target=target)
    instructions = list(walk(neff.program.body))
    writers: dict[str, list[Instr]] = {}
    for each in instructions:
        for pattern in each.written_patterns():
            writers.setdefault(pattern.tile.name, []).append(each)
    for each in instructions:
        if isinstance(each, NcTranspose) and each.runs_on == "tensor":
            assert each.data.dtype is BF16
            copies = writers[each.data.tile.name]
            assert all(isinstance(copy, TensorCopy) and copy.src.dtype is U8 for copy in copies)


@pytest.mark.parametrize("target", CORES)
def test_transposed_bytes_keep_their_bits(target: str) -> None:
    x = np.arange(256 * 32, dtype=np.uint8).reshape(128, 64).view(ml_dtypes.float8_e5m2)
    moved = on_device(lambda x: jnp.concatenate([x.T, x.T]).view(jnp.uint8), target, x)
    wanted = np.concatenate([x.T, x.T])
    is_nan = np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(moved[~is_nan], wanted.view(np.uint8)[~is_nan])
    assert np.isnan(moved[is_nan].view(ml_dtypes.float8_e5m2).astype(np.float32)).all()


def _attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.T, axis=-1) @ v


def _normalised(x: Any, weights: Any) -> Any:
    return jax.nn.standardize(x) @ weights


def _copied_columns(
    target: str, function: Callable[..., Any], *shapes: tuple[int, int]
) -> set[int]:
    """How many columns copies take from PSUM of what the PE has transposed there."""
    arrays = [np.zeros(shape, ml_dtypes.bfloat16) for shape in shapes]
    program = glia.compile(jax.jit(function).lower(*arrays), target=target).program
    instructions = list(walk(program.body))
    turned = {
        each.dst.tile.name
        for each in instructions
        if isinstance(each, NcTranspose) and each.runs_on == "tensor"
    }
    return {
        pattern.free
        for each in instructions
        if not isinstance(each, NcTranspose)
        for pattern in each.read_patterns()
        if pattern.tile.name in turned
    }


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_one_copy_takes_several_blocks_where_their_products_are_short(target: str) -> None:
    assert max(_copied_columns(target, _attention, (512, 64), (512, 64), (512, 64))) == 512
    assert _copied_columns(target, _normalised, (512, 256), (256, 4096)) == {128}
