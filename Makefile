# Every target sets up what it needs from python3 (3.11 or later), its venv module and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TORCH_BIN := .venv-torch/bin
TORCH_READY := .venv-torch/.ready
TENSORFLOW_BIN := .venv-tensorflow/bin
TENSORFLOW_READY := .venv-tensorflow/.ready
MXNET_BIN := .venv-mxnet/bin
MXNET_READY := .venv-mxnet/.ready
FLAX_BIN := .venv-flax/bin
FLAX_READY := .venv-flax/.ready
OPTIMUM_BIN := .venv-optimum/bin
OPTIMUM_READY := .venv-optimum/.ready
TORCH_XLA_BIN := .venv-torch-xla/bin
TORCH_XLA_READY := .venv-torch-xla/.ready
# Other versions of Python, which `nightly-versions` looks for on the path
OTHER_VERSIONS := 3.11 3.12 3.13

# The executor multiplies one instruction's tiles at a time; more threads only wait for each other.
export OPENBLAS_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-torch nightly-torch test-mpi nightly-optimum nightly-torch-xla nightly-versions test-tensorflow test-mxnet test-flax nightly calibrate bench pages lint types clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1 /p' Makefile | awk '{ n = $$1; $$1 = ""; printf "make %-17s %s\n", n, $$0 }'

demo: $(READY)  ## train, compile, run and explain a digits classifier; files go to demo-out/
	$(BIN)/glia demo --output demo-out

test: $(READY)  ## the test suite, a process for each core
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

test-torch: $(TORCH_READY)  ## the tests with PyTorch, in an environment of their own
	$(TORCH_BIN)/python -m pytest --numprocesses auto --dist worksteal tests/pytorch \
		tests/cli/test_cli_conformance.py::test_scripts_run_on_the_device_of_native_pytorch

nightly-torch: $(TORCH_READY)  ## the tests with PyTorch that take longer
	$(TORCH_BIN)/python -m pytest --numprocesses auto --dist worksteal -m nightly tests/pytorch

nightly-optimum: $(OPTIMUM_READY)  ## the tests with optimum-neuron, in an environment of their own
	$(OPTIMUM_BIN)/python -m pytest tests/with_optimum

nightly-torch-xla: $(TORCH_XLA_READY)  ## the tests with torch_xla, in an environment of their own (6 GB)
	$(TORCH_XLA_BIN)/python -m pytest tests/with_torch_xla

nightly-versions: $(READY)  ## that every version of Python on the path makes the same NEFFs
	@for version in $(OTHER_VERSIONS); do \
		python$$version -c "" 2>/dev/null || { echo "python$$version is not on the path"; continue; }; \
		test -e .venv-versions/$$version/.ready || { \
			python$$version -m venv .venv-versions/$$version && \
			.venv-versions/$$version/bin/python -m pip install --quiet --disable-pip-version-check \
				--constraint requirements.lock click llvmlite ml_dtypes numpy protobuf rich threadpoolctl && \
			touch .venv-versions/$$version/.ready; } || exit 1; \
	done
	PATH="$$(for version in $(OTHER_VERSIONS); do printf '%s:' "$(CURDIR)/.venv-versions/$$version/bin"; done)$$PATH" \
		$(BIN)/python -m pytest -m nightly tests/neff/test_same_bytes.py

test-tensorflow: $(TENSORFLOW_READY)  ## the tests with TensorFlow, in an environment of their own
	$(TENSORFLOW_BIN)/python -m pytest --numprocesses auto --dist worksteal tests/with_tensorflow

test-mxnet: $(MXNET_READY)  ## the tests with MXNet, in an environment of their own
	$(MXNET_BIN)/python -m pytest --numprocesses auto --dist worksteal tests/with_mxnet

test-flax: $(FLAX_READY)  ## the tests with Flax, optax and Equinox, in an environment of their own
	$(FLAX_BIN)/python -m pytest --numprocesses auto --dist worksteal tests/with_flax

test-mpi: $(READY)  ## the tests over MPI; Debian: openmpi-bin and libopenmpi-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "mpi4py>=4"
	$(BIN)/python -m pytest tests/mpi

nightly: $(READY)  ## the tests that take longer, and properties with twenty times as many examples
	$(BIN)/python -m pytest -m nightly
	GLIA_TEST_EXAMPLES=20 $(BIN)/python -m pytest -m "hypothesis and not nightly"

calibrate: $(READY)  ## hold the timing model against published measurements
	$(BIN)/python benchmarks/calibrate.py

bench: $(READY)  ## measure, and write benchmarks/RESULTS.md
	$(BIN)/python benchmarks/run.py

pages: $(READY)  ## write the pages and stubs that are made from declarations
	$(BIN)/python tools/pages.py

lint: $(READY)  ## format, style and order of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)  ## what mypy says of src/ and dropin/, in strict mode
	$(BIN)/mypy

clean:  ## remove everything the other targets made
	rm -rf $(VENV) .venv-torch .venv-tensorflow .venv-mxnet .venv-flax .venv-optimum .venv-torch-xla .venv-versions demo-out .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): requirements.lock pyproject.toml dropin/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; set PYTHON")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable dropin
	@touch $@

$(TORCH_READY): requirements-torch.lock pyproject.toml dropin/pyproject.toml
	$(PYTHON) -m venv .venv-torch
	$(TORCH_BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-torch.lock
	$(TORCH_BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable dropin
	@touch $@

$(TENSORFLOW_READY): requirements-tensorflow.lock pyproject.toml dropin/pyproject.toml
	$(PYTHON) -m venv .venv-tensorflow
	$(TENSORFLOW_BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-tensorflow.lock
	$(TENSORFLOW_BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable dropin
	@touch $@

# All that is needed is in the list: mxnet itself asks for an older NumPy than glia
$(MXNET_READY): requirements-mxnet.lock pyproject.toml dropin/pyproject.toml
	$(PYTHON) -m venv .venv-mxnet
	$(MXNET_BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement requirements-mxnet.lock
	$(MXNET_BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable dropin
	@touch $@

$(FLAX_READY): requirements-flax.lock pyproject.toml dropin/pyproject.toml
	$(PYTHON) -m venv .venv-flax
	$(FLAX_BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-flax.lock
	$(FLAX_BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable dropin
	@touch $@

$(OPTIMUM_READY): requirements-optimum.lock pyproject.toml dropin/pyproject.toml
	$(PYTHON) -m venv .venv-optimum
	$(OPTIMUM_BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement requirements-optimum.lock
	$(OPTIMUM_BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable dropin
	@touch $@

# All that is needed is in the list: torch itself asks for more libraries of CUDA than it loads
$(TORCH_XLA_READY): requirements-torch-xla.lock pyproject.toml dropin/pyproject.toml
	$(PYTHON) -m venv .venv-torch-xla
	$(TORCH_XLA_BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement requirements-torch-xla.lock
	$(TORCH_XLA_BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable dropin
	@touch $@
