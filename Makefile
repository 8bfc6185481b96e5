# Every target makes what it needs, its own virtual environment first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
NATIVE := $(wildcard native/*.cpp native/*.h native/*/*.cpp native/*/*.h native/CMakeLists.txt)

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench sanitize clean

help:  ## show this
	@echo "make TARGET, where TARGET is one of:"
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(READY)  ## train MNIST with two replicas against two parameter servers and say where the model and the curves are
	@$(BIN)/manyhands train mnist --strategy downpour --replicas 2 --servers 2 --epochs 8

test: $(READY)  ## run the tests, three at a time, and once more alone the few that failed
	@tests/run

lint: $(READY)  ## check style, types and the direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)  ## run a benchmark: make bench NAME=trainer_node [QUICK=1]; without NAME, list them
	@$(BIN)/python -m benchmarks $(NAME) $(if $(QUICK),--quick)

sanitize: $(READY)  ## run the native tests under the address, undefined-behaviour and thread sanitizers
	@PATH="$(CURDIR)/$(BIN):$$PATH" native/tests/sanitize.sh

clean:  ## remove the environment and everything built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): pyproject.toml constraints.txt CMakeLists.txt $(wildcard build_backend/*.py) $(NATIVE)
	@$(PYTHON) build_backend/toolchain.py
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV) (a few minutes the first time) ..."
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet -c constraints.txt torch
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	@touch $(READY)
