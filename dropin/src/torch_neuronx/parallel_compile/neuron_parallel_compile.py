"""`main`: a program's graphs collected and then compiled at once, from glia."""

from glia.cli.start import neuron_parallel_compile as main

__all__ = ["main"]

if __name__ == "__main__":
    main()
