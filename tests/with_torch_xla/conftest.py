"""Tests with torch_xla, which `make nightly-torch-xla` installs: others collect none."""

from __future__ import annotations

import importlib.util
import os

collect_ignore_glob = [] if importlib.util.find_spec("torch_xla") else ["test_*.py"]

os.environ.setdefault("PJRT_DEVICE", "NEURON")  # as users set it before they import torch_xla
