"""A function to compile, with its goal and with what no program can beat."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend import core
from ml_dtypes import bfloat16

from glia.arch import Arch, get_target
from glia.tile.contraction import PARTITIONS

Array = Any
Arguments = tuple[Any, ...]
BOTH = ("trn2", "trn1")


@dataclass(frozen=True)
class Kernel:
    """A kernel of the library that does the work of a workload, and how often it is launched."""

    function: Any
    arguments: Arguments
    constants: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload:
    """A function to compile, its goal, and what bounds it beside what its operations say.

    `goal` is a fraction of the roof, or of the speed of `kernel` where `is_against_kernel`, or
    microseconds where it is more than one.
    `flops` are those that a program needs at least (None: all of the function's contractions),
    `moved` the bytes that have to pass between HBM and the core (None: arguments, results and
    constants once); `cycles` are those of an engine. `heavy` takes minutes to compile.
    """

    name: str
    function: Callable[..., Any]
    arguments: Arguments
    goal: float
    kernel: Kernel | None = None
    is_against_kernel: bool = False
    targets: tuple[str, ...] = ("trn2",)
    donated: tuple[int, ...] = ()
    flops: float | None = None
    moved: int | None = None
    cycles: Mapping[str, float] = field(default_factory=dict)
    heavy: bool = False

    def lowered(self) -> Any:
        """The function as JAX lowers it."""
        return jax.jit(self.function, donate_argnums=self.donated).lower(*self.arguments)

    @functools.cached_property
    def work(self) -> tuple[Counter[str], int]:
        """Floating-point operations by dtype, and bytes that are moved at least."""
        traced = jax.make_jaxpr(self.function)(*self.arguments)
        flops = contraction_flops(traced.jaxpr)
        if self.flops is not None:
            (dtype,) = flops
            flops = Counter({dtype: self.flops})
        if self.moved is not None:
            return flops, self.moved
        ends = (*traced.jaxpr.invars, *traced.jaxpr.outvars)
        constants = sum(_bytes(each) for each in traced.consts)
        return flops, constants + sum(_bytes(each.aval) for each in ends)

    def bounds_us(self, target: str) -> dict[str, float]:
        """By what bounds it: microseconds that no program on one core can be below."""
        arch = get_target(target).arch
        flops, moved = self.work
        found = {
            "DMA": moved / (arch.dma_engines * arch.dma_bytes_per_ns) / 1000,
            "PE": sum(n / _peak_flops(dtype, arch) for dtype, n in flops.items()) * 1e6,
        }
        for engine, cycles in self.cycles.items():
            found[engine] = cycles / arch.clocks_ghz[engine] / 1000
        return found


def _peak_flops(dtype: str, arch: Arch) -> float:
    """Operations per second: what is published, rounded, or what the array does at its clock."""
    name = {"bfloat16": "bf16", "float32": "f32"}[dtype]
    name = name if name in arch.peak_flops else "bf16"
    passes = arch.tensor_passes.get(name, 1.0)
    at_clock = 2 * PARTITIONS**2 * arch.clocks_ghz["tensor"] * 1e9 / passes
    return max(arch.peak_flops[name], at_clock)


def _bytes(value: Any) -> int:
    return math.prod(value.shape) * value.dtype.itemsize


def contraction_flops(traced: Any) -> Counter[str]:
    """Floating-point operations of the products and convolutions of a jaxpr, loops included."""
    found: Counter[str] = Counter()
    for equation in traced.eqns:
        out = equation.outvars[0].aval
        if equation.primitive.name == "dot_general":
            left = equation.invars[0].aval
            (contracted, _), _ = equation.params["dimension_numbers"]
            depth = math.prod(left.shape[axis] for axis in contracted)
            found[str(left.dtype)] += 2 * depth * math.prod(out.shape)
        elif equation.primitive.name == "conv_general_dilated":
            weights = equation.invars[1].aval
            outputs = equation.params["dimension_numbers"].rhs_spec[0]
            depth = math.prod(weights.shape) // weights.shape[outputs]
            found[str(weights.dtype)] += 2 * depth * math.prod(out.shape)
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        for inner in _inner(equation.params.values()):
            for dtype, n in contraction_flops(inner).items():
                found[dtype] += times * n
    return found


def _inner(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, core.ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, core.Jaxpr):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _inner(value)


def shaped(*shape: int, dtype: Any = bfloat16) -> Any:
    """An argument: its shape and dtype."""
    return jax.ShapeDtypeStruct(shape, dtype)
