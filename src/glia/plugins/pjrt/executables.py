"""Executables: a compiled program on its devices, what is known of it, and running it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from glia.plugins.pjrt.api_table import (
    ends,
    getter,
    implements,
    machine_getter,
    release_ended,
)
from glia.plugins.pjrt.buffers import Buffer
from glia.plugins.pjrt.c_memory import (
    CArray,
    c_array,
    c_bytes,
    give_handle,
    handles,
    integers,
    named_values,
    object_of,
    pointers,
)
from glia.plugins.pjrt.devices import MEMORY_KIND, Client, Device
from glia.plugins.pjrt.element_types import array_layout
from glia.plugins.pjrt.errors import DeletedBuffer
from glia.plugins.pjrt.events import READY
from glia.plugins.pjrt.interface import STRUCTURES
from glia.plugins.pjrt.machine_entries import RecordWord
from glia.plugins.pjrt.profiling.sessions import begin_execution, record
from glia.plugins.pjrt.programs import Program

# Words of an executable's record, after the first
_REPLICAS, _PARTITIONS, _OUTPUTS = map(RecordWord, range(1, 4))


class Executable:
    """A program on devices; `division` are the numbers of its replicas and partitions."""

    is_deleted = False

    def __init__(
        self,
        program: Program,
        serialized_options: bytes,
        assignment: tuple[int, ...],
        division: tuple[int, int],
    ) -> None:
        self.program = program
        self.serialized_options = serialized_options
        self.assignment = assignment
        self.division = division
        self.name = c_bytes(program.name)
        self.fingerprint = c_bytes(program.fingerprint)
        self.optimized = c_bytes(program.optimized)
        outputs = program.outputs
        layouts = [array_layout(*each) for each in outputs]
        self.num_outputs = len(outputs)
        self.element_types = c_array(ctypes.c_int, (each.number for each in layouts))
        self.dimensions = c_array(ctypes.c_int64, (n for _, shape in outputs for n in shape))
        self.ranks = c_array(ctypes.c_size_t, (len(shape) for _, shape in outputs))
        self.memory_kinds = c_array(ctypes.c_void_p, [MEMORY_KIND.address] * len(outputs))
        self.memory_kind_sizes = c_array(ctypes.c_size_t, [MEMORY_KIND.count] * len(outputs))
        self.devices: list[Device] = []
        self.device_handles = handles(())

    def place(self, client: Client) -> int:
        """Put the executable on its devices; its handle."""
        self.devices = [client.devices[number] for number in self.assignment]
        self.device_handles = handles(self.devices)
        return self.give_handle()

    def give_handle(self) -> int:
        """A new handle of the executable."""
        return give_handle(self, *self.division, self.num_outputs)

    @cached_property
    def cost_properties(self) -> CArray:
        """The program's costs as attributes."""
        return named_values(self.program.costs)

    def run(
        self, arguments: Sequence[Sequence[Buffer]], kept: Sequence[int]
    ) -> Sequence[Sequence[np.ndarray]]:
        """The results of each device; donated arguments are deleted, except those in `kept`."""
        arrays = [self._arrays(of_device) for of_device in arguments]
        program = self.program
        begin = begin_execution()
        results = program.run_on_devices(arrays)
        if begin:
            record(program, (each.number for each in self.devices[: len(arrays)]), begin)
        for number in program.donated:
            if number not in kept:
                for of_device in arguments:
                    of_device[number].delete()
        return results

    def _arrays(self, arguments: Sequence[Buffer]) -> list[np.ndarray]:
        """The elements of arguments; DeletedBuffer."""
        arrays = [each.array for each in arguments if each.array is not None]
        if len(arrays) < len(arguments):
            position = next(n for n, each in enumerate(arguments) if each.array is None)
            raise DeletedBuffer(position=position, program=self.program.name)
        return arrays


