"""NKI kernels: Python functions over `nki.language` and `nki.isa`, traced to machine programs."""
