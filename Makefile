# run and test do all their own set-up in .venv; nothing else on the machine is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: run test lint bench bench-matmul clean

run: $(VENV)/.core
	$(BIN)/opwright run matmul

test: lint
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.test
	$(BIN)/python benchmarks/bars.py
	$(BIN)/python benchmarks/call_bars.py
	$(BIN)/python benchmarks/torch_bars.py
	$(BIN)/python benchmarks/ship_bars.py

bench-matmul: $(VENV)/.test
	$(BIN)/python benchmarks/matmul_bars.py

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Opwright needs Python 3.11 or newer: make PYTHON=python3.11 run" >&2; exit 3; }
	@$(PYTHON) -m venv $(VENV) || \
	    { echo "python3 -m venv failed: on Debian or Ubuntu, apt install python3-venv" >&2; exit 3; }

$(VENV)/.core: pyproject.toml | $(VENV)/bin/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/bin/python
	$(PIP) --editable '.[test]'
	@touch $@ $(VENV)/.core

clean:
	rm -rf $(VENV)