@implements("LoadedExecutable_Execute")
def _execute(call: Any) -> None:
    release_ended()
    executable = object_of(call.executable)
    kept = _not_donated(call.options) if executable.program.donated else ()
    count = call.num_devices
    argument_lists = pointers(call.argument_lists, count) or [None] * count
    output_lists = pointers(call.output_lists, count)
    only = object_of(call.execute_device) if call.execute_device else None
    given = [[object_of(each) for each in pointers(row, call.num_args)] for row in argument_lists]
    for row, results in enumerate(executable.run(given, kept)):
        device = only or executable.devices[row]
        outputs = pointers(output_lists[row], len(results))
        for place, result in enumerate(results):
            outputs[place] = Buffer(result, device).handle
    if call.device_complete_events:
        pointers(call.device_complete_events, count)[:] = [READY] * count


def _not_donated(options: int | None) -> tuple[int, ...]:
    """The arguments that a call does not donate."""
    if not options:
        return ()
    found = STRUCTURES["ExecuteOptions"].from_address(options)
    return integers(found.non_donatable_input_indices, found.num_non_donatable_input_indices)


@implements("LoadedExecutable_GetExecutable")
def _get_executable(call: Any) -> None:
    call.executable = object_of(call.loaded_executable).give_handle()


@implements("LoadedExecutable_Delete")
def _delete(call: Any) -> None:
    object_of(call.executable).is_deleted = True


@implements("Executable_OptimizedProgram")
def _optimized_program(call: Any) -> None:
    executable = object_of(call.executable)
    program = STRUCTURES["Program"].from_address(call.program)
    program.format, program.format_size = _WITH_CONFIG.address, _WITH_CONFIG.count
    code = executable.optimized
    if program.code:
        ctypes.memmove(program.code, code.address, min(code.count, program.code_size))
    program.code_size = code.count


@implements("Executable_GetCompiledMemoryStats")
def _memory_stats(call: Any) -> None:
    program = object_of(call.executable).program
    for name, _ in call._fields_[3:]:
        setattr(call, name, 0)
    call.argument_size_in_bytes = program.argument_bytes
    call.output_size_in_bytes = program.output_bytes
    call.alias_size_in_bytes = program.donated_bytes
    beside = program.argument_bytes + program.output_bytes
    call.temp_size_in_bytes = max(0, program.all_bytes - beside)
    call.peak_memory_in_bytes = call.total_size_in_bytes = max(program.all_bytes, beside)


_WITH_CONFIG = c_bytes("hlo_with_config")

ends("LoadedExecutable_Destroy", "executable")
ends("Executable_Destroy", "executable")
getter("LoadedExecutable_IsDeleted", "executable", is_deleted="is_deleted")
getter("LoadedExecutable_AddressableDevices", "executable", addressable_devices="device_handles")
getter("LoadedExecutable_Fingerprint", "executable", executable_fingerprint="fingerprint")
getter("Executable_Fingerprint", "executable", executable_fingerprint="fingerprint")
getter("Executable_Name", "executable", executable_name="name")
machine_getter("Executable_NumReplicas", "executable", num_replicas=_REPLICAS)
machine_getter("Executable_NumPartitions", "executable", num_partitions=_PARTITIONS)
machine_getter("Executable_NumOutputs", "executable", num_outputs=_OUTPUTS)
getter("Executable_SizeOfGeneratedCodeInBytes", "executable", size_in_bytes="program.all_bytes")
getter("Executable_GetCostAnalysis", "executable", properties="cost_properties")
getter("Executable_OutputElementTypes", "executable", output_types="element_types")
getter("Executable_OutputDimensions", "executable", num_outputs="num_outputs",
       dims="dimensions.address", dim_sizes="ranks.address")  # fmt: skip
getter("Executable_OutputMemoryKinds", "executable", num_outputs="num_outputs",
       memory_kinds="memory_kinds.address",
       memory_kind_sizes="memory_kind_sizes.address")  # fmt: skip
