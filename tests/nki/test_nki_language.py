"""The computing functions of nl against NumPy, simulated and compiled."""

from __future__ import annotations

from collections.abc import Callable
from math import erf
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from glia import nki
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.tensors.nki_tensor import NkiTensor
from support.nki_ways import both, normal, stored

Function = Callable[..., Any]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softplus(x: np.ndarray) -> np.ndarray:
    return np.log1p(np.exp(x))


def cumulative(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


ERF = np.vectorize(erf)
UNARY: dict[str, Function] = {
    "abs": np.abs,
    "negative": np.negative,
    "square": np.square,
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * cumulative(x),
    "gelu_dx": lambda x: cumulative(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi),
    "gelu_apprx_sigmoid": lambda x: x * sigmoid(1.702 * x),
    "gelu_apprx_sigmoid_dx": lambda x: (
        sigmoid(1.702 * x) * (1 + 1.702 * x * (1 - sigmoid(1.702 * x)))
    ),
    "gelu_apprx_tanh": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * sigmoid(x),
    "silu_dx": lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x))),
    "softplus": softplus,
    "mish": lambda x: x * np.tanh(softplus(x)),
    "erf": ERF,
    "erf_dx": lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x),
    "reciprocal": lambda x: 1 / x,
    "copy": lambda x: x,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "arctan": np.arctan,
    "ceil": np.ceil,
    "floor": np.floor,
    "trunc": np.trunc,
    "sign": np.sign,
    "logical_not": np.logical_not,
}
POSITIVE: dict[str, Function] = {"log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x)}
BINARY: dict[str, Function] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "abs_max": lambda x, y: np.where(np.abs(x) > np.abs(y), x, y),
    "abs_min": lambda x, y: np.where(np.abs(x) < np.abs(y), x, y),
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "mod": np.mod,
    "fmod": np.fmod,
}
INTEGER: dict[str, Function] = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
    "add": np.add,
    "multiply": np.multiply,
}
REDUCTIONS: dict[str, Function] = {
    "sum": np.sum,
    "max": np.max,
    "min": np.min,
    "mean": np.mean,
    "prod": np.prod,
    "var": np.var,
}


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_tile_are_those_of_numpy(name: str) -> None:
    x = normal(16, 40) * 4 if name in ("sin", "cos", "ceil", "floor", "trunc") else normal(16, 40)
    result = both(lambda a: stored(getattr(nl, name)(nl.load(a))), x)
    expected = UNARY[name](x.astype(np.float64))
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("name", POSITIVE)
def test_functions_of_positive_numbers_are_those_of_numpy(name: str) -> None:
    x = np.abs(normal(16, 40)) + np.float32(0.1)
    result = both(lambda a: stored(getattr(nl, name)(nl.load(a))), x)
    np.testing.assert_allclose(result, POSITIVE[name](x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_tiles_are_those_of_numpy(name: str) -> None:
    x, y = np.round(normal(16, 40) * 4) + 0.25, np.round(normal(16, 40, seed=1) * 4) + 0.25
    result = both(lambda a, b: stored(getattr(nl, name)(nl.load(a), nl.load(b))), x, y)
    np.testing.assert_allclose(result, BINARY[name](x, y), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", INTEGER)
def test_integers_are_exact(name: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 1 << 30, (8, 16)).astype(np.uint32)
    y = rng.integers(0, 31, (8, 16)).astype(np.uint32)
    result = both(lambda a, b: stored(getattr(nl, name)(nl.load(a), nl.load(b))), x, y)
    np.testing.assert_array_equal(result, INTEGER[name](x, y))


def test_bits_are_inverted() -> None:
    x = np.arange(64, dtype=np.uint16).reshape(4, 16)
    np.testing.assert_array_equal(both(lambda a: stored(nl.invert(nl.load(a))), x), ~x)


def test_numbers_stand_on_either_side() -> None:
    x = np.abs(normal(4, 8)) + 1

    def kernel(a: NkiTensor) -> tuple[NkiTensor, ...]:
        t = nl.load(a)
        results = (nl.add(t, 1.5), nl.subtract(3.0, t), nl.divide(1, t), nl.power(t, 2))
        return tuple(stored(each) for each in results)

    for result, expected in zip(both(kernel, x), (x + 1.5, 3 - x, 1 / x, x * x), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_free_dimensions_of_one_element_repeat() -> None:
    x, column, row = normal(8, 4, 6), normal(8, 1), normal(8, 1, 6)

    def kernel(a: NkiTensor, b: NkiTensor, c: NkiTensor) -> tuple[NkiTensor, NkiTensor]:
        t = nl.load(a)
        flat = t.reshape((8, 24))
        return stored(nl.multiply(flat, nl.load(b))), stored(nl.add(t, nl.load(c)))

    scaled, shifted = both(kernel, x, column, row)
    np.testing.assert_array_equal(scaled, x.reshape(8, 24) * column)
    np.testing.assert_array_equal(shifted, x + row)


def test_results_have_the_requested_dtype_or_the_promoted_one() -> None:
    half = normal(4, 8).astype(ml_dtypes.bfloat16)

    def kernel(a: NkiTensor, b: NkiTensor) -> tuple[NkiTensor, ...]:
        x, y = nl.load(a), nl.load(b)
        assert nl.add(x, x).dtype == nl.bfloat16
        assert nl.add(x, y).dtype == nl.bfloat16
        assert nl.add(y, 1.5).dtype == nl.float32
        assert nl.exp(x, dtype=nl.float32).dtype == nl.float32
        assert nl.equal(x, x).dtype == nl.bfloat16
        return stored(nl.add(x, y)), stored(nl.less(y, 3))

    _, less = both(kernel, half, np.arange(32, dtype=np.int32).reshape(4, 8))
    assert less.dtype == np.int32
    assert less.sum() == 3


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axes", [(2,), (1, 2)])
def test_reductions_are_those_of_numpy(name: str, axes: tuple[int, ...]) -> None:
    x = normal(8, 4, 6)
    result = both(lambda a: stored(getattr(nl, name)(nl.load(a), axes)), x)
    expected = REDUCTIONS[name](x.astype(np.float64), axis=axes)
    np.testing.assert_allclose(result.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)


def test_all_says_whether_no_element_is_zero() -> None:
    x = np.array([[1, 2, 3], [0, 1, 1]], np.float32)
    result = both(lambda a: stored(nl.all(nl.load(a), 1)), x)
    np.testing.assert_array_equal(result[:, 0], [1, 0])


def test_softmax_and_rms_norm_are_their_formulas() -> None:
    x, w = normal(8, 32), normal(1, 32)

    def kernel(a: NkiTensor, b: NkiTensor) -> tuple[NkiTensor, NkiTensor]:
        t = nl.load(a)
        return stored(nl.softmax(t)), stored(nl.rms_norm(t, nl.load(b), 1, 32, epsilon=1e-5))

    soft, norm = both(kernel, x, w)
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(soft, powers / powers.sum(axis=1, keepdims=True), rtol=1e-5)
    root = np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(norm, x / root * w, rtol=1e-4, atol=1e-5)


def test_products_and_transposes_are_those_of_numpy() -> None:
    x, y = normal(32, 48), normal(48, 24)
    bits = np.arange(32 * 16, dtype=np.int32).reshape(32, 16)

    def kernel(a: NkiTensor, b: NkiTensor, c: NkiTensor) -> tuple[NkiTensor, ...]:
        left, right = nl.load(a), nl.load(b)
        turned = nl.load_transpose2d(a)
        product = nl.matmul(turned, right, transpose_x=True)
        return (
            stored(nl.matmul(left, right)),
            stored(product),
            stored(turned),
            stored(nl.transpose(nl.load(c))),
        )

    first, second, turned, words = both(kernel, x, y, bits)
    np.testing.assert_allclose(first, x @ y, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(turned, x.T)
    np.testing.assert_array_equal(words, bits.T)


def test_elements_are_chosen_and_gathered() -> None:
    x, mask = normal(16, 8), (normal(16, 8, seed=1) > 0).astype(np.float32)
    places = np.random.default_rng(2).integers(0, 8, (16, 5)).astype(np.uint32)

    def kernel(a: NkiTensor, b: NkiTensor, c: NkiTensor) -> tuple[NkiTensor, ...]:
        t, chosen = nl.load(a), nl.load(b)
        return (
            stored(nl.where(chosen, t, -1.0)),
            stored(nl.where(chosen, 2.0, t)),
            stored(nl.gather_flattened(t, nl.load(c))),
        )

    kept, replaced, gathered = both(kernel, x, mask, places)
    np.testing.assert_array_equal(kept, np.where(mask, x, np.float32(-1)))
    np.testing.assert_array_equal(replaced, np.where(mask, np.float32(2), x))
    np.testing.assert_array_equal(gathered, np.take_along_axis(x, places.astype(int), 1))


def test_tensors_are_filled_with_a_value() -> None:
    def kernel(a: NkiTensor) -> tuple[NkiTensor, ...]:
        outside = nl.full((3, 5), 2.5, nl.float32, buffer=nl.shared_hbm)
        like = nl.zeros_like(a, buffer=nl.sbuf)
        identity = nl.shared_identity_matrix(8, dtype=nl.bfloat16)
        constant = nl.shared_constant(np.arange(6, dtype=np.float32).reshape(2, 3))
        spread = nl.broadcast_to(nl.load(constant[0:1]), (4, 3))
        ones = nl.ones((4, 2), nl.int32)
        assert nl.empty_like(a).buffer is a.buffer is nl.hbm
        assert nl.expand_dims(like, 1).shape == (4, 1, 4)
        return (
            outside, stored(like), stored(identity), stored(nl.load(constant)), stored(spread),
            stored(ones),
        )  # fmt: skip

    full, like, identity, constant, spread, ones = both(kernel, normal(4, 4))
    assert (full == 2.5).all()
    assert (like == 0).all()
    np.testing.assert_array_equal(identity.astype(np.float32), np.eye(8))
    np.testing.assert_array_equal(constant, [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(spread, np.tile([0, 1, 2], (4, 1)))
    assert ones.dtype == np.int32
    assert (ones == 1).all()


def test_random_numbers_repeat_with_their_seed_and_lie_below_one() -> None:
    def kernel(a: NkiTensor) -> tuple[NkiTensor, ...]:
        seed = nl.full((1, 1), 42, nl.int32)
        nl.random_seed(seed)
        first = nl.rand((16, 64), nl.float32)
        nl.random_seed(seed)
        second = nl.rand((16, 64), nl.float32)
        dropped = nl.dropout(nl.ones((16, 64), nl.float32), 0.25)
        return stored(first), stored(second), stored(dropped)

    first, second, dropped = both(kernel, normal(1, 1))
    np.testing.assert_array_equal(first, second)
    assert first.min() >= 0 and first.max() < 1
    assert 0.4 < first.mean() < 0.6
    assert 0.65 < dropped.mean() < 0.85


def test_operators_may_be_named_by_functions_of_numpy_and_by_name() -> None:
    def kernel(a: NkiTensor) -> NkiTensor:
        t = nl.load(a)
        result = nl.ndarray(t.shape, t.dtype)
        nisa.tensor_tensor(result, t, t, np.add)
        nisa.tensor_tensor(result, result, t, "multiply")
        nisa.activation(result, np.square, result)
        nisa.tensor_scalar(result, result, nl.max, 0.5)
        return stored(result)

    x = normal(4, 4)
    np.testing.assert_allclose(both(kernel, x), np.maximum((2 * x * x) ** 2, 0.5), rtol=1e-6)


def test_accumulators_carry_a_sum_over_instructions() -> None:
    def kernel(a: NkiTensor) -> tuple[NkiTensor, NkiTensor]:
        t = nl.load(a)
        out, total, at_once = (nl.ndarray((8, n), nl.float32) for n in (16, 1, 1))
        command = nisa.reduce_cmd
        nisa.activation(out, nl.exp, t[:, :16], reduce_op=nl.add, reduce_cmd=command.reset_reduce)
        nisa.activation(
            out, nl.exp, t[:, 16:], reduce_op=nl.add, reduce_res=total, reduce_cmd=command.reduce
        )
        nisa.activation_reduce(out, nl.exp, t[:, :16], nl.add, at_once)
        return stored(total), stored(at_once)

    x = normal(8, 32)
    total, at_once = both(kernel, x)
    np.testing.assert_allclose(total[:, 0], np.exp(x).sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(at_once[:, 0], np.exp(x[:, :16]).sum(axis=1), rtol=1e-5)


def test_low_precision_can_be_held_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(a: NkiTensor) -> NkiTensor:
        t = nl.load(a)
        assert t.dtype == nl.bfloat16
        return stored(nl.multiply(t, 1.001))

    x = np.ones((4, 4), ml_dtypes.bfloat16)
    assert nki.simulate(kernel)(x)[0, 0] == 1
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    wide = nki.simulate(kernel)(x)
    assert wide.dtype == np.float32
    np.testing.assert_allclose(wide, 1.001, rtol=1e-6)
