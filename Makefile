# Two commands do all of their own set-up on a machine with git, make and Python 3.10+:
#   make run     watch the vLLM at http://localhost:8000, or a simulated one when none answers
#   make test    lint, types, drift checks and tests
# The environment is made in .venv (VENV=… for another place) with PYTHON (default python3).

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
ARGS ?=

.PHONY: run test lint check generate benchmark clean

run: $(VENV)/.core
	@exec $(BIN)/llmobs run --demo $(ARGS)

test: $(VENV)/.dev lint check
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Generated files are committed; this fails when one is out of date.
check: $(VENV)/.dev
	$(BIN)/llmobs generate --check

generate: $(VENV)/.dev
	$(BIN)/llmobs generate

benchmark: $(VENV)/.dev
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("llmobs needs Python 3.10 or newer, this is " + sys.version.split()[0] + "; try make PYTHON=python3.11") if sys.version_info < (3, 10) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml | $(VENV)/bin/python
	$(PIP) install -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(PIP) install -e '.[dev]'
	@touch $@ $(VENV)/.core
