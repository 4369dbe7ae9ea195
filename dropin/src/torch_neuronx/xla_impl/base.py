"""Operators written with AWS's builders of HLO, which glia refuses when they are called."""

from glia_dropin.torch_operators import xla_call, xla_hlo_call

__all__ = ["xla_call", "xla_hlo_call"]
