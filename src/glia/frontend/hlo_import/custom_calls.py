"""Custom-call targets: expanded where their meaning is public, kept where they call a kernel."""

from __future__ import annotations

import re
from collections.abc import Callable

from glia.base.suggestions import nearest
from glia.frontend.errors import UnknownCustomCall
from glia.frontend.hlo_import import composites
from glia.frontend.hlo_import.microscaling import check_quantize, check_scaled_matmul
from glia.frontend.hlo_import.module_context import Site
from glia.frontend.hlo_import.node_builder import NodeBuilder, Value
from glia.frontend.hlo_import.resize import resize_bilinear, resize_nearest, resize_nearest_gradient
from glia.graph import ops
from glia.graph.ir import Node, TensorType
from glia.graph.ops.control import KERNEL

_LONGEST_CONFIG_INTEGER = 18

COMPOSITE = f"neuron.{KERNEL}"  # a composite that stands for the call of a kernel
_COMPOSITE_CONFIG = re.compile(r'\{config = "([^"\\]*)"\}')


def _backend_config(site: Site) -> str:
    config: bytes = site.proto.backend_config
    return config.decode("utf-8", "replace").strip().strip('"')


def _config_integer(site: Site) -> int:
    """The backend_config, which must be one integer."""
    text = _backend_config(site)
    if not text.lstrip("-").isdecimal() or len(text) > _LONGEST_CONFIG_INTEGER:
        raise site.bad_custom_call(f"backend_config {text[:40]!r} is not an integer")
    return int(text)


def _config_dimension(site: Site, x: Node) -> int:
    """The backend_config as a dimension of x; negative ones count from the end."""
    dimension = _config_integer(site)
    rank = len(x.shape)
    if not -rank <= dimension < rank:
        raise site.bad_custom_call(f"dimension {dimension} of {x.type}")
    return dimension % rank


def _operands(site: Site, count: int) -> tuple[Node, ...]:
    if len(site.operands) != count:
        raise site.bad_custom_call(f"{len(site.operands)} operands, expected {count}")
    return site.tensors()


def _sole_operand(site: Site) -> Node:
    (x,) = _operands(site, 1)
    return x


def _unary(function: Callable[[NodeBuilder, Node], Node]) -> Callable[[Site], Value]:
    return lambda site: function(site, _sole_operand(site))


def _resize(function: Callable[[Site, Node, str], Node]) -> Callable[[Site], Value]:
    return lambda site: function(site, _sole_operand(site), _backend_config(site))


def _softmax(site: Site) -> Value:
    x = _sole_operand(site)
    return composites.softmax(site, x, _config_dimension(site, x))


def _rms_norm(site: Site) -> Value:
    x, weight, epsilon = _operands(site, 3)
    dimension = _config_dimension(site, x)
    if weight.shape != (x.shape[dimension],) or epsilon.shape:
        raise site.bad_custom_call(f"weight {weight.type} and epsilon {epsilon.type} for {x.type}")
    normal = composites.rms_norm(site, x, weight, epsilon, dimension)
    return site.convert(normal, site.tensor_type.dtype)


def _arg_extreme(function: str) -> Callable[[Site], Value]:
    def importer(site: Site) -> Value:
        (x,) = _operands(site, 1)
        dtype = site.tensor_type.dtype
        return composites.arg_extreme(site, x, _config_dimension(site, x), dtype, function)

    return importer


def _top_k(site: Site) -> Value:
    """(values, indices) of the k largest of the last dimension; k is the backend_config."""
    x = _sole_operand(site)
    return composites.top_k(
        site, x, _config_integer(site), composites.top_k_types(site)[1].dtype, True
    )


def _xla_top_k(site: Site) -> Value:
    """XLA's own TopK: k is the extent of the result."""
    (x,) = _operands(site, 1)
    values, indices = composites.top_k_types(site)
    return composites.top_k(site, x, values.shape[-1] if values.shape else 0, indices.dtype, True)


def _identity(site: Site) -> Value:
    return site.operands[0] if len(site.operands) == 1 else site.operands


def _nothing(site: Site) -> Value:
    """JAX's mark of a value that must not be removed before the compiler sees it."""
    return ()


