# make bench     install what is needed, measure the mlp suite, and write a report
# make test      install what is needed, and run the tests
# make check     formatting, lint and types
# Each takes a ready environment instead of making .venv:  make test VENV=PATH

PYTHON ?= python3
ifeq ($(origin VENV), undefined)
VENV := .venv
READY := $(VENV)/.installed
CHECKS := $(VENV)/.installed-checks
endif
BIN := $(VENV)/bin

.PHONY: bench test test-all check
bench: $(READY)
	$(BIN)/python run_bench.py --suite mlp --resume results/first-run

test: $(READY)
	$(BIN)/python -m pytest -q

test-all: $(READY)
	$(BIN)/python -m pytest -q -m ""

check: $(CHECKS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

.venv/.installed: pyproject.toml
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".[test]"
	touch $@

.venv/.installed-checks: pyproject.toml .venv/.installed
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@
