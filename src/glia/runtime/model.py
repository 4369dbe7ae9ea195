"""Load a compiled model and run it on the simulated device."""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from glia.arch import get_target
from glia.base.errors import Unspecified
from glia.base.loc import stacklevel_of_caller
from glia.isa.operand import Memory
from glia.machine.ir import Binding, Program
from glia.machine.merge_cores import joined_program
from glia.neff.errors import NotANeff
from glia.neff.metadata import deferred_constants
from glia.neff.package import Neff
from glia.runtime.borrowed import borrowed, is_array
from glia.runtime.errors import (
    DeviceMemoryExhausted,
    NotEnoughCores,
    ProgramFault,
    UndocumentedResult,
    UnknownDevice,
    UnusableInput,
    WrongDType,
    WrongInputs,
    WrongRanks,
    WrongShape,
)
from glia.runtime.recording import note_run
from glia.sim.assumptions import not_modelled
from glia.sim.notifications import Notifications
from glia.sim.policy import DEVICE_VARIABLE, ExecutionFault
from glia.sim.ranks.process_devices import PROCESS_DEVICES, one_program

if TYPE_CHECKING:
    from glia.profile.report import Profile
    from glia.runtime.bound import BoundModel
    from glia.sim.host.host_program import HostReport
    from glia.sim.ranks.world import World


class OutOfBoundAccess(UserWarning):
    """An index in the input data was outside of its table; the run went on as HLO defines."""


Arrays = Mapping[str, np.ndarray]
Executor = Callable[[Sequence[Program], Arrays, Notifications], Arrays]
RankExecutor = Callable[[Sequence[Program], Sequence[Arrays], Notifications], Sequence[Arrays]]

_PROFILER = "glia.profile.report:profile_programs"
_RANK_PROFILER = "glia.profile.report:profile_ranks"
_GROUPS = "glia.profile.group_text:groups_of"
_BOUND = "glia.runtime.bound:BoundModel"
_CHECKED = "glia.sim.host.check.checked_run:run_checked"
_HOST_PREPARATION = "glia.sim.host.host_program:prepare_where_planned"
_HOST_REPORT = "glia.sim.host.host_program:host_report"
# How a program can be executed, the default first: in program order, as machine code of the host
# or by the declared meanings; or with engines and queues running ahead as far as semaphores let
# them, which exposes missing synchronisation.
DEVICES = {
    "host": "glia.sim.host.host_program:run_on_host",
    "reference": "glia.sim.order.concurrent:run_programs",
    "adversarial": "glia.sim.order.concurrent:run_strictly",
}
RANK_DEVICES = {
    "reference": "glia.sim.ranks.rank_threads:run_ranks",
    "adversarial": "glia.sim.ranks.rank_threads:run_ranks_strictly",
    "host": "glia.sim.host.host_program:run_ranks_on_host",
}

_PROCESSES = "glia.sim.ranks.rank_processes:run_ranks_in_processes"
_OVER_MPI = "glia.sim.ranks.mpi_ranks:run_ranks_over_mpi"
LARGE_RANKS_BYTES = 4 << 30  # of all ranks: then each has a process, which is named if it is lost


