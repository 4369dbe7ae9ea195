"""The NEFF container: 1024-byte header, tar archive, and glia's own engine payload inside it.

`docs/decisions/neff-payload.md` describes every byte that the public documentation does not.
"""
