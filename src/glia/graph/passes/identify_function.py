"""Which function of the engines' tables a part of a graph computes, decided by its values.

A part in float32 is compared with each function at samples. A part in bfloat16 or float16 is
compared at every number of that type, twice: as written, and without the roundings between its
steps, so that rounding is not taken for another meaning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from glia.base.dtype import F32, DType
from glia.graph.ir import Node
from glia.graph.ops import Map
from glia.graph.rules.constructors import apply
from glia.graph.rules.facts import uniform
from glia.graph.scalar import FUNCTIONS

Array = np.ndarray[Any, Any]

RELATIVE_STEPS = 16  # of the function's value, in steps of the dtype at 1
ABSOLUTE_STEPS = 2  # and of 1 + |x|, which 1 + erf(x) and its like lose where they cancel
CANCELLATION_LIMIT = 16.0  # beyond it functions do not cancel any more
LARGEST = 100.0  # as a power of two: beyond it the way a formula is written decides on overflow
NARROW_SHARE = 2.0**-4  # of the largest narrow number: likewise


@dataclass(frozen=True)
class KnownFunction:
    """A function of one variable: its exact value, and the nodes that compute it."""

    name: str
    exact: Callable[[Array], Array]  # in float64
    build: Callable[[Node], Node]


def _known_function(name: str) -> KnownFunction:
    return KnownFunction(name, FUNCTIONS[name].compute, lambda x: apply(name, x))


# Not erfc: 1 - erf(x), which is all that the engines offer, has no digits where erfc is small.
KNOWN_FUNCTIONS = tuple(
    map(_known_function, ("gelu", "gelu_tanh", "silu", "softplus", "erf", "tanh", "logistic"))
)


def identify(steps: Sequence[Node], variable: Node) -> KnownFunction | None:
    """The table function that a part computes of its variable; None if there is none.

    `steps` are its functions, users first; the part has the variable's dtype.
    """
    dtype = variable.dtype
    candidates = KNOWN_FUNCTIONS
    for samples in (_screening_samples(dtype), _samples(steps, dtype)):
        values = _evaluate_steps(steps, variable, samples)
        candidates = tuple(k for k in candidates if _agrees(k, samples, values))
        if not candidates:
            return None
    return candidates[0] if dtype is F32 else _identify_unrounded(steps, variable, candidates)


def _evaluate_steps(steps: Sequence[Node], variable: Node, samples: Array) -> Array:
    """The part's values at `samples` of its variable, computed in its own dtypes."""
    known: dict[Node, Array] = {variable: samples}

    def value(operand: Node) -> Array:
        if operand in known:
            return known[operand]
        constant = uniform(operand)
        assert constant is not None
        return np.broadcast_to(constant, samples.shape)

    with np.errstate(all="ignore"):
        for step in reversed(steps):
            known[step] = step.compute(*map(value, step.operands))
    return known[steps[0]]


def _agrees(known: KnownFunction, samples: Array, values: Array) -> bool:
    """Whether values equal the function but for what a formula in their dtype may lose."""
    wide = samples.astype(np.float64)
    with np.errstate(all="ignore"):
        exact = known.exact(wide)
        slack = _formula_slack(wide, exact, _step_at_one(samples.dtype))
    return _is_near(wide, values.astype(np.float64), exact, slack)


def _formula_slack(samples: Array, exact: Array, step: float) -> Array:
    """What a formula for a function may lose in a dtype of this step at 1."""
    size = np.minimum(np.abs(samples), CANCELLATION_LIMIT)
    slack: Array = step * (ABSOLUTE_STEPS * (1 + size) + RELATIVE_STEPS * np.abs(exact))
    return slack


def _is_near(samples: Array, values: Array, exact: Array, slack: Array) -> bool:
    """Whether all values are as near as `slack`; NaN is allowed at infinities."""
    with np.errstate(all="ignore"):
        near = np.abs(values - exact) <= slack
    undefined = np.isnan(values) & (np.isnan(exact) | np.isinf(samples))
    return bool((near | (values == exact) | undefined).all())


def _step_at_one(dtype: np.dtype[Any]) -> float:
    """The distance between 1 and the next number of a float dtype."""
    one = np.ones((), dtype)
    return float(np.nextafter(one, one + one) - one)


_STEP_OF_FLOAT32 = _step_at_one(F32.numpy)


# --- parts in narrow floats -----------------------------------------------------------------------


