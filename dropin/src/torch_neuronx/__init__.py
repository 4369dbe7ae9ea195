"""NKI kernels on tensors of PyTorch, and models traced for a device, from glia."""

from glia import __version__
from glia.nki.beta1 import trace as nki_jit
from glia.nki.run.frameworks import nki_op
from glia_dropin.torch_tracing import (
    BucketModelConfig,
    DataParallel,
    PartitionerConfig,
    analyze,
    async_load,
    bucket_model_trace,
    dynamic_batch,
    lazy_load,
    move_trace_to_device,
    multicore_context,
    neuron_cores_context,
    replace_weights,
    set_multicore,
    set_neuron_cores,
    trace,
)
from torch_neuronx import (
    experimental,
    initialization,
    nki,
    nki_hop,
    parallel_compile,
    utils,
    xla,
    xla_impl,
)

__all__ = [
    "BucketModelConfig",
    "DataParallel",
    "PartitionerConfig",
    "__version__",
    "analyze",
    "async_load",
    "bucket_model_trace",
    "dynamic_batch",
    "experimental",
    "initialization",
    "lazy_load",
    "move_trace_to_device",
    "multicore_context",
    "neuron_cores_context",
    "nki",
    "nki_hop",
    "nki_jit",
    "nki_op",
    "parallel_compile",
    "replace_weights",
    "set_multicore",
    "set_neuron_cores",
    "trace",
    "utils",
    "xla",
    "xla_impl",
]
