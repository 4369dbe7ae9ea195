"""`nki.compiler`: its undocumented inside that public tools use."""

from nki.compiler import driver, frontend, kernel_builder, ncc_driver, target

__all__ = ["driver", "frontend", "kernel_builder", "ncc_driver", "target"]
