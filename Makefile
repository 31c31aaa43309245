# make bench     install what is needed, measure two small models in 90 s, and write a report
# make test      install what is needed, and run the tests that are quick
# make test-slow run those that take long; make test-gpu, on an idle machine, those that need a GPU
# make test-simgpu run the tests that need a GPU, and the command line, on simulated NVIDIA GPUs (tests/simgpu/README.md)
# make test-torch TORCH=2.6.0  the quick tests and the simulated ones with that torch, and its torchvision, in an environment of its own
# make test-all  run all of these, and on an idle machine those that judge measured times
# make check     formatting, lint, types, layers, and the generated parts of the docs
# Each takes a ready environment instead of making .venv:  make test VENV=PATH
# Tests run in two processes at once, but for those that need a GPU or judge times:  make test WORKERS=4

PYTHON ?= python3
WORKERS ?= 2
ifeq ($(origin VENV), undefined)
VENV := .venv
READY := $(VENV)/.installed
CHECKS := $(VENV)/.installed-checks
endif
BIN := $(VENV)/bin
unexport PYTHONDONTWRITEBYTECODE  # or each of the processes that the tests start compiles all anew
PARALLEL := -n $(WORKERS) --dist worksteal
SIMULATED := -n $(WORKERS) --dist loadgroup -m "gpu or simgpu" tests/gpu tests/simgpu

.PHONY: bench test test-slow test-gpu test-simgpu test-torch test-all check
bench: $(READY)
	@echo Measuring two small models, and writing the report, takes 90 s at most.
	$(BIN)/python run_bench.py --suite mlp,digits --within 90s --resume results/first-run

test: $(READY)
	$(BIN)/python -m pytest -q $(PARALLEL) -m "not slow and not gpu and not simgpu"

test-slow: $(READY)
	$(BIN)/python -m pytest -q $(PARALLEL) -m "slow and not timing and not gpu and not simgpu"

test-gpu: $(READY)
	$(BIN)/python -m pytest -q -m gpu

test-simgpu: $(READY)
	$(BIN)/python -m tests.simgpu --if-possible $(BIN)/python -m pytest -q $(SIMULATED)

test-torch: .venv-torch-$(TORCH)/.installed
	$(MAKE) test test-simgpu VENV=.venv-torch-$(TORCH)

test-all: test test-slow test-simgpu test-gpu
	$(BIN)/python -m pytest -q -m timing

check: $(CHECKS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/update.py --check

.venv/.installed: pyproject.toml
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".[test]"
	touch $@

# pip finds the torchvision that belongs to the torch.
.venv-torch-%/.installed: pyproject.toml
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check "torch==$*" torchvision -e ".[test]"
	touch $@

.venv/.installed-checks: pyproject.toml .venv/.installed
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@
