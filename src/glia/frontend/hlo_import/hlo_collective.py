"""HLO operations between replicas and partitions.

What the members of groups count follows from whether there is a channel: without one, replicas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from glia.frontend.hlo_import.module_context import Importer, Site
from glia.frontend.hlo_import.node_builder import Value
from glia.graph import ops
from glia.graph.ir import Graph, TensorType, TupleType, Type

MOST_DEVICES = 2**20

Groups = tuple[tuple[int, ...], ...]

_WITH_BODY = frozenset({"all-reduce", "reduce-scatter"})
_OF_REPLICAS = frozenset({"all-gather", "all-reduce", "reduce-scatter"})  # with a channel as well
_ALONG_DIMENSION = frozenset({"all-gather", "reduce-scatter", "all-to-all"})


def _collective(kind: str) -> Importer:
    return lambda site: _import(site, kind, site.type)


def _collective_start(kind: str) -> Importer:
    """An asynchronous start: its declared type is (operands, results, ...) but for all-reduce."""

    def start(site: Site) -> Value:
        declared = site.type
        if kind != "all-reduce":
            if not isinstance(declared, TupleType) or len(declared.elements) < 2:
                raise site.reject(f"the result must be (operands, results), not {declared}")
            declared = declared.elements[1]
        return _import(site, kind, declared)

    return start


def _import(site: Site, kind: str, result: Type) -> Value:
    args = site.tensors(0 if kind in ops.ID_KINDS else None)
    body: tuple[Graph, ...] = (site.region(),) if kind in _WITH_BODY else ()
    dimensions = tuple(site.proto.dimensions)
    if kind in _ALONG_DIMENSION and len(dimensions) > 1:
        raise site.malformed(f"{kind} along {len(dimensions)} dimensions")
    dimension = dimensions[0] if kind in _ALONG_DIMENSION and dimensions else -1
    pairs = tuple((p.source, p.target) for p in site.proto.source_target_pairs)
    groups, numbers = _replica_groups(site), _numbers(site, kind)
    results = site.results(
        ops.Collective, args, kind, result, dimension, groups, pairs, body, numbers
    )
    return results[0] if isinstance(result, TensorType) else results


def _numbers(site: Site, kind: str) -> str:
    """What the members of groups and pairs count."""
    if site.proto.channel_id <= 0:
        return "replicas"
    if kind not in _OF_REPLICAS:
        return "partitions"
    return "ranks" if site.proto.use_global_device_ids else "replicas with partitions"


def _replica_groups(site: Site) -> Groups:
    """The groups in explicit form, from any of XLA's four encodings."""
    proto = site.proto
    listed = proto.device_list.replica_groups or proto.replica_groups
    if listed:
        return tuple(tuple(group.replica_ids) for group in listed)
    if proto.mesh_groups.mesh.axes:
        return _mesh_groups(site, proto.mesh_groups)
    iota = proto.iota_groups if proto.iota_groups.groups else proto.device_list.iota
    return _iota_groups(site, iota) if iota.groups else ()


def _iota_groups(site: Site, iota: Any) -> Groups:
    """Groups given as a reshaped and transposed count of all devices."""
    shape = tuple(iota.reshape_dims) or (iota.groups * iota.devices_per_group,)
    permutation = tuple(iota.transpose_perm) or tuple(range(len(shape)))
    devices = _device_grid(site, shape)
    if sorted(permutation) != list(range(len(shape))):
        raise site.malformed("the replica groups' permutation does not fit")
    if iota.groups < 1 or iota.groups * iota.devices_per_group != devices.size:
        raise site.malformed(f"{iota.groups} groups of {iota.devices_per_group} of {devices.size}")
    return _groups_of_rows(devices.transpose(permutation).reshape(iota.groups, -1))


def _mesh_groups(site: Site, proto: Any) -> Groups:
    """Groups along some axes of a mesh of devices; an axis may be a part of a mesh axis."""
    sizes = [axis.size for axis in proto.mesh.axes]
    devices = _device_grid(site, sizes)
    if len(proto.mesh.device_ids) == devices.size:
        devices = np.array(proto.mesh.device_ids).reshape(sizes)
    elif len(proto.mesh.device_ids):
        raise site.malformed(f"{len(proto.mesh.device_ids)} devices in a mesh of {devices.size}")
    elif proto.mesh.order.reshape_dims:
        devices = _in_order(site, proto.mesh.order, devices.size).reshape(sizes)
    references = {reference.mesh_axis: reference for reference in proto.axes}
    if len(references) != len(proto.axes) or not set(references) <= set(range(len(sizes))):
        raise site.malformed(f"replica groups along axes {list(references)[:8]}")
    split: list[int] = []  # every mesh axis as before, grouped, after
    for axis, size in enumerate(sizes):
        before, part = 1, size
        if axis in references and references[axis].sub_axis.size:
            before, part = references[axis].sub_axis.pre_size, references[axis].sub_axis.size
        if before < 1 or part < 1 or size % (before * part):
            raise site.malformed(f"part {before}:{part} of a mesh axis of {size}")
        split += [before, part, size // (before * part)]
    inner = [3 * axis + 1 for axis in references]
    outer = [d for d in range(len(split)) if d not in inner]
    count = math.prod(split[d] for d in inner)
    return _groups_of_rows(devices.reshape(split).transpose(outer + inner).reshape(-1, count))


def _in_order(site: Site, order: Any, count: int) -> np.ndarray:
    """The devices of a mesh, numbered by a reshape and a transposition of their count."""
    shape = tuple(order.reshape_dims)
    devices = _device_grid(site, shape)
    permutation = tuple(order.transpose_perm) or tuple(range(len(shape)))
    if devices.size != count or sorted(permutation) != list(range(len(shape))):
        raise site.malformed(f"an order of {devices.size} devices in a mesh of {count}")
    return devices.transpose(permutation)


def _device_grid(site: Site, shape: Sequence[int]) -> np.ndarray:
    """All devices, counted in row-major order of this shape."""
    if not 0 < len(shape) <= 16 or min(shape) < 1 or math.prod(shape) > MOST_DEVICES:
        raise site.malformed(f"replica groups over {list(shape)[:16]} devices")
    return np.arange(math.prod(shape)).reshape(shape)


def _groups_of_rows(groups: np.ndarray) -> Groups:
    return tuple(tuple(group) for group in groups.tolist())


def _collective_done(site: Site) -> Value:
    (value,) = site.expect_operands(1)
    return value


COLLECTIVE: dict[str, Importer] = {
    **{kind: _collective(kind) for kind in ops.COLLECTIVE_KINDS if kind != "rank-id"},
    **{
        f"{kind}-start": _collective_start(kind)
        for kind in ("all-gather", "all-reduce", "collective-permute")
    },
    **{
        f"{kind}-done": _collective_done
        for kind in ("all-gather", "all-reduce", "collective-permute")
    },
}
