"""Executing a NEFF to capture traces of it, as `neuron-profile capture` does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glia.base.files import read_file, write_atomically
from glia.machine.ir import Binding
from glia.ntff.errors import OutputsDiffer
from glia.ntff.trace_file import TraceFile, load_with_hash
from glia.profile.report import Profile
from glia.runtime.arrays import read_array
from glia.runtime.errors import BadArrayFile, WrongInputs
from glia.runtime.model import Model, describe_tensors, load
from glia.sim.notifications import Notifications

Arrays = dict[str, np.ndarray]
Say = Callable[[str], object]


@dataclass(frozen=True)
class Saved:
    """How outputs are written: raw or .npy, of every execution or of every nth."""

    as_raw: bool = False
    as_npy: bool = False
    nth: int = 1


@dataclass(frozen=True)
class Capture:
    """What is executed and what is kept of it.

    Executions are numbered from 1. Every `nth` leaves a trace at `session`, none where it is 0.
    Inputs that an output overwrites keep what the execution before left there, unless
    `writes_states` says that they are written before each.
    """

    neff: Path
    session: Path
    inputs: Mapping[str, str]
    executions: int = 1
    nth: int = 1
    saved: Saved = Saved()
    writes_states: bool = False
    compares: bool = False
    ignores_errors: bool = False

    def run(self, say: Say) -> None:
        """Execute and write; CompileError when a file or an execution fails."""
        neff, neff_hash = load_with_hash(self.neff)
        model = load(neff)
        arrays = self._arrays(model)
        profile = model.profile()
        first: Arrays = {}
        for number, outputs in self._executions(model, arrays, say):
            first = first or outputs
            if self.compares:
                _compare(first, outputs, number)
            if self.nth and number % self.nth == 0:
                self._save_trace(neff_hash, profile, number, model.notifications)
            self._save_outputs(outputs, number, say)

    def _executions(self, model: Model, arrays: Arrays, say: Say) -> Iterator[tuple[int, Arrays]]:
        """The number and outputs of each execution; equal inputs are executed once."""
        states = _states(model)
        outputs: Arrays | None = None
        for number in range(1, self.executions + 1):
            if outputs is None or (states and not self.writes_states):
                outputs = self._execute(model, arrays, say)
            yield number, outputs
            for name, source in states.items():
                if not self.writes_states and source in outputs:
                    arrays[name] = outputs[source]

    def _execute(self, model: Model, arrays: Arrays, say: Say) -> Arrays:
        try:
            return model.run(arrays)
        except Exception as problem:
            if not self.ignores_errors or not hasattr(problem, "code"):
                raise
            say(f"ignored: {problem}")
            return {}

    def _arrays(self, model: Model) -> Arrays:
        unknown = self.inputs.keys() - {binding.name for binding in model.inputs}
        for name in sorted(unknown):
            expected = describe_tensors(model.inputs)
            raise WrongInputs(problem=f"there is no input {name!r}", expected=expected)
        return {
            each.name: read_tensor(self.inputs[each.name], each)
            if each.name in self.inputs
            else np.zeros(each.shape, each.dtype.numpy)
            for each in model.inputs
        }

    def _save_trace(
        self, neff_hash: str, profile: Profile, number: int, found: Notifications
    ) -> None:
        trace = TraceFile.of(neff_hash, profile, number, found)
        trace.save(trace_path(self.session, number))

    def _save_outputs(self, outputs: Arrays, number: int, say: Say) -> None:
        if not (self.saved.as_raw or self.saved.as_npy) or number % self.saved.nth:
            return
        for name, array in outputs.items():
            stem = file_name(name) if number == 1 else f"{file_name(name)}.{number}"
            if self.saved.as_raw:
                write_atomically(Path(stem), [np.ascontiguousarray(array).tobytes()])
                say(f'saved output "{name}" as "{stem}"')
            if self.saved.as_npy:
                np.save(f"{stem}.npy", array, allow_pickle=False)
                say(f'saved output "{name}" as "{stem}.npy"')


def trace_path(session: Path, execution: int) -> Path:
    """The file of an execution: the session's name, from the second on with its number."""
    if execution == 1:
        return session
    return session.with_name(f"{session.stem}_exec_{execution}{session.suffix}")


def file_name(tensor: str) -> str:
    """A tensor's name as that of a file in the current folder, whatever the NEFF calls it."""
    return re.sub(r"[^\w.-]", "_", tensor).lstrip(".") or "output"


def read_tensor(path: str, binding: Binding) -> np.ndarray:
    """The array in a .npy file, or in a file of exactly the tensor's bytes; BadArrayFile."""
    if path.endswith(".npy"):
        return read_array(path)
    wanted = binding.tile.bytes
    try:
        data = read_file(Path(path), wanted)
    except OSError as problem:
        raise BadArrayFile(path=path, reason=problem.strerror) from problem
    if len(data) != wanted:
        reason = f"it has {len(data)} bytes, and tensor {binding.name} {wanted}"
        raise BadArrayFile(path=path, reason=reason)
    return np.frombuffer(data, binding.dtype.numpy).reshape(binding.shape)


def _states(model: Model) -> dict[str, str]:
    """The outputs that lie where an input lies, by that input."""
    inputs = {binding.tile.name: binding.name for binding in model.inputs}
    return {
        inputs[binding.tile.name]: binding.name
        for binding in model.outputs
        if binding.tile.name in inputs
    }


def _compare(first: Arrays, outputs: Arrays, number: int) -> None:
    for name, array in outputs.items():
        if array.tobytes() != first[name].tobytes():
            raise OutputsDiffer(name=name, execution=number)
