"""A kernel called while JAX traces a function: `nki_call`, an operation of JAX.

For a device it is lowered to a custom call that holds the kernel's own program, so that the model
can be compiled anywhere; the compiler puts the program where the call is. For the host, where
jax.jit runs functions when there is no device, it is lowered to a composite: that custom call by
name, and how the simulated device runs the program.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec

from glia.arch import Target, get_target
from glia.custom_call.backend_config import RAW_CONFIG, write_kernel
from glia.frontend.hlo_import.custom_calls import COMPOSITE
from glia.graph.ops.control import KERNEL
from glia.machine.ir import Program
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.neff.package import Neff
from glia.nki.names.errors import BadLaunch, NoDerivative
from glia.nki.names.targets import model_target
from glia.nki.run.frameworks import framework_of, map_leaves
from glia.nki.run.launch import Launch, bind, program_key, restore_structure
from glia.nki.run.trace import Traced
from glia.runtime.model import Model, load

MAX_TRACED_KERNELS = 256  # cached by arguments, least recently used evicted


class Kernel(Protocol):
    """The interface of a kernel of either generation."""

    function: Any
    identity: tuple[Any, ...]

    def traced_launch(self, launch: Launch, target: Target, *, synchronises: bool = True) -> Traced:
        """The kernel's programs for a launch."""


@dataclass(frozen=True)
class _Request:
    """A kernel to trace for a launch; equal requests have equal programs."""

    key: Any
    target: str
    kernel: Kernel = field(compare=False)
    launch: Launch = field(compare=False)


