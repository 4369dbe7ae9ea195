"""PyTorch: programs of ATen operators as HLO, and the ways in which PyTorch hands them over."""
