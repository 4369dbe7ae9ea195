"""Kernels to read: one idea in each file, with what bounds it and why it is tiled as it is."""