@dataclass(frozen=True, eq=False)
class TracedKernel:
    """A kernel traced for arguments of certain shapes: its programs, without semaphores."""

    traced: Traced

    @functools.cached_property
    def neff(self) -> Neff:
        """The programs without semaphores, as a NEFF."""
        return Neff(self.traced.programs)

    @property
    def name(self) -> str:
        """The name of the kernel's function."""
        return self.neff.name

    @functools.cached_property
    def config(self) -> str:
        """The backend_config of the custom call."""
        return write_kernel(self.traced.programs, self.traced.fixed)

    @functools.cached_property
    def results(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The results of the custom call: return values, then modified arguments."""
        found = self.neff.outputs
        return tuple(jax.ShapeDtypeStruct(b.shape, b.dtype.numpy) for b in found)  # type: ignore[no-untyped-call]

    @functools.cached_property
    def model(self) -> Model:
        """The programs with semaphores, loaded on the simulated device.

        Several cores run by the reference executor, which finds races between them.
        """
        programs: tuple[Program, ...] = self.traced.programs
        neff = Neff(tuple(insert_semaphores(program) for program in programs))
        return load(neff, device="reference" if len(programs) > 1 else "host")

    def run(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        """The results, computed on the simulated device."""
        return tuple(self.model(*(np.asarray(each) for each in arrays)))

    def __repr__(self) -> str:
        return self.name


def call(kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results of a kernel, as values of the function being traced.

    All arrays among the arguments are operands, everything else is a constant of the kernel. Writes
    to arguments are not visible outside. BadLaunch for a scalar that is traced; raises
    what tracing the kernel raises.
    """
    operands: dict[int, Any] = {}
    shaped = map_leaves([args, kwargs], lambda each: _shaped(each, operands, kernel))
    launch = bind(kernel.function, *shaped)
    target = model_target()
    key = program_key(launch, target.name, *kernel.identity)
    trace = _trace if key is not None else _trace.__wrapped__
    found = trace(_Request(key, target.name, kernel, launch))
    if not found.traced.results:
        problem = "it returns nothing, and what it writes to arguments is lost in a function of JAX"
        raise BadLaunch(kernel=found.name, problem=problem)
    if found.traced.printed:
        text = f"{found.name} calls nl.device_print, which shows nothing in a function of JAX"
        warnings.warn(text, stacklevel=4)
    given = _as_varying([operands[id(each)] for each in launch.given.values()])
    values = nki_call.bind(*given, kernel=found)  # type: ignore[no-untyped-call]
    traced = found.traced
    return restore_structure(traced.structure, list(values[: len(traced.results)]))


def _as_varying(operands: Sequence[Any]) -> list[Any]:
    """Operands that vary over the same axes of a mesh, in a shard_map."""
    axes = _varying_axes(map(jax.typeof, operands))
    missing = [tuple(sorted(axes - _varying_axes([jax.typeof(x)]))) for x in operands]
    return [
        jax.lax.pcast(x, names, to="varying") if names else x
        for x, names in zip(operands, missing, strict=True)
    ]


def _varying_axes(types: Iterable[Any]) -> frozenset[str]:
    return frozenset().union(*(each.manual_axis_type.varying for each in types))


@functools.lru_cache(maxsize=MAX_TRACED_KERNELS)
def _trace(request: _Request) -> TracedKernel:
    target = get_target(request.target)
    return TracedKernel(request.kernel.traced_launch(request.launch, target, synchronises=False))


def _shaped(value: Any, operands: dict[int, Any], kernel: Kernel) -> Any:
    """An argument, or zeros for an array, which is put in `operands` by the id of the zeros."""
    if not framework_of(value):
        return value
    if isinstance(value, jax.core.Tracer) and not value.shape:
        name = getattr(kernel.function, "__name__", "kernel")
        problem = (
            "a scalar is a constant of the program, and JAX traces this one; make it static "
            "(static_argnums, static_argnames), or an array with a dimension"
        )
        raise BadLaunch(kernel=name, problem=problem)
    stand_in = np.zeros(value.shape, value.dtype)
    operands[id(stand_in)] = value
    return stand_in


# --- the operation -------------------------------------------------------------------------------

nki_call = Primitive("nki_call")
nki_call.multiple_results = True


@nki_call.def_impl  # type: ignore[untyped-decorator]  # jax has no annotation
def _run(*arrays: Any, kernel: TracedKernel) -> list[Any]:
    return [jnp.asarray(each) for each in kernel.run(*arrays)]


@nki_call.def_abstract_eval  # type: ignore[untyped-decorator]  # jax has no annotation
def _results(*operands: Any, kernel: TracedKernel) -> list[Any]:
    return [_result_type(operands, each) for each in kernel.results]


def _result_type(operands: Sequence[Any], result: jax.ShapeDtypeStruct) -> Any:
    """The type of a result that varies over the axes of a mesh over which all operands do."""
    if not operands:
        return jax.core.ShapedArray(result.shape, result.dtype)
    spec = PartitionSpec(*[None] * len(result.shape))  # type: ignore[no-untyped-call]
    whole = operands[0].sharding.update(spec=spec)
    return operands[0].update(
        shape=result.shape, dtype=result.dtype, weak_type=False, sharding=whole
    )


def _for_device(*operands: Any, kernel: TracedKernel) -> Sequence[Any]:
    called = jax.ffi.ffi_call(
        KERNEL,
        kernel.results,
        custom_call_api_version=RAW_CONFIG,
        legacy_backend_config=kernel.config,
    )
    results: Sequence[Any] = called(*operands)
    return results


def _for_host(*operands: Any, kernel: TracedKernel) -> Sequence[Any]:
    def computed(*operands: Any, config: str) -> Sequence[Any]:
        return jax.pure_callback(kernel.run, kernel.results, *operands)  # type: ignore[no-any-return]

    composite = jax.lax.composite(computed, COMPOSITE)
    results: Sequence[Any] = composite(*operands, config=kernel.config)
    return results


mlir.register_lowering(nki_call, mlir.lower_fun(_for_device, multiple_results=True))
mlir.register_lowering(nki_call, mlir.lower_fun(_for_host, multiple_results=True), platform="cpu")


def _batched(
    operands: Sequence[Any], dims: Sequence[Any], *, kernel: TracedKernel
) -> tuple[Sequence[Any], list[int]]:
    """A sequential loop of calls over the batch dimension."""
    is_batched = [dim is not None for dim in dims]
    moved = [
        jnp.moveaxis(x, dim, 0) if batched else x
        for x, dim, batched in zip(operands, dims, is_batched, strict=True)
    ]

    def once(batch: list[Any]) -> Sequence[Any]:
        parts = iter(batch)
        given = [next(parts) if b else x for x, b in zip(moved, is_batched, strict=True)]
        return tuple(nki_call.bind(*given, kernel=kernel))  # type: ignore[no-untyped-call]

    results = jax.lax.map(once, [x for x, b in zip(moved, is_batched, strict=True) if b])
    return results, [0] * len(results)


batching.primitive_batchers[nki_call] = _batched


def _differentiated(
    operands: Sequence[Any], tangents: Sequence[Any], *, kernel: TracedKernel
) -> tuple[Sequence[Any], list[Any]]:
    """NoDerivative, unless all tangents are zero."""
    if not all(isinstance(each, ad.Zero) for each in tangents):
        raise NoDerivative(kernel=kernel.name)
    results = nki_call.bind(*operands, kernel=kernel)  # type: ignore[no-untyped-call]
    return results, [ad.Zero.from_primal_value(each) for each in results]  # type: ignore[attr-defined]


ad.primitive_jvps[nki_call] = _differentiated
