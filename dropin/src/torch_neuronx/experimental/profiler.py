"""What runs on the device in a part of a program, with simulated times, from glia."""

from glia_dropin.device_profiling import profile

__all__ = ["profile"]
