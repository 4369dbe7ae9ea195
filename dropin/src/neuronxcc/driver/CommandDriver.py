"""`main`: the command `neuronx-cc`, also as `python -m neuronxcc.driver.CommandDriver`."""  # noqa: N999, the public name

from glia.cli.start import neuronx_cc as main

__all__ = ["main"]

if __name__ == "__main__":
    main()
