# Each target sets up what it needs: `make run` and `make test` work on a fresh clone.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# vLLM pins a torch of its own.
VLLM_VENV := .venv-vllm
VLLM_INSTALLED := $(VLLM_VENV)/.installed
REGISTRY := $(VENV)/registry/docker-registry
CHROMIUM := $(VENV)/chromium/chromium
MODEL_BUNDLE := build/qwen3-4b
# Test files that run side by side, each in a worker of its own from first to last test.
JOBS ?= 2
PYTEST := $(BIN)/pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup run test test-all test-gpu test-vllm check-mi350 gate gate-baseline \
    pictures lint types bench bench-all clean
.DELETE_ON_ERROR:

help: ## Print this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 13

setup: $(INSTALLED) ## Install torch, the extras and the tools into .venv

run: $(INSTALLED) ## Build and verify a bundle of a small real model
	rm -rf $(MODEL_BUNDLE)
	mkdir -p $(dir $(MODEL_BUNDLE))
	$(BIN)/flytune build --model Qwen3-4B --tokens 1,16 --out $(MODEL_BUNDLE)
	$(BIN)/flytune verify $(MODEL_BUNDLE) --strict

test: $(INSTALLED) $(REGISTRY) $(CHROMIUM) ## Run the tests, all but the slow ones
	$(PYTEST) -m "not slow and not gpu and not vllm"

test-all: $(INSTALLED) $(REGISTRY) $(CHROMIUM) ## Run every test that needs no accelerator
	$(PYTEST) -m "not gpu and not vllm"

test-gpu: $(INSTALLED) ## Run the tests that need an accelerator
	$(BIN)/pytest -m gpu

test-vllm: $(VLLM_INSTALLED) ## Run the tests with a real vLLM, in .venv-vllm
	$(VLLM_VENV)/bin/python -m pytest -m vllm tests/vllm

# Not in .venv, which has PyPI's torch: PYTHON names an environment with ROCm's.
check-mi350: ## Check all of flytune on a real MI350 or MI355X, with ROCm's torch
	PYTHON=$(PYTHON) ci/mi350.sh

# The baseline is of another machine as a rule: what its times cannot decide passes.
GATE := FLYTUNE=$(abspath $(BIN))/flytune GATE_DIR=build/gate GATE_UNDECIDED=pass \
    GATE_REFERENCE=oci:ci/gate/baseline:tiny-llama GATE_CHECK="--max-growth 20%" \
    GATE_BUILD="--model tests/data/tiny-llama.json --tokens 1,8 --threads 2 --no-sign"

gate: $(INSTALLED) ## Compare a small new bundle with the one that ci/gate keeps
	$(GATE) ci/gate/gate.sh

gate-baseline: ## Keep the bundle of the last `make gate`
	rm -rf ci/gate/baseline
	$(GATE) GATE_PUBLISH=true ci/gate/gate.sh push

pictures: $(INSTALLED) $(CHROMIUM) ## Take the README's pictures of a report anew
	$(BIN)/python ci/pictures.py

lint: $(INSTALLED) ## Check style and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(INSTALLED) ## Check types
	$(BIN)/mypy

bench: $(INSTALLED) ## Measure a first call with and without a bundle
	$(BIN)/python ci/bench/first_call.py

bench-all: $(INSTALLED) ## Measure a CPU's figures and renew the README's tables
	$(BIN)/python ci/bench/first_call.py
	$(BIN)/python ci/bench/build_cost.py
	$(BIN)/python ci/bench/agreement.py
	$(BIN)/python ci/bench/install_time.py
	$(BIN)/python ci/bench/regret.py --device cpu --models Qwen3-4B --tokens 16
	$(BIN)/python ci/bench/throughput.py --device cpu --model Qwen3-4B --tokens 16 \
	    --exhaustive 0 --bake-tokens 16
	$(BIN)/python ci/bench/compile.py
	$(BIN)/python ci/bench/coverage.py
	$(BIN)/python ci/bench/ledger.py
	$(BIN)/python ci/bench/fuzz.py
	$(BIN)/python ci/bench/faults.py
	$(BIN)/python ci/bench/tables.py

clean: ## Remove all that make has made
	rm -rf $(VENV) $(VLLM_VENV) build dist flytune.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage

# What the tests push to.
$(REGISTRY): $(INSTALLED)
	ci/registry.sh $(@D)

# What the tests open reports with.
$(CHROMIUM): $(INSTALLED)
	ci/chromium.sh $(@D)

# Every package is pinned: what vLLM's own requirements name besides is not needed.
$(VLLM_INSTALLED): pyproject.toml ci/requirements-vllm.txt
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --no-deps \
	    --extra-index-url https://download.pytorch.org/whl/cpu \
	    $$(grep ^torch== ci/requirements-vllm.txt)
	$(VLLM_VENV)/bin/python -m pip install --no-deps \
	    --requirement ci/requirements-vllm.txt
	$(VLLM_VENV)/bin/python -m pip install --no-deps --no-build-isolation --editable .
	@touch $@

# The stamp is last, so an installation that was cut short is taken up again.
$(INSTALLED): pyproject.toml ci/requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	    "error: flytune needs Python 3.11 or newer: make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --requirement ci/requirements.txt
	$(BIN)/python -m pip install --no-deps --no-build-isolation --editable .
	@touch $@
