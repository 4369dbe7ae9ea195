"""What a kernel imports as `nisa`: one function for each documented instruction that glia has.

A function takes its rules, its engines and most defaults from the declaration of the instruction;
only the documented names and order of parameters are said here.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import numpy as np

from glia import isa
from glia.base.loc import Loc
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern
from glia.machine.emit.builder import QUEUE_OWNERS
from glia.machine.legal import violations
from glia.nki.errors import BrokenRule, NotInNki
from glia.nki.language import Op
from glia.nki.recorder import Recorder, caller, current
from glia.nki.tensor import NkiTensor

Arguments = dict[str, Any]
Prepare = Callable[[Arguments, Recorder], Arguments]


class engine(Enum):  # noqa: N801  the documented name
    """Which engine runs an instruction; `unknown` leaves the choice to the compiler."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


unknown_engine = engine.unknown
tensor_engine = engine.tensor
scalar_engine = engine.scalar
gpsimd_engine = engine.gpsimd
vector_engine = engine.vector


class Function:
    """One nki.isa function; calling it checks the instruction's rules and records it.

    `parameters` are the documented names in order. `renamed` maps those that the declaration calls
    otherwise, `fixed` gives parameters that may only hold their default, `defaults` those whose
    default differs from the declaration's. `prepare` maps the arguments, by documented name, to
    those that the instruction takes.
    """

    def __init__(
        self,
        name: str,
        instruction: type[Instr],
        parameters: str,
        *,
        renamed: Mapping[str, str] | None = None,
        fixed: Mapping[str, Any] | None = None,
        defaults: Mapping[str, Any] | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        self.__name__ = name
        self.__doc__ = instruction.__doc__
        self.instruction = instruction
        self._renamed = renamed or {}
        self._fixed = fixed or {}
        self._prepare = prepare
        declared = {f.name: f.default for f in dataclasses.fields(instruction)}
        known = {**self._fixed, **(defaults or {}), "engine": engine.unknown}
        missing = dataclasses.MISSING

        def parameter(each: str) -> inspect.Parameter:
            default = known.get(each, declared.get(self._renamed.get(each, each), missing))
            empty = default is missing
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            default = inspect.Parameter.empty if empty else default
            return inspect.Parameter(each, kind, default=default)

        self.__signature__ = inspect.Signature([parameter(each) for each in parameters.split()])

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Record the instruction. BrokenRule when no engine may run it, NotInNki for arguments."""
        recorder = current(f"nki.isa.{self.__name__}")
        loc = caller()
        given = self._bind(args, kwargs, loc)
        chosen = given.pop("engine", engine.unknown)
        if not isinstance(chosen, engine):
            raise NotInNki(feature=f"engine {chosen!r}", loc=loc)
        if self._prepare is not None:
            given = self._prepare(given, recorder)
        fields = {
            name: _value(value, loc)
            for each, value in given.items()
            if (name := self._renamed.get(each, each)) in self.instruction.operand_declarations
            or value is not None
        }
        recorder.add(self._choose(fields, chosen, recorder, loc))

    def _bind(self, args: tuple[Any, ...], kwargs: Arguments, loc: Loc) -> Arguments:
        try:
            bound = self.__signature__.bind(*args, **kwargs)
        except TypeError as problem:
            raise NotInNki(feature=f"nki.isa.{self.__name__}: {problem}", loc=loc) from problem
        bound.apply_defaults()
        given = dict(bound.arguments)
        for name, default in self._fixed.items():
            if (value := given.pop(name)) != default:
                feature = f"nki.isa.{self.__name__} with {name}={value!r}"
                raise NotInNki(feature=feature, loc=loc)
        return given

    def _choose(self, fields: Arguments, chosen: engine, recorder: Recorder, loc: Loc) -> Instr:
        """The instruction on the engine asked for, or on the first legal one, exact ones first."""
        kind = self.instruction
        names = kind.engines if chosen is engine.unknown else (chosen.name,)
        if kind.arrives_by_dma:
            names, fields = _queued(fields, chosen)
        candidates = [kind(**fields, on=name, loc=loc) for name in names]
        broken = [self._broken(each, recorder) for each in candidates]
        legal = [each for each, found in zip(candidates, broken, strict=True) if not found]
        if not legal:
            name = f"nki.isa.{self.__name__}"
            raise BrokenRule(rule=broken[0][0], function=self.__name__, instruction=name, loc=loc)
        return next((each for each in legal if each.is_exact), legal[0])

    def _broken(self, instruction: Instr, recorder: Recorder) -> list[str]:
        try:
            return violations(instruction, recorder.target.arch)
        except (TypeError, ValueError) as problem:
            return [f"an argument has the wrong type: {problem}"]


def _queued(fields: Arguments, chosen: engine) -> tuple[tuple[str, ...], Arguments]:
    """The engine that issues a transfer and its queue, which belongs to that engine alone."""
    if chosen is not engine.unknown:
        return (chosen.name,), {**fields, "queue": f"dma.{chosen.name}"}
    dst = fields["dst"]
    is_store = isinstance(dst, Pattern) and dst.memory is Memory.HBM
    queue = "store" if is_store else "load"
    return (QUEUE_OWNERS[queue],), {**fields, "queue": queue}


def _value(value: Any, loc: Loc) -> Any:
    """An argument as the instruction takes it."""
    if isinstance(value, NkiTensor):
        return value.pattern
    if isinstance(value, Op):
        return value.name
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return tuple(_value(each, loc) for each in value)
    if value is None or isinstance(value, int | float | str):
        return value
    raise NotInNki(feature=f"an argument of type {type(value).__name__}", loc=loc)


def _accumulate(given: Arguments, recorder: Recorder) -> Arguments:
    """accumulate=None adds to what products have written before, and overwrites anything else."""
    dst = given["dst"]
    if given["accumulate"] is not None or not isinstance(dst, NkiTensor):
        return given
    if dst.buffer.memory is not Memory.PSUM:
        return {**given, "accumulate": False}
    has_sum = recorder.has_sum(dst.pattern)
    if has_sum is None:
        feature = "nki.isa.nc_matmul with accumulate=None onto elements of which some hold a sum"
        raise NotInNki(feature=feature, loc=caller())
    return {**given, "accumulate": has_sum}


def _reduced_axes(given: Arguments, _: Recorder) -> Arguments:
    """`axis` (one or several) as the number of innermost dimensions."""
    axis, data = given.pop("axis"), given["data"]
    del given["keepdims"]  # the shape of dst says it
    axes = axis if isinstance(axis, list | tuple) else (axis,)
    rank = data.ndim if isinstance(data, NkiTensor) else 0
    is_known = all(isinstance(each, int) for each in axes)
    found = sorted(each + rank if each < 0 else each for each in axes) if is_known else []
    if not found or found != list(range(rank - len(found), rank)):
        feature = f"nki.isa.tensor_reduce over axis {axis!r} of {rank} (not the last ones)"
        raise NotInNki(feature=feature, loc=caller())
    return {**given, "axes": len(found)}


def _iota_steps(given: Arguments, _: Recorder) -> Arguments:
    """`pattern`, a list of [step, count], as steps over dst in the shape of the counts."""
    pattern, dst = given.pop("pattern"), given["dst"]
    try:
        steps, counts = zip(*((int(step), int(count)) for step, count in pattern), strict=True)
    except (TypeError, ValueError) as problem:
        feature = f"nki.isa.iota with pattern {pattern!r} (not a list of [step, count])"
        raise NotInNki(feature=feature, loc=caller()) from problem
    if isinstance(dst, NkiTensor) and counts != dst.shape[1:]:
        if math.prod(counts) != math.prod(dst.shape[1:]):
            feature = f"nki.isa.iota of {math.prod(counts)} elements per partition into {dst.shape}"
            raise NotInNki(feature=feature, loc=caller())
        dst = dst.reshape((dst.shape[0], *counts))
    return {**given, "dst": dst, "steps": steps}


nc_matmul = Function(
    "nc_matmul",
    isa.NcMatmul,
    "dst stationary moving is_stationary_onezero is_moving_onezero is_transpose accumulate"
    " tile_position tile_size perf_mode",
    fixed={
        "is_stationary_onezero": False, "is_moving_onezero": False, "is_transpose": False,
        "tile_position": (), "tile_size": (), "perf_mode": "none",
    },
    defaults={"accumulate": None},
    prepare=_accumulate,
)  # fmt: skip
nc_transpose = Function("nc_transpose", isa.NcTranspose, "dst data engine")
activation = Function(
    "activation",
    isa.Activation,
    "dst op data bias scale reduce_op reduce_res reduce_cmd",
    renamed={"op": "function"},
    fixed={"reduce_op": None, "reduce_res": None, "reduce_cmd": None},
)
tensor_tensor = Function("tensor_tensor", isa.TensorTensor, "dst data1 data2 op engine")
tensor_scalar = Function(
    "tensor_scalar",
    isa.TensorScalar,
    "dst data op0 operand0 reverse0 op1 operand1 reverse1 engine",
)
scalar_tensor_tensor = Function(
    "scalar_tensor_tensor",
    isa.ScalarTensorTensor,
    "dst data op0 operand0 op1 operand1 reverse0 reverse1",
)
tensor_reduce = Function(
    "tensor_reduce",
    isa.TensorReduce,
    "dst op data axis negate keepdims",
    defaults={"keepdims": False},
    prepare=_reduced_axes,
)
tensor_copy = Function("tensor_copy", isa.TensorCopy, "dst src engine")
tensor_copy_predicated = Function(
    "tensor_copy_predicated",
    isa.TensorCopyPredicated,
    "dst src predicate reverse_pred",
    renamed={"reverse_pred": "reverse"},
)
reciprocal = Function("reciprocal", isa.Reciprocal, "dst data")
memset = Function("memset", isa.Memset, "dst value engine")
iota = Function("iota", isa.Iota, "dst pattern offset channel_multiplier", prepare=_iota_steps)
tensor_tensor_scan = Function(
    "tensor_tensor_scan",
    isa.TensorTensorScan,
    "dst data0 data1 initial op0 op1 reverse0 reverse1",
)
bn_stats = Function("bn_stats", isa.BnStats, "dst data")
bn_aggr = Function("bn_aggr", isa.BnAggr, "dst data")
max8 = Function("max8", isa.Max8, "dst src", renamed={"src": "data"})
dma_copy = Function(
    "dma_copy",
    isa.DmaCopy,
    "dst src priority oob_mode dge_mode engine",
    fixed={"priority": None, "oob_mode": None, "dge_mode": None},
)
nc_stream_shuffle = Function(
    "nc_stream_shuffle",
    isa.StreamShuffle,
    "dst src shuffle_mask",
    renamed={"shuffle_mask": "mask"},
)
tensor_partition_reduce = Function(
    "tensor_partition_reduce", isa.TensorPartitionReduce, "dst op data"
)


def __getattr__(name: str) -> Any:
    """What is not above is refused by name."""
    if name.startswith("_"):
        raise AttributeError(name)
    raise NotInNki(feature=f"nki.isa.{name}", loc=caller())
