"""The PJRT C interface, provided by Python functions."""
