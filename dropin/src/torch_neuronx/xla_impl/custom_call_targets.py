"""Targets of custom calls that glia compiles, by the names that public code imports."""

from glia_dropin.custom_call_targets import (
    AwsNeuronModuleMarkerEndForward,
    AwsNeuronModuleMarkerStartForward,
    AwsNeuronNkiKernel,
)

__all__ = [
    "AwsNeuronModuleMarkerEndForward",
    "AwsNeuronModuleMarkerStartForward",
    "AwsNeuronNkiKernel",
]
