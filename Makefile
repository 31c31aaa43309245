# make bench     install what is needed, measure the mlp suite, and write a report
# make test      install what is needed, and run the tests that are quick
# make test-all  run the slow tests too
# make check     formatting, lint, types, layers, and the generated parts of the docs
# Each takes a ready environment instead of making .venv:  make test VENV=PATH
# Tests run in two processes at once, but for those that need a GPU:  make test WORKERS=4

PYTHON ?= python3
WORKERS ?= 2
ifeq ($(origin VENV), undefined)
VENV := .venv
READY := $(VENV)/.installed
CHECKS := $(VENV)/.installed-checks
endif
BIN := $(VENV)/bin

.PHONY: bench test test-all check
bench: $(READY)
	$(BIN)/python run_bench.py --suite mlp,digits --resume results/first-run

test: $(READY)
	$(BIN)/python -m pytest -q tests/gpu
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --ignore tests/gpu

test-all: $(READY)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m "not timing and not gpu"
	$(BIN)/python -m pytest -q -m "timing or gpu"

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

.venv/.installed-checks: pyproject.toml .venv/.installed
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@