def _kernel(site: Site) -> Value:
    """A call of a kernel, kept as a CustomCall for later levels."""
    config = site.proto.backend_config.decode("utf-8", "replace")
    return _keep_call(site, site.proto.custom_call_target, config)


def _checked(check: Callable[[Site], None]) -> Callable[[Site], Value]:
    """A call that is kept once `check` has found nothing wrong with it."""

    def check_and_keep(site: Site) -> Value:
        check(site)
        return _kernel(site)

    return check_and_keep


def _keep_call(site: Site, target: str, config: str) -> Value:
    results = site.results(ops.CustomCall, site.tensors(), target, site.type, config)
    return results[0] if isinstance(site.type, TensorType) else results


def import_composite(site: Site) -> Value | None:
    """The kernel call that a composite wraps; None for any other call.

    A composite carries a name and a decomposition into operations; JAX emits kernels this way, so
    that the decomposition can run on the host.
    """
    attributes = {entry.key: entry.value for entry in site.proto.frontend_attributes.map}
    if attributes.get("composite.name") != COMPOSITE:
        return None
    found = _COMPOSITE_CONFIG.fullmatch(attributes.get("composite.attributes", ""))
    if found is None:
        raise site.malformed("a composite that stands for a kernel has no config")
    return _keep_call(site, KERNEL, found[1])


def _undocumented(site: Site) -> Value:
    raise site.bad_custom_call(
        "its operands are not publicly documented; write the derivative in HLO operations",
    )


TARGETS: dict[str, Callable[[Site], Value]] = {
    "AwsNeuronErf": _unary(lambda build, x: build.map("erf", x)),
    "AwsNeuronGelu": _unary(composites.gelu),
    "AwsNeuronGeluApprxTanh": _unary(composites.gelu_tanh),
    "AwsNeuronSilu": _unary(composites.silu),
    "AwsNeuronSoftmax": _softmax,
    "AwsNeuronRmsNorm": _rms_norm,
    "AwsNeuronArgMax": _arg_extreme("greater"),
    "AwsNeuronArgMin": _arg_extreme("less"),
    "AwsNeuronTopK": _top_k,
    "TopK": _xla_top_k,
    "ResizeNearest": _resize(resize_nearest),
    "ResizeBilinear": _resize(resize_bilinear),
    "ResizeNearestGrad": _resize(resize_nearest_gradient),
    **dict.fromkeys(
        ("AwsNeuronGeluBackward", "AwsNeuronSiluBackward", "AwsNeuronSoftmaxBackward"),
        _undocumented,
    ),
    **dict.fromkeys(
        (
            "AwsNeuronTransferWithStaticRing", "AwsNeuronLNCShardingConstraint",
            "AwsNeuronModuleMarkerStart-Forward", "AwsNeuronModuleMarkerStart-Backward",
            "AwsNeuronModuleMarkerEnd-Forward", "AwsNeuronModuleMarkerEnd-Backward",
            "NeuronBoundaryMarker-Start", "NeuronBoundaryMarker-End",
            "Sharding", "LayoutConstraint", "annotate_device_placement",
            "xla.sdy.FuncResultSharding",
        ),
        _identity,
    ),
    **dict.fromkeys(
        (
            KERNEL, "AwsNeuronCustomOp", "AwsNeuronDevicePrint",
            "AwsNeuronCollectiveMatmul", "AwsNeuronIntMatmult", "AwsNeuronDropoutMaskV1",
        ),
        _kernel,
    ),
    "dce_sink": _nothing,
    "QuantizeMX": _checked(check_quantize),
    **dict.fromkeys(("ScaledMatmul", "__op$block_scaled_dot"), _checked(check_scaled_matmul)),
}  # fmt: skip


def import_custom_call(site: Site) -> Value:
    """The value of a custom call, expanded or kept; UnknownCustomCall for an unknown target."""
    target = site.proto.custom_call_target
    importer = TARGETS.get(target)
    if importer is None:
        raise UnknownCustomCall(
            target=target[:80],
            nearest=nearest(target, TARGETS),
            known=" ".join(TARGETS),
            instruction=site.label,
            loc=site.loc,
        )
    return importer(site)
