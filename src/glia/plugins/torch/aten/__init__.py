"""ATen operators as HLO, a file for each family of them."""
