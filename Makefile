# Python 3.10 to 3.13, pip and make are all that these need; everything is installed into .venv.
PYTHON ?= python3
WORKERS ?= 2
PORT ?= 5000
BIN := .venv/bin

# What is run here may write bytecode.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-vision test fuzz chaos gpu lint format docs ui clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' Makefile

setup: $(BIN)/.dev ## create .venv with Ablate and what its tests need

QUIET := $(shell test -t 2 || echo --quiet)
# Not compiled to bytecode in advance, 270 MB of it: Python does that when a module is first imported, and most never are.
PIP := $(BIN)/python -m pip install $(QUIET) --no-compile --constraint constraints.txt
# Several times faster. uv reads no pip.conf: where that names another index, uv is told.
UV := UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$$($(BIN)/python -m pip config list | sed -n "s/^[^=]*\.index-url='\(.*\)'$$/\1/p" | head -n 1)}" \
	$(BIN)/uv pip install $(QUIET) --python $(BIN)/python --constraint constraints.txt --reinstall-package ablate-sweeps

define INSTALL
@if $(BIN)/uv --version >/dev/null 2>&1; then \
	$(UV) --editable '$(1)' || { test $$? -lt 128 && echo "uv could not; trying pip, which takes minutes ..." && $(PIP) --editable '$(1)'; }; \
else $(PIP) --editable '$(1)'; fi
endef

# torch and torchvision come by pip: it also takes files that lie on this machine and knows the indexes of pip.conf. uv leaves them as they are.
$(BIN)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 10) <= sys.version_info[:2] <= (3, 13) else "Ablate needs Python 3.10 to 3.13, this is " + sys.version.split()[0] + ". Give another: make PYTHON=python3.11 ...")'
	@echo "Creating .venv ..."
	@$(PYTHON) -m venv .venv
	@echo "Installing torch and torchvision, the largest part ..."
	@$(PIP) --no-deps torch torchvision
	@echo "Installing uv, which installs the rest ..."
	@$(PIP) --only-binary uv uv || echo "uv cannot be had here: pip installs the rest, which takes minutes."
	@echo "Installing what Ablate needs ..."
	$(call INSTALL,.)
ifdef PYTHONDONTWRITEBYTECODE
	@echo "Compiling what Ablate imports, since PYTHONDONTWRITEBYTECODE would have each process do it anew ..."
	@$(BIN)/python -c 'import ablate.cli, ablate.scheduler.worker, ablate.training.fit, ablate.reports.report, datasets, matplotlib.pyplot'
endif
	@touch $@

$(BIN)/.dev: $(BIN)/.installed
	@echo "Installing what the tests need ..."
	$(call INSTALL,.[dev])
	@touch $@
	@echo "Done. Try: $(BIN)/ablate --help"

demo: $(BIN)/.installed ## which placement learns faster than Pre-LN, each at its own rate? on text, in minutes
	$(BIN)/ablate sweep sweeps/demo.yaml --workers $(WORKERS)

demo-vision: $(BIN)/.installed ## the same question on images, in minutes
	$(BIN)/ablate sweep sweeps/demo-vision.yaml --workers $(WORKERS)

test: $(BIN)/.dev ## run the tests, three at a time: many wait for processes
	$(BIN)/pytest -n 3 --dist worksteal --durations=20

MINUTES ?= 30
SEED ?= 0
SEEDS ?= 0,1

fuzz: $(BIN)/.dev ## random configurations and damaged files, MINUTES=30, SEED=0
	$(BIN)/python tests/fuzz/run.py --minutes $(MINUTES) --seed $(SEED)

chaos: $(BIN)/.dev ## kill, stop and starve sweeps, for each of SEEDS=0,1, and all cases of tests that `make test` has some of
	ABLATE_TEST_SEEDS=$(SEEDS) $(BIN)/pytest -n 2 --dist worksteal -m chaos

gpu: $(BIN)/.dev ## test every case on a GPU that is not there; on one that is, test it and print MFU and memory beside the plan
	ABLATE_GPU_CASES=all $(BIN)/pytest tests/gpu
	@$(BIN)/python benchmarks/gpu.py

lint: $(BIN)/.dev ## check format, style, types and which room imports which
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(BIN)/.dev ## put the code into its format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(BIN)/.dev ## build docs/ and the reference, which is written from the code, into site/
	$(BIN)/python -m docs.pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "Open site/index.html"

ui: $(BIN)/.installed ## the MLflow UI on mlruns/, on loopback
	$(BIN)/ablate ui --port $(PORT)

clean: ## remove .venv and caches; mlruns/ stays
	rm -rf .venv .pytest_cache .hypothesis .ruff_cache .mypy_cache build site *.egg-info
