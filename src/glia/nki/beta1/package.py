"""`neuronxcc`: the package that holds the earlier generation."""

from glia.nki import beta1 as nki

__all__ = ["nki"]
