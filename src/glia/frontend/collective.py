"""HLO operations between replicas and partitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from glia.frontend.build import Value
from glia.frontend.context import Importer, Site
from glia.graph import ops
from glia.graph.ir import Graph, TensorType, TupleType, Type

MOST_DEVICES = 2**20

_WITH_BODY = frozenset({"all-reduce", "reduce-scatter"})
_ALONG_DIMENSION = frozenset({"all-gather", "reduce-scatter", "all-to-all"})


def _collective(kind: str) -> Importer:
    return lambda site: _import(site, kind, site.type)


def _started(kind: str) -> Importer:
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
    args = site.tensors(0 if kind in ("partition-id", "replica-id") else None)
    body: tuple[Graph, ...] = (site.region(),) if kind in _WITH_BODY else ()
    dimensions = tuple(site.proto.dimensions)
    if kind in _ALONG_DIMENSION and len(dimensions) > 1:
        raise site.malformed(f"{kind} along {len(dimensions)} dimensions")
    dimension = dimensions[0] if kind in _ALONG_DIMENSION and dimensions else -1
    pairs = tuple((p.source, p.target) for p in site.proto.source_target_pairs)
    results = site.results(
        ops.Collective, args, kind, result, dimension, _replica_groups(site), pairs, body
    )
    return results[0] if isinstance(result, TensorType) else results


def _replica_groups(site: Site) -> tuple[tuple[int, ...], ...]:
    listed = site.proto.device_list.replica_groups or site.proto.replica_groups
    if listed or not site.proto.device_list.iota.groups:
        return tuple(tuple(group.replica_ids) for group in listed)
    return _iota_groups(site, site.proto.device_list.iota)


def _iota_groups(site: Site, iota: Any) -> tuple[tuple[int, ...], ...]:
    """Groups given as a reshaped and transposed count of all devices."""
    shape = tuple(iota.reshape_dims) or (iota.groups * iota.devices_per_group,)
    permutation = tuple(iota.transpose_perm) or tuple(range(len(shape)))
    count = math.prod(shape)
    if min(shape) < 1 or len(shape) > 16 or not 0 < count <= MOST_DEVICES:
        raise site.malformed(f"replica groups of {count} devices")
    if sorted(permutation) != list(range(len(shape))):
        raise site.malformed("the replica groups' permutation does not fit")
    if iota.groups < 1 or iota.groups * iota.devices_per_group != count:
        raise site.malformed(f"{iota.groups} groups of {iota.devices_per_group} out of {count}")
    groups = np.arange(count).reshape(shape).transpose(permutation).reshape(iota.groups, -1)
    return tuple(tuple(group) for group in groups.tolist())


def _done(site: Site) -> Value:
    (value,) = site.expect(1)
    return value


_KINDS = (
    "all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute",
    "partition-id", "reduce-scatter", "replica-id",
)  # fmt: skip

COLLECTIVE: dict[str, Importer] = {
    **{kind: _collective(kind) for kind in _KINDS},
    **{
        f"{kind}-start": _started(kind)
        for kind in ("all-gather", "all-reduce", "collective-permute")
    },
    **{
        f"{kind}-done": _done for kind in ("all-gather", "all-reduce", "collective-permute")
    },
}
