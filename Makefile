# Every command works from a fresh clone: the first one builds .venv from constraints.txt.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Bytecode is kept whatever the environment says: checked modules are slow to make anew. It is made
# when a module is first imported, since most of what is installed never is.
export PYTHONDONTWRITEBYTECODE :=
INSTALL = $(BIN)/python -m pip install --quiet --no-compile -c constraints.txt

VENV := .venv
BIN := $(VENV)/bin
PACKAGE := $(VENV)/.package
READY := $(VENV)/.ready
MODELS := build/models
DEVICE := cpu
# Two workers with one thread each; more threads only make the small tensors of the tests wait.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: help setup browser lint types format test-fast test portable test-gpu test-models fetch-models models demo fuzz kills bench tables \
  notebooks site dist lower-bounds hooks clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(READY) ## build the virtual environment in .venv

# Python 3.11 is what the pinned versions were tried with; otherwise the newest that runs.
$(BIN)/python:
	@for python in $${PYTHON:-python3.11 python3.14 python3.13 python3.12 python3}; do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "creating $(VENV) with $$("$$python" --version)"; \
	    "$$python" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }; \
	    break; \
	  fi; \
	done
	@[ -x $@ ] || { \
	  echo "no Python 3.11 or newer found; install one, or name it: make setup PYTHON=/path/to/python3.12" >&2; \
	  exit 1; }

# The package with what it needs to run. Tests and documentation add the rest to it.
$(PACKAGE): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e .
	@touch $@

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[dev]'
	@touch $(PACKAGE) $@

browser: ## install Chromium, which the tests of pages drive, where there is none
	@for name in chromium chromium-browser google-chrome; do \
	  if command -v $$name >/dev/null; then exit 0; fi; \
	done; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	  echo "the tests of pages drive Chromium, and there is none; install it, on Debian with: sudo apt-get install chromium" >&2; \
	  exit 1; \
	fi; \
	echo "installing chromium"; \
	export DEBIAN_FRONTEND=noninteractive; \
	apt-get -qq update; \
	apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null

lint: $(READY) ## check style, formatting, and which room imports which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

format: $(READY) ## format, and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY) ## check types
	$(BIN)/pyright

test-fast: $(READY) ## run the fast tests, under a minute
	$(PYTEST)

test: lint types browser ## check everything: style, types, fast and slow tests
	$(PYTEST) -m "not gpu and not models"

# What other processors, thread counts and roundings could change: the rooms that compute, in their
# fast tests. Commands, pages and files are left out: they show what these rooms computed.
NUMERIC := $(addprefix tests/,adapters cases certificates compare engine evaluation fleets interactions methods predictor \
  rasp subject task test_circuit.py training)
MACHINES := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2

portable: $(READY) ## run the tests that compute as other processors would, with one and two threads
	for machine in $(MACHINES); do \
	  for threads in 1 2; do \
	    echo "$$machine OMP_NUM_THREADS=$$threads"; \
	    env $$machine OMP_NUM_THREADS=$$threads $(BIN)/python -m pytest -q -n $$((3 - threads)) $(NUMERIC); \
	  done; \
	done
	$(PYTEST) -q -p tests.rounding $(NUMERIC)

# In one process, with what the machine has: neither .venv nor beartype is needed, so that
# `make test-gpu PYTHON=python3` runs where PyTorch with CUDA is installed already. Only files with
# such tests are read: others import what tests of pages and of packaging need.
test-gpu: $(if $(PYTHON),,$(READY)) ## run the tests that need CUDA (PYTHON=python3: without .venv)
	$(or $(PYTHON),$(BIN)/python) -m pytest -o addopts="--strict-markers --strict-config" -m gpu \
	  $$(grep -rl --include='test_*.py' 'pytest.mark.gpu' tests)

models: fetch-models ## compare the methods on them, in docs/results/language-models.md (DEVICE=cuda: 10 minutes)
	$(BIN)/python -m lab.benchmarks.language_models --models $(MODELS) --store build/language-models \
	  --device $(DEVICE) --out docs/results/language-models.md --figure docs/figures/language-models.png

tables: $(READY) ## make the tables of all methods in docs/results anew (hours; PROCESSES=2)
	$(BIN)/python -m lab.benchmarks.tables --processes $(or $(PROCESSES),2)

fetch-models: $(READY) ## fetch SmolLM2-135M, stories15M, Gemma 3 270M and Qwen2.5-Coder-1.5B into build/models (1.5 GB)
	$(BIN)/python -m lab.benchmarks.fetch_models --into $(MODELS)

test-models: fetch-models ## run the tests that need those models
	GRAPHCIRCUITS_MODELS=$(MODELS) $(BIN)/python -m pytest -m models

demo: $(PACKAGE) ## compile a program, and find its circuit in the subject that was trained on it
	$(BIN)/graphcircuits compile ib-13
	$(BIN)/graphcircuits localize ib-13 --html build/demo/ib-13.html
	@echo "open build/demo/ib-13.html: the circuit that was found, and the true one"

fuzz: $(READY) ## try 20,000 random programs, and files of every kind damaged and forged by the hundred
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.fuzz --files 200
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.rasp.fuzz --programs 20000

kills: $(READY) ## kill every long command, 100 times in all, and compare what is resumed
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.kills --kills 100

bench: $(READY) ## measure speed and memory
	$(BIN)/python -m lab.benchmarks

# Built twice, with the time of the last commit in place of today's: the same bytes both times.
dist: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
dist: $(READY) ## build sdist and wheel into dist/, and check them for the package index
	rm -rf dist build/again
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/python -m build --no-isolation --outdir build/again
	for file in dist/*; do cmp "$$file" "build/again/$${file##*/}"; done
	$(BIN)/twine check --strict dist/*
	wc -c dist/*
	sha256sum dist/*

lower-bounds: $(READY) ## try the oldest versions that pyproject.toml allows (PyTorch's CUDA build: 5 GB)
	$(BIN)/python -m lab.benchmarks.versions --versions lowest

site: $(READY) ## build the documentation into build/site, which can be read from there
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open build/site/index.html"

hooks: $(READY) ## install the git hooks
	$(BIN)/pre-commit install

clean: ## remove what the commands wrote, but not .venv
	rm -rf build dist .hypothesis .pytest_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

notebooks: $(READY) ## make docs/notebooks from examples, with outputs (SmolLM2's as recorded, or by make fetch-models)
	$(BIN)/python -m examples
