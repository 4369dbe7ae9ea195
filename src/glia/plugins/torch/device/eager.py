"""Operators on tensors of the device: a program for each operator and its shapes, kept.

An operator becomes a graph of its own, which takes the way of all graphs: functions without side
effects, the table of ATen, the compiler. What an operator writes, its program returns, and is
copied to where it belongs. Four kinds of operators need no program: those that read no tensor are
constants or the generator's numbers, made by the host; those whose results are no tensors are
read by the host; `memory_operators` has those that move or set memory; and what the device lacks
runs on the host, with a warning.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from glia.base.errors import CompileError
from glia.cc_flags import environment_flags
from glia.plugins.torch.aten.families import TABLE
from glia.plugins.torch.device.device_memory import (
    as_host,
    check_devices,
    checked_index,
    is_on_device,
    on_device,
)
from glia.plugins.torch.device.registration import enter
from glia.plugins.torch.lowering import decompositions, lower
from glia.plugins.torch.program import Options, Program

aten = torch.ops.aten

LEVEL = 1  # of optimization, where NEURON_CC_FLAGS names none: programs are small, and many

_WIDE = {torch.float64: torch.float32, torch.complex128: torch.complex64}

_DATA_DECIDES = (DynamicOutputShapeException, DataDependentOutputException)
# What tracing raises for arguments that PyTorch refuses, and for what it does not describe
_UNTRACEABLE = (RuntimeError, ValueError, TypeError, IndexError)


class HostFallback(UserWarning):
    """The device lacks an operator, which runs on the host."""


# --- what an operator's schema says ---------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Argument:
    """Where an argument of an operator is, and whether it is only there for a result."""

    place: int
    name: str
    is_out: bool = False

    def of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The argument in a call."""
        return args[self.place] if self.place < len(args) else kwargs.get(self.name)

    def replaced(self, args: Sequence[Any], kwargs: Mapping[str, Any], value: Any) -> Any:
        """The arguments of a call with another value at this place."""
        if self.place < len(args):
            return [*args[: self.place], value, *args[self.place + 1 :]], kwargs
        return args, {**kwargs, self.name: value}


@dataclasses.dataclass(frozen=True)
class Scaled:
    """An operator with a scalar argument, and what it computes where that is a tensor."""

    scalar: Argument
    computed: Callable[..., torch.Tensor]


SCALED = {
    "aten::addcdiv": Scaled(Argument(3, "value"), lambda x, a, b, value: x + value * (a / b)),
    "aten::addcmul": Scaled(Argument(3, "value"), lambda x, a, b, value: x + value * (a * b)),
    "aten::add": Scaled(Argument(2, "alpha"), lambda x, y, value: x + value * y),
    "aten::sub": Scaled(Argument(2, "alpha"), lambda x, y, value: x - value * y),
}


