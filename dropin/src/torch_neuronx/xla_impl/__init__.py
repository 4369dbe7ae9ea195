"""Parts of torch_neuronx that public code imports from its inside."""

from torch_neuronx.xla_impl import base, custom_call_targets, ops, torchscript, trace

__all__ = ["base", "custom_call_targets", "ops", "torchscript", "trace"]
