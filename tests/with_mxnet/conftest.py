"""Tests with MXNet, which the environment of `make test-mxnet` has: others collect none."""

from __future__ import annotations

import importlib
import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("mxnet") else ["test_*.py"]
if importlib.util.find_spec("mxnet"):
    importlib.import_module("mx_neuron")  # before mxnet, which takes names that NumPy has dropped
