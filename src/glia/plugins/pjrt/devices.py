"""The client, its devices, their memories and the topology."""

from __future__ import annotations

import ctypes
import json
from typing import Any

from glia import __version__
from glia.cache.key import compiler_version, flags_of
from glia.cc_flags import resolve_options
from glia.plugins.pjrt.api_table import getter, implements, machine_getter, put
from glia.plugins.pjrt.c_memory import (
    c_bytes,
    give_handle,
    handles,
    named_values,
    object_of,
    read_named_values,
    release,
)
from glia.plugins.pjrt.errors import SeveralProcesses, UnknownClientOption
from glia.plugins.pjrt.machine_entries import RecordWord
from glia.plugins.pjrt.visible_cores import VisibleCores, visible_cores

PLATFORM = c_bytes("neuron")
VERSION_TEXT = c_bytes(f"glia {__version__}")
MEMORY_KIND = c_bytes("device")
_PROCESS_OPTIONS = ("node_id", "num_nodes")

# What the interface asks of a plugin: how StableHLO is given to it
_PLUGIN_ATTRIBUTES = named_values(
    {
        "xla_version": 2,
        "stablehlo_current_version": (1, 14, 0),
        "stablehlo_minimum_version": (0, 9, 0),
    }
)


class Device:
    """A logical NeuronCore, and the one memory that it has."""

    is_addressable = True
    process_index = 0
    kind_id = 0

    def __init__(self, number: int, cores: VisibleCores) -> None:
        self.number = number
        self.handle = give_handle(self)
        self.description = give_handle(self)
        self.memory = give_handle(self, MEMORY_KIND.address, MEMORY_KIND.count)
        self.memories = handles([_Handle(self.memory)])
        self.devices = handles([self])
        self.kind = c_bytes(cores.kind)
        self.text = c_bytes(f"NC({number})")
        self.long_text = c_bytes(f"NeuronCore {cores.first + number} of {cores.target.name}")
        self.memory_text = c_bytes(f"HBM of NC({number})")
        self.attributes = named_values({"core": cores.first + number, "target": cores.target.name})
        self.bytes_limit = cores.bytes
        self.bytes_in_use = 0
        self.peak_bytes = 0
        self.largest_bytes = 0
        self.allocations = 0

    def allocated(self, bytes: int) -> None:
        """Count an array that begins to exist."""
        self.bytes_in_use += bytes
        self.allocations += 1
        self.peak_bytes = max(self.peak_bytes, self.bytes_in_use)
        self.largest_bytes = max(self.largest_bytes, bytes)

    def freed(self, bytes: int) -> None:
        """Count an array that has ended."""
        self.bytes_in_use -= bytes


class _Handle:
    """Something that has a handle."""

    def __init__(self, handle: int) -> None:
        self.handle = handle


class Client:
    """The devices of a process, numbered from 0."""

    process_index = 0
    platform = PLATFORM
    version = VERSION_TEXT
    no_attributes = named_values({})

    def __init__(self, cores: VisibleCores) -> None:
        self.cores = cores
        self.devices = [Device(number, cores) for number in range(cores.count)]
        self.handle = give_handle(self)
        self.device_handles = handles(self.devices)
        self.memory_handles = handles([_Handle(each.memory) for each in self.devices])
        self.descriptions = handles([_Handle(each.description) for each in self.devices])

    @property
    def topology(self) -> bytes:
        """What decides, beside a program and its options, what it is compiled to.

        Frameworks find compiled programs on disk by it.
        """
        options, _ = resolve_options("glia.compile", {"target": self.cores.target.name})
        facts = {
            "cores": self.cores.count, "compiler": compiler_version(), "flags": flags_of(options),
        }  # fmt: skip
        return json.dumps(facts, sort_keys=True).encode()


def give_bytes(call: Any, content: bytes, owner: str) -> None:
    """Set `serialized_bytes`, and in the field `owner` what frees them."""
    data = c_bytes(content)
    call.serialized_bytes, call.serialized_bytes_size = data.address, data.count
    setattr(call, owner, give_handle(data))
    setattr(call, f"{owner}_deleter", _RELEASE)


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_release_callback = _DELETER(release)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_release_callback))
_RELEASE = ctypes.cast(_release_callback, ctypes.c_void_p).value


