# Each target does all of its own set-up in .venv and may be run again at any time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: demo test test-all lint types unit slow hf-versions matrix bench clean

# About one minute on two free cores, after an installation of about as long.
demo: $(VENV)/.demo
	@echo "Training four small models: about one minute on two free cores."
	@start=$$(date +%s); $(BIN)/python -m statetrack demo && \
	echo "The demo took $$(( $$(date +%s) - start )) seconds."

# What every change must pass: about ten minutes on two cores. CI runs test-all, which adds the
# tests marked slow.
test: lint types unit

test-all: test slow

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready
	$(BIN)/mypy

unit: $(VENV)/.ready
	$(BIN)/python -m pytest -m "not slow" -n 2

slow: $(VENV)/.ready
	$(BIN)/python -m pytest -m slow -n 2

# tests/hf on the oldest version of transformers that is supported; the suite has the newest.
hf-versions: $(VENV)/.ready
	PYTHON=$(BIN)/python sh tests/hf/other_version.sh 5.17.0

# A quick part of the tests with every Python found here and other versions of torch, as a table.
# CELLS="3.12:2.6.0 3.13:newest" chooses; see tests/matrix.sh.
matrix:
	sh tests/matrix.sh $(CELLS)

bench: $(VENV)/.ready
	$(BIN)/python benchmarks/cpu.py

# The documentation site, into build/site: 100 CPU seconds, most of them for the tutorials, which
# run. Every warning is an error.
.PHONY: docs
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --fresh-env --quiet \
		-c docs -d build/doctrees . build/site
	@echo "The site is in build/site: open build/site/index.html"

clean:
	rm -rf $(VENV) build dist demo

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Only what the demo needs: 1.3 GB, most of it torch. All that the tests need is 3 to 4 GB.
$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing what the demo needs into $(VENV): 1.3 GB, one to two minutes."
	$(PIP) --editable ".[demo]"
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing what the site needs into $(VENV)."
	$(PIP) --editable ".[docs]"
	@touch $@

$(VENV)/.ready: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing what the tests need into $(VENV): 3 to 4 GB, two to four minutes."
	$(PIP) --editable ".[test]"
	@touch $@
