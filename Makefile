# All that a checkout needs: Python 3.11 or newer (with venv), git, make. `make` alone lists the targets.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

PROTOS := $(wildcard proto/dualpath/v1/*.proto)
SOURCES := $(wildcard sdk scheduler engine_agent storage_shim simulator tests benchmarks examples)
UV_VERSION := 0.13.9
CHAOS_OPTIONS = $(if $(SEED),--seed $(SEED)) $(if $(OUT),--out $(OUT))

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format proto bench-main bench-control bench-rebuild reproduce sim-chaos mutants storm soak chaos lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(VENV)/.installed ## create .venv with the locked packages; instant when nothing changed
	@:

demo: setup ## one agent session end to end on this machine; OUT=file.json keeps the numbers
	@$(BIN)/dualpath demo $(if $(OUT),--out $(OUT))

test: setup ## run all tests; ARGS="-k name" passes options to pytest
	@$(BIN)/pytest $(ARGS)

lint: setup ## style, formatting, types, import rules, freshness of the stubs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports
	$(BIN)/pytest -q -k stubs tests/unit/test_repository.py

format: setup ## let ruff fix and format the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: setup ## write the stubs in sdk/dualpath/v1 from proto/dualpath/v1
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=sdk --pyi_out=sdk --grpc_python_out=sdk $(PROTOS)

bench-main: setup ## run the main benchmark; OUT=file.json keeps the numbers
	@$(BIN)/python benchmarks/bench_main.py $(if $(OUT),--out $(OUT))

bench-control: setup ## load the scheduler over real sockets, compare other routers; OUT=file.json keeps the figures
	@$(BIN)/python -m benchmarks.control $(if $(OUT),--out $(OUT)) $(ARGS)

bench-rebuild: setup ## how soon a scheduler leads a cell of 50,000 open turns; OUT=file.json keeps the figures
	@$(BIN)/python benchmarks/bench_rebuild.py $(if $(OUT),--out $(OUT)) $(ARGS)

reproduce: setup ## simulate the paper's evaluation; OUT=file.json keeps the figures, JOBS=1 takes one core
	@$(BIN)/dualpath sim reproduce --keep build/reproduce --jobs $(or $(JOBS),0) $(if $(OUT),--out $(OUT)) \
	    $(if $(DOCS),--docs $(DOCS))

storm: setup ## kill scheduler, agents and Redis under 10,000 turns; SEED=1 TURNS=10000 SECONDS=60 OUT=file.json
	@$(BIN)/python -m tests.chaos.storm $(CHAOS_OPTIONS) $(if $(TURNS),--turns $(TURNS)) \
	    $(if $(SECONDS),--seconds $(SECONDS)) $(ARGS)

soak: setup ## a modest load for an hour, nothing may grow; MINUTES=60 SEED=1 OUT=file.json
	@$(BIN)/python -m tests.chaos.soak $(CHAOS_OPTIONS) --minutes $(or $(MINUTES),60) $(ARGS)

chaos: setup ## two schedulers, Redis with Sentinels and six agents under faults, judged; SEED=1 OUT=file.json
	@$(BIN)/python -m tests.chaos $(CHAOS_OPTIONS) $(ARGS)

sim-chaos: setup ## the scheduler under 20,000 seeds of faults; OUT=file keeps a JSON line per property; RUNS=, JOBS=
	@$(BIN)/dualpath sim chaos --runs $(or $(RUNS),20000) --jobs $(or $(JOBS),0) --json $(if $(OUT),--out $(OUT))

mutants: setup ## plant ten bugs in the scheduler: the seeds of sim-chaos must notice all; OUT=file, JOBS=
	@$(BIN)/dualpath sim chaos --mutants --jobs $(or $(JOBS),0) --json $(if $(OUT),--out $(OUT))

lock: ## write requirements.lock from pyproject.toml; UPGRADE=1 takes newer releases
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	build/lock/bin/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
	    --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) --quiet --output-file requirements.lock

clean: ## remove .venv, caches and build output
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

# Two stamps: a change of pyproject.toml alone reinstalls the package, not its dependencies.
# --no-deps: the lock is complete, so pip need not resolve it again; with --no-compile that halves the wait.
$(VENV)/.installed: $(VENV)/.locked pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.locked: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$(PYTHON) is missing or older than 3.11; name another: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot create a venv (Debian: apt install python3-venv)"; exit 1; }
	@echo "installing the locked packages into $(VENV), about a minute the first time"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile \
	    --require-hashes --requirement requirements.lock
	@touch $@
