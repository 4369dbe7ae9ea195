"""The compile cache: compiled models on disk, found by what went into them."""
