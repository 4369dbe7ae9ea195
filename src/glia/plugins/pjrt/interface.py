"""The functions of the PJRT C interface and the layout of their arguments, as one table.

Order, names and layouts are those of version 0.90 of the interface (openxla/xla,
xla/pjrt/c/pjrt_c_api.h). A line is a function in the order of the interface's table; what follows
the colon are the fields of its arguments, after the two that all have. A field is a pointer where
it has no other type. A function without a colon is not provided.
"""

from __future__ import annotations

import ctypes

VERSION = (0, 90)

_FUNCTIONS = """
Error_Destroy: error
Error_Message: error, message, message_size=size
Error_GetCode: error, code=int
Plugin_Initialize:
Plugin_Attributes: attributes, num_attributes=size
Event_Destroy: event
Event_IsReady: event, is_ready=bool
Event_Error: event
Event_Await: event
Event_OnReady: event, callback, user_arg
Client_Create: create_options, num_options=size, kv_get_callback, kv_get_user_arg, kv_put_callback,
    kv_put_user_arg, client, kv_try_get_callback, kv_try_get_user_arg
Client_Destroy: client
Client_PlatformName: client, platform_name, platform_name_size=size
Client_ProcessIndex: client, process_index=int
Client_PlatformVersion: client, platform_version, platform_version_size=size
Client_Devices: client, devices, num_devices=size
Client_AddressableDevices: client, addressable_devices, num_addressable_devices=size
Client_LookupDevice: client, id=int, device
Client_LookupAddressableDevice: client, local_hardware_id=int, addressable_device
Client_AddressableMemories: client, addressable_memories, num_addressable_memories=size
Client_Compile: client, program, compile_options, compile_options_size=size, executable
Client_DefaultDeviceAssignment: client, num_replicas=int, num_partitions=int,
    default_assignment_size=size, default_assignment
Client_BufferFromHostBuffer: client, data, type=int, dims, num_dims=size, byte_strides,
    num_byte_strides=size, host_buffer_semantics=int, device, memory, device_layout,
    done_with_host_buffer, buffer
DeviceDescription_Id: device_description, id=int
DeviceDescription_ProcessIndex: device_description, process_index=int
DeviceDescription_Attributes: device_description, num_attributes=size, attributes
DeviceDescription_Kind: device_description, device_kind, device_kind_size=size
DeviceDescription_DebugString: device_description, debug_string, debug_string_size=size
DeviceDescription_ToString: device_description, to_string, to_string_size=size
Device_GetDescription: device, device_description
Device_IsAddressable: device, is_addressable=bool
Device_LocalHardwareId: device, local_hardware_id=int
Device_AddressableMemories: device, memories, num_memories=size
Device_DefaultMemory: device, memory
Device_MemoryStats: device, bytes_in_use=i64, peak_bytes_in_use=i64, peak_bytes_in_use_is_set=bool,
    num_allocs=i64, num_allocs_is_set=bool, largest_alloc_size=i64, largest_alloc_size_is_set=bool,
    bytes_limit=i64, bytes_limit_is_set=bool, bytes_reserved=i64, bytes_reserved_is_set=bool,
    peak_bytes_reserved=i64, peak_bytes_reserved_is_set=bool, bytes_reservable_limit=i64,
    bytes_reservable_limit_is_set=bool, largest_free_block_bytes=i64,
    largest_free_block_bytes_is_set=bool, pool_bytes=i64, pool_bytes_is_set=bool,
    peak_pool_bytes=i64, peak_pool_bytes_is_set=bool
Memory_Id: memory, id=int
Memory_Kind: memory, kind, kind_size=size
Memory_DebugString: memory, debug_string, debug_string_size=size
Memory_ToString: memory, to_string, to_string_size=size
Memory_AddressableByDevices: memory, devices, num_devices=size
Executable_Destroy: executable
Executable_Name: executable, executable_name, executable_name_size=size
Executable_NumReplicas: executable, num_replicas=size
Executable_NumPartitions: executable, num_partitions=size
Executable_NumOutputs: executable, num_outputs=size
Executable_SizeOfGeneratedCodeInBytes: executable, size_in_bytes=i64
Executable_GetCostAnalysis: executable, num_properties=size, properties
Executable_OutputMemoryKinds: executable, num_outputs=size, memory_kinds, memory_kind_sizes
Executable_OptimizedProgram: executable, program
Executable_Serialize: executable, serialized_bytes, serialized_bytes_size=size,
    serialized_executable, serialized_executable_deleter
LoadedExecutable_Destroy: executable
LoadedExecutable_GetExecutable: loaded_executable, executable
LoadedExecutable_AddressableDevices: executable, addressable_devices, num_addressable_devices=size
LoadedExecutable_Delete: executable
LoadedExecutable_IsDeleted: executable, is_deleted=bool
LoadedExecutable_Execute: executable, options, argument_lists, num_devices=size, num_args=size,
    output_lists, device_complete_events, execute_device
Executable_DeserializeAndLoad: client, serialized_executable, serialized_executable_size=size,
    loaded_executable, overridden_serialized_compile_options,
    overridden_serialized_compile_options_size=size
LoadedExecutable_Fingerprint: executable, executable_fingerprint, executable_fingerprint_size=size
Buffer_Destroy: buffer
Buffer_ElementType: buffer, type=int
Buffer_Dimensions: buffer, dims, num_dims=size
Buffer_UnpaddedDimensions: buffer, unpadded_dims, num_dims=size
Buffer_DynamicDimensionIndices: buffer, dynamic_dim_indices, num_dynamic_dims=size
Buffer_GetMemoryLayout: buffer, layout=MemoryLayout
Buffer_OnDeviceSizeInBytes: buffer, on_device_size_in_bytes=size
Buffer_Device: buffer, device
Buffer_Memory: buffer, memory
Buffer_Delete: buffer
Buffer_IsDeleted: buffer, is_deleted=bool
Buffer_CopyToDevice: buffer, dst_device, dst_buffer
Buffer_ToHostBuffer: src, host_layout, dst, dst_size=size, event
Buffer_IsOnCpu: buffer, is_on_cpu=bool
Buffer_ReadyEvent: buffer, event
Buffer_UnsafePointer: buffer, buffer_pointer=size
Buffer_IncreaseExternalReferenceCount
Buffer_DecreaseExternalReferenceCount
Buffer_OpaqueDeviceMemoryDataPointer
CopyToDeviceStream_Destroy
CopyToDeviceStream_AddChunk
CopyToDeviceStream_TotalBytes
CopyToDeviceStream_GranuleSize
CopyToDeviceStream_CurrentBytes
TopologyDescription_Create
TopologyDescription_Destroy: topology
TopologyDescription_PlatformName: topology, platform_name, platform_name_size=size
TopologyDescription_PlatformVersion: topology, platform_version, platform_version_size=size
TopologyDescription_GetDeviceDescriptions: topology, descriptions, num_descriptions=size
TopologyDescription_Serialize: topology, serialized_bytes, serialized_bytes_size=size,
    serialized_topology, serialized_topology_deleter
TopologyDescription_Attributes: topology, attributes, num_attributes=size
Compile
Executable_OutputElementTypes: executable, output_types, num_output_types=size
Executable_OutputDimensions: executable, num_outputs=size, dims, dim_sizes
Buffer_CopyToMemory: buffer, dst_memory, dst_buffer
Client_CreateViewOfDeviceBuffer
Executable_Fingerprint: executable, executable_fingerprint, executable_fingerprint_size=size
Client_TopologyDescription: client, topology
Executable_GetCompiledMemoryStats: executable, generated_code_size_in_bytes=i64,
    argument_size_in_bytes=i64, output_size_in_bytes=i64, alias_size_in_bytes=i64,
    temp_size_in_bytes=i64, host_generated_code_size_in_bytes=i64, host_argument_size_in_bytes=i64,
    host_output_size_in_bytes=i64, host_alias_size_in_bytes=i64, host_temp_size_in_bytes=i64,
    peak_memory_in_bytes=i64, total_size_in_bytes=i64
Memory_Kind_Id: memory, kind_id=int
ExecuteContext_Create
ExecuteContext_Destroy
Buffer_CopyRawToHost: buffer, dst, offset=i64, transfer_size=i64, event
AsyncHostToDeviceTransferManager_Destroy
AsyncHostToDeviceTransferManager_TransferData
Client_CreateBuffersForAsyncHostToDevice
AsyncHostToDeviceTransferManager_RetrieveBuffer
AsyncHostToDeviceTransferManager_Device
AsyncHostToDeviceTransferManager_BufferCount
AsyncHostToDeviceTransferManager_BufferSize
AsyncHostToDeviceTransferManager_SetBufferError
AsyncHostToDeviceTransferManager_AddMetadata
Client_DmaMap
Client_DmaUnmap
Client_CreateUninitializedBuffer
Client_UpdateGlobalProcessInfo
TopologyDescription_Deserialize
Client_CreateAliasBuffer
Client_FulfillAliasBuffer
LoadedExecutable_GetDeviceAssignment: executable, serialized_bytes, serialized_bytes_size=size,
    serialized_device_assignment, serialized_device_assignment_deleter
Client_CreateErrorBuffer
AsyncHostToDeviceTransferManager_TransferLiteral
Buffer_CopyRawToHostFuture
Device_PoisonExecution
Device_CreateAsyncTrackingEvent
AsyncTrackingEvent_Destroy
Executable_GetCompileOptions: executable, serialized_bytes, serialized_bytes_size=size,
    serialized_compile_options, serialized_compile_options_deleter
Buffer_DonateWithControlDependency
Event_Create
Event_Set
"""

