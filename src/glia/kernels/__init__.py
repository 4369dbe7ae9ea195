"""NKI kernels to learn from: each file states its roofline and the reasons for its tiling."""