def _identify_unrounded(
    steps: Sequence[Node], variable: Node, candidates: Sequence[KnownFunction]
) -> KnownFunction | None:
    """The nearest candidate that the part equals when nothing is rounded between its steps.

    What may be left between them is what the rounding of its constants and of the result changes,
    and what the function itself loses in float32.
    """
    samples = _samples(steps, variable.dtype).astype(np.float64)
    values = _evaluate_unrounded(steps, variable, samples, {})
    if values is None:
        return None
    half = _step_at_one(variable.dtype.numpy) / 2
    slack = np.zeros_like(samples)
    for constant in _rounded_constants(steps, variable.dtype):
        moved = _evaluate_unrounded(steps, variable, samples, {constant: 1 + half})
        assert moved is not None
        with np.errstate(all="ignore"):
            slack = slack + np.nan_to_num(np.abs(moved - values), posinf=0.0)
    found: list[tuple[float, KnownFunction]] = []
    for known in candidates:
        with np.errstate(all="ignore"):
            exact = known.exact(samples)
            apart = float(np.nanmax(np.abs(values - exact)[np.isfinite(exact)]))
            own = half * np.abs(exact) + _formula_slack(samples, exact, _STEP_OF_FLOAT32)
        if _is_near(samples, values, exact, slack + own):
            found.append((apart, known))
    return min(found, key=lambda each: each[0])[1] if found else None


def _rounded_constants(steps: Sequence[Node], dtype: DType) -> Iterator[Node]:
    """The constants of the part that were rounded to its dtype; whole numbers were not."""
    seen: set[Node] = set()
    for step in steps:
        for operand in step.operands:
            value = uniform(operand)
            if value is None or operand in seen or operand.dtype is not dtype:
                continue
            seen.add(operand)
            if not (16 * float(value)).is_integer():
                yield operand


def _evaluate_unrounded(
    steps: Sequence[Node], variable: Node, samples: Array, factors: Mapping[Node, float]
) -> Array | None:
    """The part's values in float64 throughout, some constants multiplied by factors.

    None where a step is more than arithmetic.
    """
    known: dict[Node, Array] = {variable: samples}

    def value(operand: Node) -> Array:
        if operand not in known:
            constant = uniform(operand)
            assert constant is not None
            if operand.dtype.is_float:
                constant = constant.astype(np.float64) * factors.get(operand, 1.0)
            known[operand] = np.broadcast_to(constant, samples.shape)
        return known[operand]

    with np.errstate(all="ignore"):
        for step in reversed(steps):
            operands = [value(operand) for operand in step.operands]
            if not all(each.dtype in (np.float64, np.bool_) for each in operands):
                return None
            if isinstance(step, Map):
                known[step] = FUNCTIONS[step.function].compute(*operands)
            elif step.dtype.is_float and operands[0].dtype == np.float64:
                known[step] = operands[0]
            else:
                return None
    return known[steps[0]]


# --- samples --------------------------------------------------------------------------------------


@cache
def _screening_samples(dtype: DType) -> Array:
    return np.array([-7.3, -2.1, -0.77, -0.01, 0.3, 1.4, 3.9, 11.0]).astype(dtype.numpy)


@cache
def _standard_samples() -> Array:
    """All magnitudes of both signs, dense where functions curve; zeros, NaN and infinities."""
    dense = np.linspace(-16, 16, 4001)
    sizes = np.exp2(np.linspace(-140, LARGEST, 961))
    special = np.array([0.0, -0.0, math.nan, math.inf, -math.inf])
    return np.concatenate([dense, sizes, -sizes, special]).astype(np.float32)


@cache
def _all_numbers(dtype: DType) -> Array:
    """Every number of a dtype of 16 bits but the largest, and one NaN."""
    numbers = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy).astype(np.float32)
    numbers = numbers[~np.isnan(numbers)]
    finite = np.abs(numbers[np.isfinite(numbers)])
    kept = np.isinf(numbers) | (np.abs(numbers) <= NARROW_SHARE * finite.max())
    return np.append(numbers[kept], np.float32(math.nan)).astype(dtype.numpy)


def _samples(steps: Sequence[Node], dtype: DType) -> Array:
    """All numbers of a narrow dtype; of float32 standard ones and the part's constants.

    Constants come with their neighbours, in both signs.
    """
    if dtype is not F32:
        return _all_numbers(dtype)
    constants = {
        float(value)
        for step in steps
        for operand in step.operands
        if (value := uniform(operand)) is not None
    }
    near = np.array(sorted(constants), np.float64).astype(np.float32)
    with np.errstate(over="ignore"):  # the neighbours of the greatest number are infinite
        near = np.concatenate([near, np.nextafter(near, -np.inf), np.nextafter(near, np.inf)])
    return np.concatenate([_standard_samples(), near, -near]).astype(np.float32)