@dataclasses.dataclass(frozen=True)
class OperatorForm:
    """What the schema of an operator says.

    `results` has for each result the written argument that it is, or None. `overwritten` are those
    written arguments that are not read. `numbers` are arguments whose numbers are inputs of a
    program: they may change from step to step, as an optimizer's do.
    """

    written: tuple[Argument, ...]
    results: tuple[Argument | None, ...]
    overwritten: tuple[Argument, ...]
    returns_tensors: bool
    writes_lists: bool
    numbers: tuple[Argument, ...]
    scaled: Scaled | None

    def new_values(self, found: Any) -> list[Any]:
        """The new values among the results of a call."""
        several = found if len(self.results) > 1 else (found,) if self.results else ()
        return [each for each, old in zip(several, self.results, strict=True) if old is None]

    def returned(self, fresh: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a call returns, of new values and of arguments that it has written."""
        supply = iter(fresh)
        values = [each.of(args, kwargs) if each else next(supply) for each in self.results]
        return None if not values else values[0] if len(values) == 1 else tuple(values)


@functools.cache
def form_of(operator: Any) -> OperatorForm:
    """The form of an operator."""
    schema = operator._schema
    written: dict[str, Argument] = {}
    lists = False
    for place, each in enumerate(schema.arguments):
        if each.alias_info is not None and each.alias_info.is_write:
            # A list has no letter
            letter = next(iter(each.alias_info.before_set), each.name)
            written[letter] = Argument(place, each.name, each.is_out)
            lists |= "List" in str(each.type)
    draws = torch.Tag.nondeterministic_seeded in operator.tags
    aliases = [each.alias_info for each in schema.returns]
    letters = [next(iter(each.before_set), "") if each else "" for each in aliases]
    numbers = [
        Argument(place, each.name)
        for place, each in enumerate(schema.arguments)
        if str(each.type) == "Tensor" and each.alias_info is None
    ]
    scaled = SCALED.get(schema.name.removesuffix("_"))
    if scaled and scaled.scalar.name in {each.name for each in schema.arguments}:
        numbers.append(scaled.scalar)
    return OperatorForm(
        written=tuple(written.values()),
        results=tuple(written.get(letter) for letter in letters),
        overwritten=tuple(each for each in written.values() if each.is_out or draws),
        returns_tensors=not letters or any("Tensor" in str(r.type) for r in schema.returns),
        writes_lists=lists,
        numbers=tuple(numbers),
        scaled=scaled,
    )


# --- calls ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class EagerCall:
    """A call of an operator.

    `inputs` are its arguments, in which numbers that may change are tensors of the host, and
    `tensors` the tensors among these, in order.
    """

    operator: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    inputs: tuple[Sequence[Any], Mapping[str, Any]]
    tensors: list[torch.Tensor]

    def core(self) -> int:
        """The core on which the results are."""
        if (device := self.kwargs.get("device")) is not None:
            return checked_index(device)
        return next((t.device.index for t in self.tensors if is_on_device(t)), 0)


Run = Callable[[EagerCall], Any]
_RUNS: dict[tuple[Any, ...], Run] = {}


def run(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """The results of an operator for arguments of which some are on the device."""
    inputs = args, kwargs
    form = form_of(operator)
    if form.writes_lists and len(args[0]) != 1:
        return _run_for_each(operator, args, kwargs)
    for each in form.numbers:
        if type(number := each.of(args, kwargs)) is float and _has_dimensions(args):
            inputs = each.replaced(*inputs, torch.tensor(number, dtype=torch.float32))
    tensors: list[torch.Tensor] = []
    named = tuple(inputs[1].items())
    key = (operator, _described(inputs[0], tensors), _described(named, tensors))
    call = EagerCall(operator, args, kwargs, inputs, tensors)
    found = _RUNS.get(key)
    if found is None:
        found = _RUNS[key] = _run_of(call)
    return found(call)


def _run_for_each(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Run an operator for each tensor of the lists that it writes: one program for each shape.

    Those that PyTorch does not compose itself are steps of optimizers, of one tensor at a time.
    """
    for place in range(len(args[0])):
        parts = [each[place : place + 1] if isinstance(each, list) else each for each in args]
        run(operator, *parts, **kwargs)


def _has_dimensions(args: Sequence[Any]) -> bool:
    """Whether a tensor decides the dtype in which numbers are taken."""
    return any(isinstance(each, torch.Tensor) and each.dim() for each in args)


def _described(value: Any, tensors: list[torch.Tensor]) -> Any:
    """What of arguments decides the program; their tensors are added to a list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return value.dtype, value.shape, value.device
    if isinstance(value, tuple | list):
        return tuple([_described(each, tensors) for each in value])
    return type(value), value


def _run_of(call: EagerCall) -> Run:
    """How calls like this one run."""
    form = form_of(call.operator)
    results = [each.of(call.args, call.kwargs) for each in form.overwritten]
    reads = [t for t in call.tensors if not any(t is each for each in results)]
    if not reads or not form.returns_tensors:
        return run_on_host
    if "index" not in call.operator.__name__:  # indices may be the host's
        check_devices(str(call.operator), call.tensors)
    try:
        return _Compiled(call)
    except CompileError as problem:
        return _Unavailable(str(problem).splitlines()[0])
    except _DATA_DECIDES:
        return _Unavailable("data decides the shape of its result")
    except _UNTRACEABLE as problem:
        return _Unavailable((str(problem).strip() or type(problem).__name__).splitlines()[0])


# --- on the host ----------------------------------------------------------------------------------


def run_on_host(call: EagerCall) -> Any:
    """The results of an operator that the host computes in the device's memory."""
    form, core = form_of(call.operator), call.core()
    args, kwargs = tree_map(_for_host, (tuple(call.args), dict(call.kwargs)))
    outs = [each for each in form.written if each.is_out]
    for each in outs:
        # What is imported cannot grow
        fresh = tree_map(torch.empty_like, each.of(args, kwargs))
        args, kwargs = each.replaced(args, kwargs, fresh)
    found = call.operator(*args, **kwargs)
    for each in outs:
        _store(each.of(args, kwargs), each.of(call.args, call.kwargs))
    fresh = [_for_device(each, core) for each in form.new_values(found)]
    return form.returned(fresh, call.args, call.kwargs)


def _store(value: torch.Tensor, target: torch.Tensor) -> None:
    """Copy a tensor of the host to one of the device, which gets its shape."""
    if target.shape != value.shape:
        target.resize_(value.shape)
    as_host(target).copy_(value)


def _for_host(value: Any) -> Any:
    if is_on_device(value):
        return as_host(value)
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _for_device(value: Any, core: int) -> Any:
    return tree_map(lambda v: on_device(v, core) if isinstance(v, torch.Tensor) else v, value)


_REPORTED: set[str] = set()


class _Unavailable:
    """An operator that the device lacks: it runs on the host, which is said once."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __call__(self, call: EagerCall) -> Any:
        """The results; a warning follows them, since PyTorch may refuse the call."""
        found = run_on_host(call)
        if (name := str(call.operator)) not in _REPORTED:
            _REPORTED.add(name)
            text = f"{name} runs on the host, since the device lacks it: {self._reason}"
            warnings.warn(text, HostFallback, stacklevel=_users_level())
        return found


def _users_level() -> int:
    """How far up the stack, from the caller's view, the code is that is no part of this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(__package__):
        frame, level = frame.f_back, level + 1
    return level


# --- on the device --------------------------------------------------------------------------------


class _Compiled:
    """An operator compiled for the shapes of a call."""

    def __init__(self, call: EagerCall) -> None:
        self._form = form_of(call.operator)
        self._dtypes = [_narrowed(t) for t in call.tensors]
        self._structure: Any = None
        with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
            graph = self._graph(call)
        lowered = lower(graph, str(call.operator).replace(".", "_"))
        self._program = Program(lowered, _options(), title=str(call.operator))

    def __call__(self, call: EagerCall) -> Any:
        """The results; arguments that the operator writes are written."""
        given = [
            t if t.dtype is dtype else t.to(dtype)
            for t, dtype in zip(call.tensors, self._dtypes, strict=True)
        ]
        values = self._program(given)
        targets = tree_leaves([each.of(call.args, call.kwargs) for each in self._form.written])
        count = len(values) - len(targets)
        for target, value in zip(targets, values[count:], strict=True):
            _store(value, target)
        core = call.core()
        moved = [on_device(v, core) if isinstance(v, torch.Tensor) else v for v in values[:count]]
        fresh = tree_unflatten(moved, self._structure)
        return self._form.returned(fresh, call.args, call.kwargs)

    def _graph(self, call: EagerCall) -> Any:
        """The graph of new results, and then of what the written arguments become."""
        with FakeTensorMode():
            kinds = zip(call.tensors, self._dtypes, strict=True)
            fakes = [torch.empty(t.shape, dtype=dtype) for t, dtype in kinds]
            pure = functools.partial(self._pure, call)
            plain = torch.func.functionalize(pure, remove="mutations")
            graph = make_fx(plain, decomposition_table=decompositions())(*fakes)
        graph.graph.eliminate_dead_code()
        return graph

    def _pure(self, call: EagerCall, *tensors: torch.Tensor) -> list[Any]:
        """The operator as a function that writes nothing of what it is given."""
        supply = iter(tensors)
        args, kwargs = tree_map(
            lambda v: next(supply) if isinstance(v, torch.Tensor) else _for_host(v), call.inputs
        )
        for each in self._form.written:
            new = tree_map(torch.empty_like if each.is_out else torch.clone, each.of(args, kwargs))
            args, kwargs = each.replaced(args, kwargs, new)
        found = self._computed(call.operator, args, kwargs)
        fresh = self._form.new_values(found)
        flat, self._structure = tree_flatten(fresh)
        return [*flat, *tree_leaves([each.of(args, kwargs) for each in self._form.written])]

    def _computed(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The results of the operator, which may have written arguments."""
        if self._form.writes_lists:
            return self._written(operator, args, kwargs)
        scaled = self._form.scaled
        scalar = scaled.scalar.of(args, kwargs) if scaled else None
        if scaled is None or not isinstance(scalar, torch.Tensor):
            return operator(*args, **kwargs)
        operands = args[: scaled.scalar.place]
        value = scaled.computed(*operands, scalar).to(operands[0].dtype)
        for each in self._form.written:
            value = each.of(args, kwargs).copy_(value)
        return value

    def _written(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Write what the operator without side effects returns, also of lists that are empty.

        PyTorch derives it only where none is.
        """
        packet, overload = operator._schema.name.removeprefix("aten::"), operator._overloadname
        pure = getattr(getattr(aten, packet.removesuffix("_")), overload)
        found = decompositions()[pure](*args, **kwargs)
        for each, value in zip(self._form.written, found, strict=True):
            tree_map(torch.Tensor.copy_, each.of(args, kwargs), value)


def _narrowed(tensor: torch.Tensor) -> torch.dtype:
    """The dtype of a tensor for a program; a number of the host is no wider than the device's."""
    is_number = not tensor.dim() and not is_on_device(tensor)
    return _WIDE.get(tensor.dtype, tensor.dtype) if is_number else tensor.dtype


def _options() -> Options:
    """Compile options of an operator."""
    return {} if "optlevel" in environment_flags().options else {"optlevel": LEVEL}


# --- registration ---------------------------------------------------------------------------------


def _batch_norm(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any, *rest: Any
) -> Any:
    """native_batch_norm, whose schema does not say that it writes the running statistics."""
    if mean is None:
        return run(aten._native_batch_norm_legit.no_stats, x, weight, bias, *rest)
    return run(aten._native_batch_norm_legit.default, x, weight, bias, mean, variance, *rest)


def _histc(x: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
    """histc, which PyTorch describes for integers on some devices only."""
    if x.is_floating_point():
        found: torch.Tensor = run(aten.histc.default, x, *rest, **options)
        return found
    return _histc(x.float(), *rest, **options).to(x.dtype)


_STEPS = (aten._fused_adam_, aten._fused_adamw_, aten._fused_sgd_, aten._fused_adagrad_)


def _step(packet: Any) -> Callable[..., None]:
    """A step of an optimizer, whose rate may change from step to step."""

    def call(*lists: Any, lr: float, **options: Any) -> None:
        run(packet.tensor_lr, *lists, lr=torch.tensor(lr, dtype=torch.float32), **options)

    return call


@functools.cache
def register_operators() -> torch.library.Library:
    """Enter the operators of the table as the device's own.

    PyTorch would compose some of others, and gives the rest room for their results first.
    """
    library = torch.library.Library("aten", "IMPL")
    enter(library, "native_batch_norm", _batch_norm)
    enter(library, "histc", _histc)
    for packet in _STEPS:
        enter(library, packet.default, _step(packet))
    for operator in TABLE:
        if operator.namespace == "aten" and _is_own(operator):
            enter(library, operator, functools.partial(run, operator))
    return library


def _is_own(operator: Any) -> bool:
    """Whether the device has an operator of its own: no view, nothing that makes memory.

    Gradients of operators that PyTorch composes of others are those of the others.
    """
    schema = operator._schema
    name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
    has_kernel = functools.partial(torch._C._dispatch_has_kernel_for_dispatch_key, name)
    arguments = schema.arguments
    return not (
        has_kernel("CompositeImplicitAutograd")
        or has_kernel("PrivateUse1")
        or any(each.alias_info for each in (*arguments, *schema.returns))
        or any(each.name == "device" for each in arguments)
        or not any("Tensor" in str(each.type) for each in arguments)
        or torch.Tag.nondeterministic_seeded in operator.tags
    )
