"""Fields of a serialized HLO module about its devices, written as protobuf does; without glia.

Numbers of fields and kinds are those of XLA's hlo.proto and xla_data.proto.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

_RESULT, _PARAMETER = 12, 14  # fields of a module: shardings
_DEVICE_ASSIGNMENT = 15
_KIND, _TILE_DIMENSIONS, _DEVICES, _ELEMENTS, _LAST_IS_REPLICATED = 1, 3, 4, 5, 6  # of a sharding
_TUPLE, _TILED = 2, 3  # kinds of shardings; 0, which is not written, is a copy on each device
_REPLICAS, _PARTITIONS, _OF_PARTITION, _OF_REPLICAS = 1, 2, 3, 1  # of a device assignment


def module_fields(counts: tuple[int, int], divisions: Any) -> bytes:
    """How many replicas and partitions there are, and how parameters and results are divided.

    Counts of 0 and divisions of None are not written; a division is what `tiled` takes.
    """
    found = b""
    if counts != (0, 0):
        found += _message(_DEVICE_ASSIGNMENT, _device_assignment(*counts))
    if divisions is not None:
        parameters, results = ([tiled(*each) for each in side] for side in divisions)
        whole = results[0] if len(results) == 1 else _sharding_tuple(results)
        found += _message(_RESULT, whole)
        found += b"".join(_message(_PARAMETER, each) for each in parameters)
    return found


def _device_assignment(replicas: int, partitions: int) -> bytes:
    """The numbers of the devices: the partitions of the first replica, of the second, and so on."""
    of_partitions = (
        [replica * partitions + partition for replica in range(replicas)]
        for partition in range(partitions)
    )
    return (
        _number(_REPLICAS, replicas)
        + _number(_PARTITIONS, partitions)
        + b"".join(
            _message(_OF_PARTITION, _numbers(_OF_REPLICAS, numbers)) for numbers in of_partitions
        )
    )


def tiled(sizes: dict[str, int], by_dimension: list[list[str]], devices: list[int]) -> bytes:
    """The sharding of an array whose dimensions are divided by axes of a mesh of these sizes.

    `devices` are the numbers of the mesh's devices, if it does not number them in order.
    """
    tiles = [math.prod(sizes[axis] for axis in axes) for axes in by_dimension]
    if math.prod(tiles) == 1:
        return b""
    names = list(sizes)
    used = [axis for axes in by_dimension for axis in axes]
    order = used + [axis for axis in names if axis not in used]
    strides = {name: math.prod([*sizes.values()][place + 1 :]) for place, name in enumerate(names)}
    places = [
        sum(index * strides[axis] for index, axis in zip(indices, order, strict=True))
        for indices in itertools.product(*(range(sizes[axis]) for axis in order))
    ]
    copies = len(places) // math.prod(tiles)
    return (
        _number(_KIND, _TILED)
        + _numbers(_TILE_DIMENSIONS, [*tiles, copies] if copies > 1 else tiles)
        + _numbers(_DEVICES, [devices[place] for place in places] if devices else places)
        + (_number(_LAST_IS_REPLICATED, 1) if copies > 1 else b"")
    )


def _sharding_tuple(elements: list[bytes]) -> bytes:
    """The sharding of several arrays."""
    return _number(_KIND, _TUPLE) + b"".join(_message(_ELEMENTS, each) for each in elements)


def _message(field: int, content: bytes) -> bytes:
    """A field that holds a message."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def _number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def _numbers(field: int, values: list[int]) -> bytes:
    return _message(field, b"".join(map(varint, values)))


def varint(number: int) -> bytes:
    """A number that is not negative, seven bits to a byte."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
