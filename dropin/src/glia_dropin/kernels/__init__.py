"""Kernels that AWS ships inside neuronxcc, on kernels of glia."""
