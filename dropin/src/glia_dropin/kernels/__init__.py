"""The kernels that AWS ships inside neuronxcc, implemented by kernels of glia."""
