"""Tests over MPI, for which `make test-mpi` installs mpi4py: others collect none."""

from __future__ import annotations

import importlib.util
import shutil

_HAS_MPI = importlib.util.find_spec("mpi4py") is not None and shutil.which("mpirun") is not None
collect_ignore_glob = [] if _HAS_MPI else ["test_*.py"]
