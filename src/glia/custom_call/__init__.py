"""Kernels inside models: the custom call that carries a compiled kernel, written and read.

A call's backend_config holds the kernel as a NEFF, so this package stands after `neff`.
"""
