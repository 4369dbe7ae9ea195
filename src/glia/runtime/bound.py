"""A model whose calls cost microseconds beside what the program itself takes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from glia.base.machine_code.native import address_of, array_at
from glia.machine.ir import Binding
from glia.runtime.errors import UnusableInput, WrongInputs
from glia.runtime.model import Model, convert_input
from glia.sim.host.host_program import HostProgram, supported_program
from glia.sim.host.tensors.result_memory import ResultMemory
from glia.sim.notifications import Notifications
from glia.sim.policy import Policy

Array = np.ndarray[Any, Any]


class BoundModel:
    """A callable of a model's arrays, for which everything but the run is decided already.

    Limits in the environment are those of the moment it was made. Errors, warnings and
    `model.notifications` are as for a call of the model.
    """

    def __init__(self, model: Model, donated: Collection[str], *, reuses_outputs: bool) -> None:
        self.model = model
        self.inputs, self.outputs = model.inputs, model.outputs
        self._expected = [(b.dtype.numpy, b.shape, b) for b in self.inputs]
        self._donated = self._donations(donated)
        self._policy = Policy()
        self._host = self._ready_program()
        self._input_order = self._order([b.name for b in self.inputs], is_output=False)
        self._output_order = self._order([b.name for b in self.outputs], is_output=True)
        self._memory = self._result_memory()
        self._kept = self._memory.arrays() if reuses_outputs else None

    def __repr__(self) -> str:
        return f"<bound {self.model!r}>"

    def __call__(self, *arrays: Any) -> list[Array]:
        """Run on arrays in the order of `inputs`; the outputs in the order of `outputs`.

        Arrays of NumPy, JAX, PyTorch and others are read where they lie if they are row-major on
        the host. Outputs are new arrays, except that `reuses_outputs` overwrites those of the call
        before, and that the output of a donated input is that input, updated in place.
        """
        if len(arrays) != len(self._expected):
            self.model.reject(f"{len(arrays)} arrays were given")
        given = [
            array
            if type(array) is np.ndarray
            and array.dtype == dtype
            and array.shape == shape
            and array.flags.c_contiguous
            else self._converted(binding, array)
            for array, (dtype, shape, binding) in zip(arrays, self._expected, strict=True)
        ]
        results = self._memory.arrays() if self._kept is None else list(self._kept)
        for source, target in self._donated:
            array = self._in_place(arrays[source], given[source], self.inputs[source])
            results.insert(target, array)
        self.run_at([*map(address_of, given)], [*map(address_of, results)])
        return results

    def run_at(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Run on tensors at these addresses, in the order of `inputs` and of `outputs`.

        Each tensor is row-major and of the dtype that its binding names. Nothing is checked: an
        address that is wrong ends the process. Inputs are read where they lie and are not written
        to; outputs overlap nothing, except that an output of `model.aliases` may be where its input
        is, which is then updated in place. An element that the program does not write stays.
        """
        with self.model.running() as notifications:
            if self._host is None:
                self._run_by_model(inputs, outputs, notifications)
                return
            self._host.run_at(
                [inputs[i] for i in self._input_order],
                [outputs[i] for i in self._output_order],
                notifications,
                self._policy,
            )

    def _ready_program(self) -> HostProgram | None:
        """The program of the host; None where another executor runs the model."""
        if self.model.device != "host" or self.model.is_checked:
            return None
        return supported_program(self.model.neff.programs)

    def _order(self, names: Sequence[str], *, is_output: bool) -> list[int]:
        """Where each of the program's own tensors stands among the model's."""
        program = self.model.neff.program if self._host is None else self._host.program
        return [names.index(b.name) for b in (program.outputs if is_output else program.inputs)]

    def _result_memory(self) -> ResultMemory:
        """What makes the arrays of outputs, in their order, of which no input is donated."""
        is_cleared = [False] * len(self.outputs)
        if self._host is not None:
            for number, each in zip(self._output_order, self._host.cleared_outputs, strict=True):
                is_cleared[number] = each
        donated = {target for _, target in self._donated}
        made = [number for number in range(len(self.outputs)) if number not in donated]
        return ResultMemory([self.outputs[n] for n in made], [is_cleared[n] for n in made])

    def _donations(self, names: Collection[str]) -> list[tuple[int, int]]:
        """(input, output) by position of what is updated in place; WrongInputs for others."""
        aliases = self.model.aliases
        inputs, outputs = ([b.name for b in each] for each in (self.inputs, self.outputs))
        if wrong := [name for name in names if name not in aliases]:
            raise WrongInputs(
                problem=f"{wrong[0]!r} cannot be donated, no output is in its place",
                expected=f"as donated {', '.join(aliases) or 'none'}",
            )
        found = [(inputs.index(name), outputs.index(aliases[name])) for name in names]
        return sorted(found, key=lambda places: places[1])

    def _converted(self, binding: Binding, value: Any) -> Array:
        return np.ascontiguousarray(convert_input(binding, value)).reshape(binding.shape)

    def _in_place(self, value: Any, array: Array, binding: Binding) -> Array:
        """A donated input, of which `array` is what is read; UnusableInput where it is a copy."""
        if not array.flags.writeable:
            raise UnusableInput(name=binding.name, reason="it is donated and cannot be written to")
        if array is not value and not np.may_share_memory(array, convert_input(binding, value)):
            raise UnusableInput(name=binding.name, reason="it is donated and not row-major")
        return array

    def _run_by_model(
        self, inputs: Sequence[int], outputs: Sequence[int], notifications: Notifications
    ) -> None:
        """Run by another executor, through arrays over the memory at these addresses."""
        given = {
            b.name: array_at(address, b.shape, b.dtype.numpy)
            for address, b in zip(inputs, self.inputs, strict=True)
        }
        results = self.model.execute(given, notifications)
        for address, binding in zip(outputs, self.outputs, strict=True):
            array_at(address, binding.shape, binding.dtype.numpy)[...] = results[binding.name]