@implements("Plugin_Initialize")
@implements("Client_Destroy")
@implements("TopologyDescription_Destroy")
def _nothing(call: Any) -> None:
    """Devices exist as long as the process."""


@implements("Plugin_Attributes")
def _plugin_attributes(call: Any) -> None:
    put(call, "attributes", _PLUGIN_ATTRIBUTES)


@implements("Client_Create")
def _create(call: Any) -> None:
    for name, value in read_named_values(call.create_options, call.num_options).items():
        if name not in _PROCESS_OPTIONS:
            raise UnknownClientOption(option=name)
        if name == "num_nodes" and value > 1:
            raise SeveralProcesses(source="jax.distributed", count=value, devices=value)
    call.client = Client(visible_cores()).handle


@implements("Client_LookupDevice")
def _lookup(call: Any) -> None:
    call.device = _device(call.client, call.id).handle


@implements("Client_LookupAddressableDevice")
def _lookup_addressable(call: Any) -> None:
    call.addressable_device = _device(call.client, call.local_hardware_id).handle


def _device(client: int, number: int) -> Device:
    devices: list[Device] = object_of(client).devices
    if not 0 <= number < len(devices):
        raise IndexError(f"there is no device {number}; there are {len(devices)}")
    return devices[number]


@implements("Client_DefaultDeviceAssignment")
def _default_assignment(call: Any) -> None:
    count = call.num_replicas * call.num_partitions
    numbers = (ctypes.c_int * count).from_address(call.default_assignment)
    numbers[:] = range(count)


@implements("Client_TopologyDescription")
def _topology(call: Any) -> None:
    call.topology = call.client


@implements("TopologyDescription_Serialize")
def _serialize_topology(call: Any) -> None:
    give_bytes(call, object_of(call.topology).topology, "serialized_topology")


@implements("Device_MemoryStats")
def _memory_stats(call: Any) -> None:
    device = object_of(call.device)
    known = {
        "peak_bytes_in_use": device.peak_bytes,
        "num_allocs": device.allocations,
        "largest_alloc_size": device.largest_bytes,
        "bytes_limit": device.bytes_limit,
    }
    for name, _ in call._fields_:
        if name.endswith("_is_set"):
            setattr(call, name, name.removesuffix("_is_set") in known)
    for name, value in known.items():
        setattr(call, name, value)
    call.bytes_in_use = device.bytes_in_use


getter("Client_PlatformName", "client", platform_name="platform")
getter("Client_PlatformVersion", "client", platform_version="version")
getter("Client_ProcessIndex", "client", process_index="process_index")
getter("Client_Devices", "client", devices="device_handles")
getter("Client_AddressableDevices", "client", addressable_devices="device_handles")
getter("Client_AddressableMemories", "client", addressable_memories="memory_handles")
getter("TopologyDescription_PlatformName", "topology", platform_name="platform")
getter("TopologyDescription_PlatformVersion", "topology", platform_version="version")
getter("TopologyDescription_GetDeviceDescriptions", "topology", descriptions="descriptions")
getter("TopologyDescription_Attributes", "topology", attributes="no_attributes")
getter("Device_GetDescription", "device", device_description="description")
getter("Device_IsAddressable", "device", is_addressable="is_addressable")
getter("Device_LocalHardwareId", "device", local_hardware_id="number")
getter("Device_DefaultMemory", "device", memory="memory")
getter("Device_AddressableMemories", "device", memories="memories")
getter("DeviceDescription_Id", "device_description", id="number")
getter("DeviceDescription_ProcessIndex", "device_description", process_index="process_index")
getter("DeviceDescription_Kind", "device_description", device_kind="kind")
getter("DeviceDescription_DebugString", "device_description", debug_string="long_text")
getter("DeviceDescription_ToString", "device_description", to_string="text")
getter("DeviceDescription_Attributes", "device_description", attributes="attributes")
getter("Memory_Id", "memory", id="number")
machine_getter("Memory_Kind", "memory", kind=RecordWord(1), kind_size=RecordWord(2))
getter("Memory_Kind_Id", "memory", kind_id="kind_id")
getter("Memory_DebugString", "memory", debug_string="memory_text")
getter("Memory_ToString", "memory", to_string="memory_text")
getter("Memory_AddressableByDevices", "memory", devices="devices")
