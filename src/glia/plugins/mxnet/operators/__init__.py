"""Operators of MXNet as HLO, by family."""
