"""What public tools use of the inside of AWS's `nki` packages, undocumented, on glia's machinery.

The names and the forms of calls are those that public files write. Where AWS's tools pass BIR or
MLIR around, an opaque object holds glia's programs.
"""
