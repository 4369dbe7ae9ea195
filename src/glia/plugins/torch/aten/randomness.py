"""Operators that take random numbers, from one generator whose state goes from call to call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from glia.base.dtype import F32, PRED, S32, U8, U32, U64
from glia.graph.ir import TensorType
from glia.plugins.hlo_module import HloValue
from glia.plugins.hlo_writer import HloWriter
from glia.plugins.torch.aten.operator_table import TABLE, OperatorCall, lowers

aten = torch.ops.aten

_FRACTION_BITS = 24  # of float32: every such fraction is exact


class RandomState:
    """The state of a program's generator, which every use moves on."""

    def __init__(self, state: HloValue) -> None:
        self.state = state

    def bits(self, writer: HloWriter, shape: Sequence[int]) -> HloValue:
        """Random words."""
        kind = TensorType(U32, tuple(shape))
        self.state, words = writer.random_bits(self.state, kind)
        return words


def packed_state(at: OperatorCall, state: HloValue) -> HloValue:
    """A state as the bytes that PyTorch has for one of its own: ours first, then zeros."""
    (length,) = at.result.shape
    halves = [
        at.convert(at.binary("shift-right-logical", state, at.filled_like(part, state)), U8)
        for part in range(0, 64, 8)
    ]
    columns = [at.reshape(each, (*each.shape, 1)) for each in halves]
    octets = at.reshape(at.concatenate(columns, 1), (8 * state.shape[0],))
    return at.pad(octets, at.constant(0, U8), [0], [length - octets.shape[0]])


def unpacked_state(at: OperatorCall, octets: HloValue) -> HloValue:
    """The state in what `packed_state` has made."""
    rows = at.reshape(at.slice_dimension(octets, 0, 0, 16), (2, 8))
    wide = at.convert(rows, U64)
    places = at.constant(np.arange(0, 64, 8)[None].repeat(2, 0), U64)
    return at.sum(at.binary("shift-left", wide, places), [1])


def uniform(at: OperatorCall, shape: Sequence[int]) -> HloValue:
    """Float32 numbers in [0, 1), each a multiple of 2 ** -24."""
    words = at.random.bits(at, shape)
    kept = at.binary("shift-right-logical", words, at.filled_like(32 - _FRACTION_BITS, words))
    whole = at.convert(at.convert(kept, S32), F32)
    return at.multiply(whole, at.filled_like(2.0**-_FRACTION_BITS, whole))


def normal(at: OperatorCall, shape: Sequence[int]) -> HloValue:
    """Standard normal numbers, from two uniform ones each."""
    first, second = uniform(at, shape), uniform(at, shape)
    above_zero = at.subtract(at.filled_like(1, first), first)
    radius = at.unary("sqrt", at.multiply(at.unary("log", above_zero), at.filled_like(-2, first)))
    return at.multiply(
        radius, at.unary("cosine", at.multiply(second, at.filled_like(math.tau, second)))
    )


@lowers(aten.rand.default, aten.rand_like.default)
def _rand(at: OperatorCall, *_: Any, **__: Any) -> HloValue:
    return at.finished(uniform(at, at.result.shape))


@lowers(aten.randn.default, aten.randn_like.default)
def _randn(at: OperatorCall, *_: Any, **__: Any) -> HloValue:
    return at.finished(normal(at, at.result.shape))


@lowers(aten.uniform.default)
def _uniform(
    at: OperatorCall, x: HloValue, low: float = 0.0, high: float = 1.0, **_: Any
) -> HloValue:
    found = uniform(at, x.shape)
    scaled = at.multiply(found, at.filled_like(high - low, found))
    return at.finished(at.add(scaled, at.filled_like(low, found)))


@lowers(aten.normal_functional.default)
def _normal(
    at: OperatorCall, x: HloValue, middle: float = 0.0, deviation: float = 1.0, **_: Any
) -> HloValue:
    return _normal_of_shape(at, x.shape, mean=middle, std=deviation)


@lowers(torch.ops.prims.normal.default)
def _normal_of_shape(
    at: OperatorCall, shape: Sequence[int], *, mean: float, std: float, **_: Any
) -> HloValue:
    found = normal(at, shape)
    scaled = at.multiply(found, at.filled_like(std, found))
    return at.finished(at.add(scaled, at.filled_like(mean, found)))


@lowers(aten.bernoulli.default)
def _bernoulli(at: OperatorCall, probability: HloValue, **_: Any) -> HloValue:
    found = uniform(at, probability.shape)
    return at.finished(at.compare("LT", found, at.convert(probability, F32)))


@lowers(aten.bernoulli.p)
def _bernoulli_p(at: OperatorCall, x: HloValue, probability: float = 0.5, **_: Any) -> HloValue:
    found = uniform(at, x.shape)
    return at.finished(at.compare("LT", found, at.filled_like(probability, found)))


@lowers(aten.native_dropout.default)
def _native_dropout(
    at: OperatorCall, x: HloValue, p: float, train: bool | None = True
) -> tuple[HloValue, HloValue]:
    """What is kept, scaled up, and the mask of it."""
    if not train:
        return x, at.splat(True, TensorType(PRED, x.shape))
    mask = at.compare_to("GE", uniform(at, x.shape), p)
    wide = at.wide(x)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    scaled = at.multiply(wide, at.filled_like(scale, wide))
    return at.finished(at.select(mask, scaled, at.filled_like(0, wide))), mask


@lowers(aten.randperm.default)
def _randperm(at: OperatorCall, count: int, **_: Any) -> HloValue:
    """The indices in the order of random keys."""
    keys = at.random.bits(at, (count,))
    places = at.iota(TensorType(S32, (count,)), 0)
    ordered = at.sort((keys, places), 0, lambda b, x, y: b.compare("LT", x, y))
    return at.finished(ordered[1])


@lowers(aten.randint.low, aten.randint_like.low_dtype)
def _randint(at: OperatorCall, low: Any, high: int, *rest: Any, **_: Any) -> HloValue:
    """Whole numbers from low up to high, which is not among them."""
    if isinstance(low, HloValue):
        low, high = high, rest[0]
    words = at.random.bits(at, at.result.shape)
    span = at.binary("remainder", words, at.filled_like(high - low, words))
    wide = at.convert(span, at.result.dtype)
    return at.add(wide, at.filled_like(low, wide))


@lowers(aten.randint.default, aten.randint_like.default)
def _randint_below(at: OperatorCall, *arguments: Any, **options: Any) -> HloValue:
    """Whole numbers from 0 up to the first number that is given."""
    high = next(each for each in arguments if not isinstance(each, HloValue))
    return _randint(at, 0, high)


_RANDOM = frozenset(each for each, how in TABLE.items() if how.__module__ == __name__)


def is_random(operator: Any) -> bool:
    """Whether an operator takes random numbers; PyTorch says it also of some that need none."""
    return operator in _RANDOM
