"""Run JAX functions on a Neuron device: `on_device` makes a callable that compiles on first use."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import glia
from glia.base.errors import InternalError
from glia.cc_flags import resolve_options, tracing_for
from glia.frontend.errors import FrameworkMissing
from glia.neff.package import Neff
from glia.plugins.jax.errors import NotAFunction
from glia.profile.report import Profile
from glia.runtime.model import Model

try:
    import jax
    import jax.numpy as jnp
except ModuleNotFoundError as problem:
    raise FrameworkMissing(what="glia.plugins.jax", package="jax", extra="jax") from problem

MAX_MODELS = 64  # cached per function, least recently used evicted

# JAX lowers linear algebra for CPUs to calls of LAPACK; for TPUs most of it stays operations.
_LOWERED_FOR = ("tpu",)

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Signature:
    """The cache key of a call: everything that its program depends on.

    `tree` and `avals` are the structure and the abstract leaves of the arguments that are not
    static; `fixed` are (index or keyword, type, value) of those that are.
    """

    tree: Any
    avals: tuple[Any, ...]
    fixed: tuple[tuple[int | str, type, Any], ...]

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments to lower the function with: shapes in place of arrays."""
        leaves = [
            jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)  # type: ignore[no-untyped-call]
            for aval in self.avals
        ]
        args, kwargs = jax.tree.unflatten(self.tree, leaves)
        positional = list(args)
        for place, _, value in self.fixed:
            if isinstance(place, int):
                positional.insert(place, value)
            else:
                kwargs[place] = value
        return tuple(positional), kwargs


@dataclass(frozen=True)
class Compiled:
    """A loaded model and the structure and abstract leaves of what the function returns."""

    model: Model
    tree: Any
    avals: tuple[Any, ...]


class OnDevice:
    """A JAX function on a device; calling it takes and returns what the function does.

    Arguments are pytrees of arrays, not tracers: give it what `jax.grad` or `jax.vmap` makes of a
    function, and not the other way round. For each tree structure, shapes, dtypes and static values
    the function is compiled once; the last `MAX_MODELS` models are kept. Raises what
    `jax.jit` raises while it traces, what `glia.compile` and `glia.load` raise, and the errors of
    running a `Model`.
    """

    def __init__(
        self, function: Callable[..., Any], target: str | None, options: dict[str, Any]
    ) -> None:
        functools.update_wrapper(self, function)
        static = {name: options.pop(name, None) for name in ("static_argnums", "static_argnames")}
        self._jitted = jax.jit(function, keep_unused=True, **static)
        self._static = _StaticArguments(function, *static.values())
        chosen, _ = resolve_options("on_device", {"target": target, **options})
        self._options = {**options, "target": chosen.target}
        self._compiled = functools.lru_cache(maxsize=MAX_MODELS)(self._compile)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result, computed on the device."""
        signature, arrays = self._static.split(args, kwargs)
        compiled = self._compiled(signature)
        results = compiled.model(*arrays)
        leaves = [_to_jax(a, aval) for a, aval in zip(results, compiled.avals, strict=True)]
        return jax.tree.unflatten(compiled.tree, leaves)

    def profile(self, *args: Any, **kwargs: Any) -> Profile:
        """The simulated time of a call with these arguments."""
        signature, arrays = self._static.split(args, kwargs)
        return self._compiled(signature).model.profile(*arrays)

    def neff(self, *args: Any, **kwargs: Any) -> Neff:
        """The compiled model that a call with these arguments runs."""
        signature, _ = self._static.split(args, kwargs)
        return self._compiled(signature).model.neff

    def _compile(self, signature: Signature) -> Compiled:
        args, kwargs = signature.arguments()
        with tracing_for(self._options["target"]):
            lowered = self._jitted.trace(*args, **kwargs).lower(lowering_platforms=_LOWERED_FOR)
        if lowered.in_tree != signature.tree:
            raise InternalError(f"jax takes {lowered.in_tree}, the call has {signature.tree}")
        model = glia.load(glia.compile(lowered, **self._options))
        avals, tree = jax.tree.flatten(lowered.out_info)
        return Compiled(model, tree, tuple(avals))


def on_device(
    function: Callable[..., Any] | None = None, *, target: str | None = None, **options: Any
) -> Any:
    """Make a JAX function run on a device of `target`; usable with and without arguments.

    `static_argnums` and `static_argnames` mean what they mean to `jax.jit`; all other options are
    those of `glia.compile`, with its defaults. Returns an `OnDevice`, or without a function a
    decorator that makes one. Raises NotAFunction for anything else.
    """
    if function is None:
        return functools.partial(on_device, target=target, **options)
    if not callable(function):
        raise NotAFunction(given=type(function).__name__)
    return OnDevice(function, target, options)


class _StaticArguments:
    """Separates static arguments from arrays, by position and by name as `jax.jit` does."""

    def __init__(
        self,
        function: Callable[..., Any],
        numbers: int | Sequence[int] | None,
        names: str | Iterable[str] | None,
    ) -> None:
        self.numbers = {numbers} if isinstance(numbers, int) else set(numbers or ())
        self.names = {names} if isinstance(names, str) else set(names or ())
        if self.numbers or self.names:
            self._complete(function)

    def _complete(self, function: Callable[..., Any]) -> None:
        """Resolve static argument numbers to names and names to numbers."""
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):  # built-in functions have no signature
            return
        ordered = [p.name for p in parameters if p.kind in _POSITIONAL]
        has_rest = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        count = len(ordered)
        self.numbers = {n if n >= 0 or has_rest else n + count for n in self.numbers}
        self.names |= {ordered[n] for n in self.numbers if 0 <= n < count}
        self.numbers |= {n for n, name in enumerate(ordered) if name in self.names}

    def split(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Signature, list[np.ndarray]]:
        """The signature of a call, and its arrays in the order the program takes them."""
        numbers = {n % len(args) if n < 0 else n for n in self.numbers if -len(args) <= n}
        fixed: list[tuple[int | str, type, Any]] = [
            (n, type(a), a) for n, a in enumerate(args) if n in numbers
        ]
        fixed += [(n, type(a), a) for n, a in sorted(kwargs.items()) if n in self.names]
        free = tuple(a for n, a in enumerate(args) if n not in numbers)
        named = {n: a for n, a in kwargs.items() if n not in self.names}
        leaves, tree = jax.tree.flatten((free, named))
        avals = tuple(jax.typeof(leaf) for leaf in leaves)
        arrays = [_to_numpy(leaf, aval) for leaf, aval in zip(leaves, avals, strict=True)]
        return Signature(tree, avals, tuple(fixed)), arrays


def _is_key(dtype: Any) -> bool:
    return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))  # type: ignore[attr-defined]


def _to_numpy(leaf: Any, aval: Any) -> np.ndarray:
    """The array a program takes for a leaf; of a random key its words."""
    if _is_key(aval.dtype):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf, dtype=aval.dtype)


def _to_jax(array: np.ndarray, aval: Any) -> Any:
    """The array the function would have returned."""
    if aval.dtype == jax.dtypes.float0:  # gradients of integers have no values
        return np.zeros(array.shape, jax.dtypes.float0)
    if _is_key(aval.dtype):
        kind = jax.random.key_impl(jnp.empty((), aval.dtype))
        return jax.random.wrap_key_data(jnp.asarray(array), impl=kind)
    return jnp.asarray(array)