class Model:
    """A compiled model on a device; calling it runs it. Inputs are never written to.

    An input that an output aliases (a state) is functional here: its new value is the output, and
    the caller passes it in again.
    """

    def __init__(
        self,
        neff: Neff,
        device: str,
        *,
        is_checked: bool = False,
        rank_processes: bool | None = None,
    ) -> None:
        self.neff = neff
        self.device = device
        self.is_checked = is_checked
        self.rank_processes = rank_processes
        self.notifications = Notifications()  # of the latest run
        self.warns_of_indices = True

    def __repr__(self) -> str:
        return f"<model of {self.neff!r} on device {self.device}>"

    def _repr_html_(self) -> str:
        """A summary for notebooks."""
        facts = [("device", self.device)]
        if self.notifications.total:
            facts.append(("notifications of the latest run", f"{self.notifications.total:,}"))
        return self.neff.describe_html(f"Model {self.neff.name}", facts)

    @property
    def inputs(self) -> tuple[Binding, ...]:
        """Name, shape and dtype of every input, in order."""
        return self.neff.inputs

    @property
    def outputs(self) -> tuple[Binding, ...]:
        """Name, shape and dtype of every output, in order."""
        return self.neff.outputs

    @property
    def ranks(self) -> int:
        """How many ranks run the model together."""
        return self.neff.ranks

    @property
    def not_modelled(self) -> tuple[str, ...]:
        """Assumptions behind the results; for those behind times see `profile`."""
        return not_modelled(*self.neff.programs)

    @property
    def aliases(self) -> dict[str, str]:
        """Inputs that an output is computed in the place of, if they are donated: name to name."""
        places = {binding.tile.name: binding.name for binding in reversed(self.outputs)}
        return {b.name: places[b.tile.name] for b in self.inputs if b.tile.name in places}

    @property
    def host_report(self) -> HostReport:
        """What device "host" runs as machine code, and what by NumPy and why."""
        report: HostReport = import_object(_HOST_REPORT)(self.neff.programs)
        return report

    @property
    def deferred_bytes(self) -> int:
        """Bytes of weights that each execution loads at its start (fast context switch)."""
        return sum(
            program.constants[name].nbytes
            for program in self.neff.programs
            for name in deferred_constants(program, self.neff.options)
        )

    @property
    def loaded_bytes(self) -> int:
        """Bytes of weights that are loaded with the model, before its first execution."""
        programs = self.neff.programs
        weights = sum(array.nbytes for each in programs for array in each.constants.values())
        return weights - self.deferred_bytes

    def __call__(self, *arrays: Any) -> list[np.ndarray]:
        """Run on arrays in the order of `inputs`; the outputs in the order of `outputs`.

        Arrays of NumPy, JAX, PyTorch and others are read where they lie if they are row-major on
        the host; the outputs are new NumPy arrays, large ones in memory of earlier results to which
        no array refers any more. An index outside its table does not stop the run: it is in
        `notifications`, and an OutOfBoundAccess warns of it. Raises WrongInputs, WrongShape,
        WrongDType, WrongRanks, UnusableInput or DeviceMemoryExhausted.
        """
        results = self.run(self._by_name(arrays))
        return list(results.values())

    def run(self, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run on arrays by input name; the outputs by name. Errors and warnings as for a call."""
        self._require_one_rank("run_ranks with the arrays of each rank")
        checked = self._check(arrays)
        with self.running() as notifications:
            results = self.execute(checked, notifications)
        return {binding.name: results[binding.name] for binding in self.outputs}

    def run_ranks(self, ranks: Sequence[Sequence[Any]]) -> list[list[np.ndarray]]:
        """Run all ranks together, each on arrays in the order of `inputs`; the outputs of each.

        Ranks come in order: the partitions of the first replica, those of the second, and so on.
        Raises what a call raises, and RanksDisagree or RankMissing where ranks do not meet.
        """
        found = self.run_ranks_by_name([self._by_name(arrays) for arrays in ranks])
        return [[results[binding.name] for binding in self.outputs] for results in found]

    def run_ranks_by_name(self, ranks: Sequence[Mapping[str, Any]]) -> list[dict[str, np.ndarray]]:
        """Run all ranks on arrays by input name; the outputs of each by name."""
        if len(ranks) != self.ranks:
            cure = f"give the arrays of {self.ranks} ranks, replicas before partitions"
            raise WrongRanks(needed=self.ranks, given=len(ranks), cure=cure)
        if self.ranks == 1:
            return [self.run(ranks[0])]
        checked = [self._check(arrays) for arrays in ranks]
        executor = self._rank_executor()
        with self.running() as notifications:
            found = executor(self.neff.programs, checked, notifications)
        return [{b.name: results[b.name] for b in self.outputs} for results in found]

    def run_share_by_name(
        self, world: World, ranks: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, np.ndarray]]:
        """Run this process's share of the ranks, `world.share(self.ranks)`, on arrays by name.

        The outputs of all ranks by name in the first process, where failures are raised too; none
        in others. Raises what `run_ranks` raises, RankLost, WrongProcesses and DifferentPrograms.
        """
        checked = [self._check(arrays) for arrays in ranks]
        executor = import_object(_OVER_MPI)
        with self.running() as notifications:
            found = executor(
                world, self.neff.programs, self.ranks, checked, notifications, device=self.device
            )
        return [{b.name: results[b.name] for b in self.outputs} for results in found]

    def _rank_executor(self) -> RankExecutor:
        """What runs all ranks: in threads, or in processes where that was asked for or is due."""
        is_apart = self.rank_processes
        if is_apart is None and self.device in PROCESS_DEVICES:
            joined = joined_program(self.neff.programs)
            held = 0 if joined is None else device_bytes(joined)
            is_apart = self.ranks * held > LARGE_RANKS_BYTES
        if is_apart:
            return functools.partial(import_object(_PROCESSES), device=self.device)
        executor: RankExecutor = import_object(RANK_DEVICES[self.device])
        return executor

    def _require_one_rank(self, instead: str) -> None:
        """Raise WrongRanks for a model of several ranks; `instead` is what to call."""
        if self.ranks != 1:
            raise WrongRanks(needed=self.ranks, given=1, cure=f"call {instead}")

    def bind(self, *, donated: Collection[str] = (), reuses_outputs: bool = False) -> BoundModel:
        """A callable for many calls, with a few microseconds beside the run itself.

        `donated` names inputs of `aliases` that are updated in place: the caller's array becomes
        the output. With `reuses_outputs`, outputs are the same arrays in every call. Raises
        WrongInputs for a donated input that is not among `aliases`.
        """
        self._require_one_rank("run_ranks, which needs no binding")
        bound: type[BoundModel] = import_object(_BOUND)
        return bound(self, donated, reuses_outputs=reuses_outputs)

    def execute(self, arrays: Arrays, notifications: Notifications) -> Arrays:
        """Run on arrays that have been checked, by the executor of the device."""
        executor: Executor = import_object(_CHECKED if self.is_checked else DEVICES[self.device])
        return executor(self.neff.programs, arrays, notifications)

    @contextmanager
    def running(self) -> Iterator[Notifications]:
        """Around a run: what it reports; its failures get codes, and indices a warning."""
        self.notifications = notifications = Notifications()
        note_run(self)
        with _coded_failures(self.neff):
            yield notifications
        if notifications.total and self.warns_of_indices:
            warn_of(notifications)

    def profile(
        self, *arrays: np.ndarray, events: int | None = None, ranks: int | None = None
    ) -> Profile:
        """The simulated time of one execution on all cores; `arrays` are checked if given.

        With `events`, no iteration of a loop is skipped, and each core keeps up to that many
        executions by themselves. With `ranks`, so many of the model's ranks are timed together,
        each with a time line of its own; else one stands for all. Raises WrongRanks for more than
        the model has.
        """
        if arrays:
            self._check(self._by_name(arrays))
        profile: Callable[..., Profile] = import_object(_PROFILER)
        with _coded_failures(self.neff):
            if ranks is None:
                found = profile(self.neff.programs, self.neff.target, events=events)
            else:
                found = self._profile_of_ranks(ranks, events)
        groups = import_object(_GROUPS)(self.neff.report)
        return self._with_deferred_loads(replace(found, groups=groups))

    def _profile_of_ranks(self, ranks: int, events: int | None) -> Profile:
        if not 1 <= ranks <= self.neff.ranks:
            cure = f"profile 1 to {self.neff.ranks} ranks"
            raise WrongRanks(needed=self.neff.ranks, given=ranks, cure=cure)
        profile: Callable[..., Profile] = import_object(_RANK_PROFILER)
        return profile(self.neff.programs, self.neff.target, ranks, events=events)

    def _with_deferred_loads(self, profile: Profile) -> Profile:
        """The profile, which says that the time of loading deferred weights is not in it."""
        if not self.deferred_bytes:
            return profile
        text = f"the load of {self.deferred_bytes} bytes of weights at the start of an execution"
        said = (*profile.timing.not_modelled, text)
        return replace(profile, timing=replace(profile.timing, not_modelled=said))

    def _by_name(self, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        if len(arrays) != len(self.inputs):
            self.reject(f"{len(arrays)} arrays were given")
        return {binding.name: a for binding, a in zip(self.inputs, arrays, strict=True)}

    def _check(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        expected = {binding.name for binding in self.inputs}
        if missing := [binding.name for binding in self.inputs if binding.name not in arrays]:
            self.reject(f"input {missing[0]!r} is missing")
        if unknown := [name for name in arrays if name not in expected]:
            self.reject(f"there is no input {unknown[0]!r}")
        return {
            binding.name: convert_input(binding, arrays[binding.name]) for binding in self.inputs
        }

    def reject(self, problem: str) -> None:
        """Raise WrongInputs."""
        raise WrongInputs(problem=problem, expected=describe_tensors(self.inputs))


@contextmanager
def _coded_failures(neff: Neff) -> Iterator[None]:
    """Turn what executing or timing a program raises of it into errors with codes."""
    try:
        yield
    except MemoryError as problem:
        raise DeviceMemoryExhausted(bytes=device_bytes(neff.program)) from problem
    except ExecutionFault as fault:
        raise ProgramFault(
            reason=fault.message, instruction=fault.instruction, loc=fault.loc
        ) from fault
    except Unspecified as problem:
        raise UndocumentedResult(reason=problem) from problem


def warn_of(notifications: Notifications) -> None:
    """One warning for each source line that has notifications, at the caller of the model."""
    level = stacklevel_of_caller()
    for first, count in notifications.by_source():
        others = f"\n  and {count - 1} more from this line" if count > 1 else ""
        warnings.warn(f"{first}{others}", OutOfBoundAccess, stacklevel=level)


def load(
    path_or_neff: str | os.PathLike[str] | Neff | Program,
    *,
    device: str | None = None,
    ranks: int | None = None,
    check: bool = False,
    rank_processes: bool | None = None,
) -> Model:
    """Load a NEFF file, a compiled `Neff` or a machine program onto a device.

    The default device is GLIA_DEVICE in the environment, or else the fastest. With `ranks`, the
    model must be for so many, and with `rank_processes` each runs in a process of its own, else all
    in threads; None decides by their memory. With `check`, a run on the host compares the results
    of every instruction with the reference executor's: the first that is further off than sums in
    another order and stated errors of functions may be raises HostDifference, what was never
    written and is read raises ProgramFault.

    Raises NeffError or a subclass when the file is not a valid NEFF of glia, UnknownDevice,
    WrongRanks, OneProcessOnly, and NotEnoughCores when the model is split over more cores than a
    chip of its target has.
    """
    chosen = device or os.environ.get(DEVICE_VARIABLE) or next(iter(DEVICES))
    if chosen not in DEVICES:
        raise UnknownDevice(device=chosen, known=", ".join(DEVICES))
    if check and chosen != "host":
        raise UnknownDevice(device=f"{chosen} beside the reference", known="host with check=True")
    if isinstance(path_or_neff, Program):
        path_or_neff = Neff((path_or_neff,))
    if isinstance(path_or_neff, Neff):
        neff = path_or_neff
    else:
        is_host = chosen == "host" and not check
        neff = Neff.load(_path(path_or_neff), _prepare_on_host if is_host else None)
    if ranks is not None and ranks != neff.ranks:
        cure = f"load it with ranks={neff.ranks}, or compile it for {ranks}"
        raise WrongRanks(needed=neff.ranks, given=ranks, cure=cure)
    if check and neff.ranks != 1:
        cure = "load it without check, which is of one rank"
        raise WrongRanks(needed=neff.ranks, given=1, cure=cure)
    cores = get_target(neff.target).cores_per_chip
    if len(neff.programs) > cores:
        raise NotEnoughCores(needed=len(neff.programs), target=neff.target, has=cores)
    if rank_processes:
        one_program(neff.programs, chosen)
    return Model(neff, chosen, is_checked=check, rank_processes=rank_processes)


def _prepare_on_host(programs: Sequence[Program], ranks: int) -> None:
    """What the first run on the host needs, where an earlier process has planned it."""
    if ranks == 1:
        import_object(_HOST_PREPARATION)(programs)


def convert_input(binding: Binding, value: object) -> np.ndarray:
    """`value` as an array of the input's dtype and shape; numbers and lists are converted.

    Raises WrongDType or WrongShape for an array that does not match, and UnusableInput for one that
    cannot be read.
    """
    wanted = binding.dtype.numpy
    array = value if isinstance(value, np.ndarray) else _as_array(binding, value)
    if array.dtype.kind == "V" and array.dtype.names is None and array.itemsize == wanted.itemsize:
        array = array.view(wanted)  # .npy files do not know ml_dtypes and keep raw bytes
    if array.dtype != wanted:
        raise _wrong_dtype(binding, array.dtype)
    if array.shape != binding.shape:
        raise WrongShape(name=binding.name, given=list(array.shape), expected=list(binding.shape))
    return array


def _as_array(binding: Binding, value: object) -> np.ndarray:
    if is_array(value):
        try:
            return borrowed(value)
        except ValueError as problem:
            raise UnusableInput(name=binding.name, reason=problem) from problem
    try:
        return np.asarray(value, dtype=binding.dtype.numpy)
    except (TypeError, ValueError, OverflowError) as problem:
        given = f"{type(value).__name__} ({problem!s:.100})"
        raise _wrong_dtype(binding, given) from problem


def _wrong_dtype(binding: Binding, given: object) -> WrongDType:
    name = binding.dtype.numpy.name
    spelling = f"'{name}'" if hasattr(np, name) or name == "bool" else f"ml_dtypes.{name}"
    return WrongDType(
        name=binding.name, given=given, expected=binding.dtype, expected_numpy=spelling
    )


def describe_tensors(bindings: Sequence[Binding]) -> str:
    """`x: f32[2,3], y: s32[]`; "no inputs" for none."""
    texts = [f"{b.name}: {b.dtype}[{','.join(map(str, b.shape))}]" for b in bindings]
    return ", ".join(texts) or "no inputs"


def device_bytes(program: Program) -> int:
    """Bytes of HBM the program's tiles occupy."""
    return sum(tile.bytes for tile in program.tiles.values() if tile.memory is Memory.HBM)


def import_object(path: str) -> Any:
    """The object named "module:attribute", imported on demand."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _path(given: object) -> str | os.PathLike[str]:
    if isinstance(given, str | os.PathLike):
        return given
    kind = type(given).__name__
    raise NotANeff(reason=f"glia.load takes its path, a Neff or a Program, not a value of {kind}")
