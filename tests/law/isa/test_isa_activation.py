"""The Scalar Engine's functions against the standard library, and what happens around them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from glia.base.dtype import DType
from glia.isa.activation import ACTIVATIONS
from glia.isa.instructions.scalar import Activation
from glia.sim.policy import ArgumentOutOfRange, Policy
from support.isa_bench import FLOATS, Bench, wide

ACTIVATION_MEANING = {
    "copy": lambda x: x,
    "identity": lambda x: x,
    "square": lambda x: x * x,
    "relu": lambda x: max(x, 0),
    "prelu": lambda x: x if x >= 0 else 0.25 * x,
    "abs": abs,
    "sign": lambda x: float(np.sign(x)),
    "exp": math.exp,
    "log": lambda x: math.log(x),
    "sqrt": lambda x: math.sqrt(x),
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "sin": math.sin,
    "cos": math.cos,
    "arctan": math.atan,
    "tanh": math.tanh,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)),
    "gelu_apprx_tanh": lambda x: (
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "gelu_apprx_sigmoid": lambda x: x / (1 + math.exp(-1.702 * x)),
    "softplus": lambda x: math.log1p(math.exp(x)),
    "mish": lambda x: x * math.tanh(math.log1p(math.exp(x))),
    "erf": math.erf,
    "erf_dx": lambda x: 2 / math.sqrt(math.pi) * math.exp(-x * x),
    "sinh": math.sinh,
}
DERIVATIVES = {
    "gelu_dx": "gelu",
    "silu_dx": "silu",
    "gelu_apprx_sigmoid_dx": "gelu_apprx_sigmoid",
}


def test_the_oracle_covers_every_activation_function() -> None:
    assert set(ACTIVATION_MEANING) | set(DERIVATIVES) == set(ACTIVATIONS)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_functions(name: str) -> None:
    """Over the documented range, or as much of it as their values are not all alike in."""
    declared = ACTIVATIONS[name]
    is_positive = declared.low >= 0 or declared.is_magnitude
    low, high = max(declared.low, 1e-3 if is_positive else -12.0), min(declared.high, 12.0)
    points = np.linspace(low, high, 501).astype(np.float32)
    exactly = points.astype(np.float64)
    if name in DERIVATIVES:
        function, h = ACTIVATION_MEANING[DERIVATIVES[name]], 1e-4
        expected = [(function(x + h) - function(x - h)) / (2 * h) for x in exactly]
    else:
        expected = [ACTIVATION_MEANING[name](x) for x in exactly]
    parameters = (np.float32(0.25),) if declared.has_parameter else ()
    actual = declared.compute(points, *parameters)
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=2e-6)


def test_sine_beyond_its_range_follows_the_documented_cubic() -> None:
    actual = ACTIVATIONS["sin"].compute(np.array([9.0, -9.0], np.float32))
    np.testing.assert_allclose(actual, [27.65, -27.65], atol=0.01)
    beyond = np.array([0.0, 0.5, 0.9, 2.0], np.float32)
    actual = ACTIVATIONS["sin"].compute(np.float32(np.pi) + beyond)
    np.testing.assert_allclose(actual, beyond**3 / 6 - beyond, atol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_activation_scales_biases_and_sums(dtype: DType) -> None:
    bench = Bench(25)
    data, dst = bench.pattern((10, 3, 4), dtype), bench.pattern((10, 12), dtype)
    scale, bias, total = (bench.pattern((10, 1)) for _ in range(3))
    argument = wide(bench.value(data)).reshape(10, 12) * bench.value(scale) + bench.value(bias)
    value = np.tanh(argument)
    instr = Activation(
        dst=dst, data=data, function="tanh", scale=scale, bias=bias, command="reset_reduce",
        reduced=total,
    )  # fmt: skip
    bench.check(instr, dst=value, reduced=value.sum(1, keepdims=True))


def test_activation_takes_numbers() -> None:
    bench = Bench(26)
    data, dst = bench.pattern((4, 6)), bench.pattern((4, 6))
    instr = Activation(dst=dst, data=data, function="square", scale=2.0, bias=1.0)
    bench.check(instr, dst=np.square(bench.value(data) * 2 + 1))


LIMITED = [name for name, f in ACTIVATIONS.items() if np.isfinite(f.low) and np.isfinite(f.high)]


@pytest.mark.parametrize("name", LIMITED)
@pytest.mark.parametrize("end", ["low", "high"])
def test_the_range_of_a_function_includes_its_ends(name: str, end: str) -> None:
    bench = Bench(36)
    limit = np.float32(getattr(ACTIVATIONS[name], end))
    inward, outward = np.nextafter(limit, np.float32(1)), limit * np.float32(1.01)
    outward = limit * np.float32(0.99) if 0 < limit < 1 else outward
    inside = bench.pattern((1, 1), values=np.array([[inward]]))
    outside, out = bench.pattern((1, 1), values=np.array([[outward]])), bench.pattern((1, 1))
    strict = Policy(check_activation_range=True)
    bench.run(Activation(dst=out, data=inside, function=name), strict)
    with pytest.raises(ArgumentOutOfRange, match=name):
        bench.run(Activation(dst=out, data=outside, function=name), strict)


def test_an_argument_outside_the_documented_range_is_found_when_asked_for() -> None:
    bench = Bench(35)
    values = np.array([[1.0, -4.0]])
    data, dst = bench.pattern((1, 2), values=values), bench.pattern((1, 2))
    instr = Activation(dst=dst, data=data, function="sin")
    bench.run(instr)
    with pytest.raises(ArgumentOutOfRange, match=r"sin\(-4.0\) is outside"):
        bench.run(instr, Policy(check_activation_range=True))
