"""The profiler of the interface: what ran on simulated devices, for the tools of frameworks."""
