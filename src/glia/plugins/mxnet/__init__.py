"""Models of MXNet: their files as HLO, and the ways in which MXNet hands them over."""
