# Python 3.10 to 3.13, pip and make are all that these need; everything is installed into .venv.
PYTHON ?= python3
WORKERS ?= 2
PORT ?= 5000
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format docs ui clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' Makefile

setup: $(BIN)/.dev ## create .venv with Ablate and what its tests need

$(BIN)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 10) <= sys.version_info[:2] <= (3, 13) else "Ablate needs Python 3.10 to 3.13, this is " + sys.version.split()[0] + ". Give another: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(BIN)/.dev: $(BIN)/.installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(BIN)/.installed ## run both demo sweeps (a few minutes) and print their reports
	$(BIN)/ablate sweep sweeps/demo.yaml --workers $(WORKERS)
	$(BIN)/ablate sweep sweeps/demo-vision.yaml --workers $(WORKERS)
	@echo
	@echo "Both sweeps in MLflow:  $(BIN)/ablate ui"

test: $(BIN)/.dev ## run the tests on two processes
	$(BIN)/pytest -n 2 --dist worksteal

lint: $(BIN)/.dev ## check format, style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(BIN)/.dev ## put the code into its format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(BIN)/.installed ## write docs/norms.md from the registry
	$(BIN)/python -m ablate.cli.norms_page > docs/norms.md

ui: $(BIN)/.installed ## the MLflow UI on mlruns/, on loopback
	$(BIN)/ablate ui --port $(PORT)

clean: ## remove .venv and caches; mlruns/ stays
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache build *.egg-info
