"""The Scalar Engine's functions: meaning in float32, documented range, and table set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

PAGE = "NKI API common fields, Supported Activation Functions for NKI ISA"

_ONE = np.float32(1)
_HALF = np.float32(0.5)
_PI = np.float32(np.pi)
_SQRT_HALF = np.float32(np.sqrt(0.5))
_SQRT_TWO_OVER_PI = np.float32(np.sqrt(2 / np.pi))
_TWO_OVER_SQRT_PI = np.float32(2 / np.sqrt(np.pi))
_INFINITY = float("inf")


@dataclass(frozen=True)
class ActivationFunction:
    """One function of the tables.

    `low`..`high` is the documented range of arguments (of magnitudes if `is_magnitude`).
    Functions of one `table_set` can follow each other without loading a table (which functions
    share a set is assumed). With `has_parameter`, `compute` takes one after the argument.
    """

    name: str
    compute: Callable[..., Array]
    table_set: str
    low: float = -_INFINITY
    high: float = _INFINITY
    is_magnitude: bool = False
    has_parameter: bool = False
    source: str = PAGE


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    """The polynomial of two coefficients or more, greatest power first, in float32."""
    first, second, *others = map(np.float32, coefficients)
    result = first * x + second
    for coefficient in others:
        result = result * x + coefficient
    return result


# A rational fit of erf on -4..4 with an error of a few float32 steps.
_ERF_ABOVE = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
    -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
_ERF_BELOW = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
    -1.42647390514189e-02,
)  # fmt: skip


def _erf(x: Array) -> Array:
    x = np.minimum(np.maximum(x, np.float32(-4)), np.float32(4))
    square = x * x
    return x * _polynomial(_ERF_ABOVE, square) / _polynomial(_ERF_BELOW, square)


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, _ONE, small) / (_ONE + small)


def _softplus(x: Array) -> Array:
    return np.maximum(x, np.float32(0)) + np.log1p(np.exp(-np.abs(x)))


def _gelu(x: Array) -> Array:
    return _HALF * x * (_ONE + _erf(x * _SQRT_HALF))


def _gelu_dx(x: Array) -> Array:
    density = np.exp(-_HALF * x * x) * np.float32(1 / np.sqrt(2 * np.pi))
    derivative: Array = _HALF * (_ONE + _erf(x * _SQRT_HALF)) + x * density
    return derivative


def _gelu_apprx_tanh(x: Array) -> Array:
    cubic = x + np.float32(0.044715) * x * x * x
    value: Array = _HALF * x * (_ONE + np.tanh(_SQRT_TWO_OVER_PI * cubic))
    return value


def _gelu_apprx_sigmoid(x: Array) -> Array:
    return x * _sigmoid(np.float32(1.702) * x)


def _gelu_apprx_sigmoid_dx(x: Array) -> Array:
    s = _sigmoid(np.float32(1.702) * x)
    return s + np.float32(1.702) * x * s * (_ONE - s)


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)


def _silu_dx(x: Array) -> Array:
    s = _sigmoid(x)
    return s + x * s * (_ONE - s)


def _mish(x: Array) -> Array:
    return x * np.tanh(_softplus(x))


def _erf_dx(x: Array) -> Array:
    derivative: Array = _TWO_OVER_SQRT_PI * np.exp(-x * x)
    return derivative


def _sin(x: Array) -> Array:
    """sin within -pi..pi, beyond it the cubic that continues the curve from the nearer end."""
    beyond = np.abs(x) - _PI
    tail = np.sign(x) * (beyond * beyond * beyond / np.float32(6) - beyond)
    return np.where(beyond > 0, tail, np.sin(x))


def _cos(x: Array) -> Array:
    """The sine unit with a bias of pi / 2."""
    return _sin(x + np.float32(np.pi / 2))


def _rsqrt(x: Array) -> Array:
    return _ONE / np.sqrt(x)


def _reciprocal(x: Array) -> Array:
    return _ONE / x


def _relu(x: Array) -> Array:
    return np.maximum(x, np.float32(0))


def _prelu(x: Array, parameter: Array) -> Array:
    return np.where(x < 0, parameter * x, x)


def _table(*functions: ActivationFunction) -> dict[str, ActivationFunction]:
    return {function.name: function for function in functions}


_F = ActivationFunction
ACTIVATIONS: dict[str, ActivationFunction] = _table(
    _F("copy", np.positive, "any"),
    _F("identity", np.positive, "any"),
    _F("square", np.square, "any"),
    _F("relu", _relu, "any"),
    _F("prelu", _prelu, "any", has_parameter=True),
    _F("abs", np.abs, "any"),
    _F("sign", np.sign, "any"),
    _F("exp", np.exp, "exp"),
    _F("log", np.log, "log", 2.0**-64, 2.0**64),
    _F("sqrt", np.sqrt, "root", 2.0**-116, 2.0**118),
    _F("rsqrt", _rsqrt, "root", 2.0**-87, 2.0**97),
    _F("reciprocal", _reciprocal, "reciprocal", 2.0**-42, 2.0**42, is_magnitude=True),
    _F("sin", _sin, "trigonometric", -np.pi, np.pi),
    _F("cos", _cos, "trigonometric", -1.5 * np.pi, 0.5 * np.pi),
    _F("arctan", np.arctan, "arctan", -np.pi / 2, np.pi / 2),
    _F("tanh", np.tanh, "sigmoid"),
    _F("sigmoid", _sigmoid, "sigmoid"),
    _F("silu", _silu, "silu"),
    _F("silu_dx", _silu_dx, "silu"),
    _F("gelu", _gelu, "gelu"),
    _F("gelu_dx", _gelu_dx, "gelu"),
    _F("gelu_apprx_tanh", _gelu_apprx_tanh, "gelu"),
    _F("gelu_apprx_sigmoid", _gelu_apprx_sigmoid, "gelu"),
    _F("gelu_apprx_sigmoid_dx", _gelu_apprx_sigmoid_dx, "gelu"),
    _F("softplus", _softplus, "softplus"),
    _F("mish", _mish, "softplus"),
    _F("erf", _erf, "erf"),
    _F("erf_dx", _erf_dx, "erf"),
    _F("sinh", np.sinh, "hyperbolic", source="assumed"),
)
