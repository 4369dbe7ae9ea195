"""Targets of custom calls that glia compiles, by the names that public code imports."""

from glia.graph.ops.control import KERNEL

AwsNeuronNkiKernel = KERNEL
AwsNeuronModuleMarkerStartForward = "AwsNeuronModuleMarkerStart-Forward"
AwsNeuronModuleMarkerEndForward = "AwsNeuronModuleMarkerEnd-Forward"
