"""The binary form of a machine program: the payload of a NEFF.

`docs/decisions/neff-payload.md` describes every byte.
"""