# What arguments point to, or hold; `MemoryLayout` is the union's tiled member and its tag.
_STRUCTURES = """
ApiVersion: major_version=int, minor_version=int
NamedValue: name, name_size=size, kind=int, value, value_size=size
Program: code, code_size=size, format, format_size=size
MemoryLayout: member_size=size, member_extension, minor_to_major, minor_to_major_size=size,
    tile_dims, tile_dim_sizes, num_tiles=size, kind=int
ExecuteOptions: send_callbacks, recv_callbacks, num_send_ops=size, num_recv_ops=size,
    launch_id=int, non_donatable_input_indices, num_non_donatable_input_indices=size, context,
    call_location, num_tasks=size, task_ids, incarnation_ids
"""

_TYPES: dict[str, type] = {
    "ptr": ctypes.c_void_p,
    "size": ctypes.c_size_t,
    "int": ctypes.c_int,
    "i64": ctypes.c_int64,
    "bool": ctypes.c_bool,
}


def _lines(table: str) -> list[tuple[str, str | None]]:
    """Each name of a table, with the text of its fields or None."""
    joined = table.strip().replace("\n    ", " ").splitlines()
    parts = [line.partition(":") for line in joined]
    return [(name, fields.strip() if colon else None) for name, colon, fields in parts]


def _structure(name: str, text: str) -> type[ctypes.Structure]:
    """A ctypes structure of the fields in a line, after its size and its extensions."""
    fields: list[tuple[str, type]] = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
    ]
    for field in filter(None, text.split(", ")):
        label, _, kind = field.partition("=")
        fields.append((label, _TYPES[kind or "ptr"]))
    return type(name, (ctypes.Structure,), {"_fields_": fields})


STRUCTURES = {name: _structure(name, text or "") for name, text in _lines(_STRUCTURES)}
_TYPES |= STRUCTURES
FUNCTIONS = tuple(name for name, _ in _lines(_FUNCTIONS))
"""Every function of the interface, in the order of its table."""

ARGUMENTS = {name: _structure(name, text) for name, text in _lines(_FUNCTIONS) if text is not None}
"""The arguments of the functions that are provided."""

RETURNS_NOTHING = frozenset({"Error_Destroy", "Error_Message"})


class Api(ctypes.Structure):
    """The interface's table: its size, its version, and a pointer to each function."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("version", STRUCTURES["ApiVersion"]),
        *((name, ctypes.c_void_p) for name in FUNCTIONS),
    ]
