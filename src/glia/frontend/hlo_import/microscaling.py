"""The custom calls QuantizeMX and ScaledMatmul: what is wrong with one, by the public rules.

The calls themselves are kept for later levels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from glia.base.dtype import BF16, F16, F32, U32
from glia.frontend import microscaling_errors as wrong
from glia.frontend.hlo_import.module_context import Site
from glia.graph.ir import Node, TensorType, TupleType

_PACKED = 4  # 8-bit values in an element
_BLOCK = 32  # values that share a scale
_FORMATS = ("float8_e5m2", "float8_e4m3fn")
_LONGEST_QUOTE = 60


def check_quantize(site: Site) -> None:
    """Raise the product's error for a QuantizeMX call that breaks one of its rules."""
    place: dict[str, Any] = {"instruction": site.label, "loc": site.loc}
    config = _object(site)
    if config is None:
        raise wrong.QuantizeConfig(text=_text(site)[:_LONGEST_QUOTE], **place)
    if len(site.operands) != 1:
        raise wrong.QuantizeOperands(count=len(site.operands), **place)
    (x,) = site.tensors(1)
    if x.dtype not in (BF16, F16):
        raise wrong.QuantizeInput(type=x.type, **place)
    rank, dim = len(x.shape), config.get("dim", 0)
    if not isinstance(dim, int) or not -rank <= dim < rank or dim % rank < rank - 2:
        raise wrong.QuantizeDimension(type=x.type, dim=dim, **place)
    if config.get("block_size", _BLOCK) != _BLOCK:
        raise wrong.QuantizeBlock(block=config["block_size"], **place)
    if config.get("scale_method", "EMAX") != "EMAX":
        raise wrong.QuantizeScale(method=config["scale_method"], **place)
    extent = x.shape[dim]
    if extent % _PACKED:
        raise wrong.QuantizeExtent(dim=dim, type=x.type, extent=extent, **place)
    if not isinstance(site.type, TupleType) or len(site.type.elements) != 2:
        raise wrong.QuantizeResults(type=site.type, **place)
    reason = _malformed(config, x, dim % rank, site.type.elements[0])
    if reason:
        raise wrong.QuantizeMalformed(reason=reason, **place)


def _malformed(config: dict[str, Any], x: Node, dim: int, packed: object) -> str:
    """What is wrong with the format or with the declared packed values; "" for nothing."""
    if config.get("dtype") not in _FORMATS:
        return f"its dtype is {config.get('dtype')!r}, not one of {', '.join(_FORMATS)}"
    shape = tuple(n // _PACKED if d == dim else n for d, n in enumerate(x.shape))
    wanted = TensorType(U32, shape)
    return "" if packed == wanted else f"its packed values are {packed}, expected {wanted}"


def check_scaled_matmul(site: Site) -> None:
    """Raise the product's error for a ScaledMatmul call that breaks one of its rules."""
    place: dict[str, Any] = {"instruction": site.label, "loc": site.loc}
    if len(site.operands) != 4:
        raise wrong.ScaledOperands(count=len(site.operands), **place)
    left, right, *_ = site.tensors(4)
    if left.dtype is not U32:
        raise wrong.ScaledLeftType(type=left.type, **place)
    if not isinstance(site.type, TensorType) or site.type.dtype not in (F32, BF16):
        raise wrong.ScaledResult(type=site.type, **place)
    if len(left.shape) < 2:
        raise wrong.ScaledLeftRank(type=left.type, **place)
    if len(right.shape) < 2:
        raise wrong.ScaledRightRank(type=right.type, **place)
    dimensions = _dimensions(site)
    if dimensions is None:
        raise wrong.ScaledConfig(text=_text(site)[:_LONGEST_QUOTE], **place)
    _check_roles(left, right, dimensions, place)


def _check_roles(
    left: Node, right: Node, dimensions: dict[str, list[int]], place: dict[str, Any]
) -> None:
    contracted, batches = [], []
    for x, side in ((left, "lhs"), (right, "rhs")):
        batch = dimensions[f"{side}_batch_dimensions"]
        rank = len(x.shape)
        for dim in batch:
            if not 0 <= dim < rank:
                raise wrong.ScaledBatchRange(dim=dim, type=x.type, **place)
        dim = next(iter(dimensions[f"{side}_contracting_dimensions"]), rank - 1)
        if not 0 <= dim < rank:
            raise wrong.ScaledContractionRange(dim=dim, type=x.type, **place)
        if dim in batch:
            raise wrong.ScaledOverlap(dim=dim, type=x.type, **place)
        contracted.append(x.shape[dim])
        batches.append([x.shape[d] for d in batch])
    sizes = [math.prod(each) for each in batches]
    if len(batches[0]) == len(batches[1]) and sizes[0] != sizes[1]:
        raise wrong.ScaledBatch(left=sizes[0], right=sizes[1], **place)
    if contracted[0] != contracted[1]:
        raise wrong.ScaledContraction(left=contracted[0], right=contracted[1], **place)


def _dimensions(site: Site) -> dict[str, list[int]] | None:
    """The lists of dimensions in a ScaledMatmul call's config; None when it cannot be read."""
    config = {} if _text(site) in ("", "None") else _object(site)
    inner = None if config is None else config.get("scaled_dot_backend_config", {})
    if not isinstance(inner, dict):
        return None
    names = [f"{s}_{r}_dimensions" for s in ("lhs", "rhs") for r in ("batch", "contracting")]
    found = {name: inner.get(name, []) for name in names}
    return found if all(map(_is_whole_numbers, found.values())) else None


def _is_whole_numbers(value: object) -> bool:
    return isinstance(value, Sequence) and all(type(each) is int for each in value)


def _text(site: Site) -> str:
    config: bytes = site.proto.backend_config
    return config.decode("utf-8", "replace").strip()


def _object(site: Site) -> dict[str, Any] | None:
    """The backend_config as a JSON object; None when it is none."""
    try:
        found = json.loads(_text(site))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
