# `make demo` and `make test` each do all of their own set-up and may be run again at any time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types unit bench clean

demo: $(VENV)/.ready
	$(BIN)/python -m statetrack demo

test: lint types unit

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready
	$(BIN)/mypy

unit: $(VENV)/.ready
	$(BIN)/python -m pytest -n 2

bench: $(VENV)/.ready
	$(BIN)/python benchmarks/cpu.py

clean:
	rm -rf $(VENV) build dist demo

$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test]"
	touch $@
