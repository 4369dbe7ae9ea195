"""The NEFF container: a 1024-byte header and a tar archive of programs, weights and views.

Programs are in the encoding of `machine.binary`; `docs/decisions/neff-payload.md` describes every
byte that the public documentation does not.
"""
