# Two commands matter: `make serve` and `make test`. Each sets up all it needs and is quick the second time.
PYTHON ?= $(shell for python in python3.11 python3; do $$python -c '$(SUITS)' 2>/dev/null && echo $$python && break; done)
SUITS := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
VENV := .venv
BIN := $(VENV)/bin
TESTERS = $(shell expr $$(nproc) + 1) # one more than there are cores: many tests wait for servers
READY := $(VENV)/.ready

.PHONY: serve test check fix lock screenshots clean paper docs reference

serve: $(READY)
	$(BIN)/dilaserve up $(ARGS)

test: $(READY)
	$(BIN)/python -m pytest -m "not slow and not cuda and not docker" --numprocesses $(TESTERS) \
	  --maxprocesses 4 --dist loadscope --no-loadscope-reorder $(ARGS)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

paper: $(READY)
	$(BIN)/python -m experiments.paper $(ARGS)

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# docs/asyncapi.json, docs/configuration.md and the Grafana dashboard, from message types, settings and a table of panels
reference: $(READY)
	$(BIN)/python -m dilaserve.reference

# The lock pins every package; torch first, so that no other package drags in another build of it.
$(READY): pyproject.toml requirements.lock
	@"$(PYTHON)" -c '$(SUITS)' 2>/dev/null || { echo "needs Python 3.11 or newer with its venv module: apt install python3.11-venv (or set PYTHON=...)"; exit 1; }
	@echo "Setting up $(VENV), once: packages are fetched and installed (torch is the largest), which takes minutes."
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo "1 of 2: torch"
	@$(BIN)/pip install --quiet --progress-bar on --constraint requirements.lock torch
	@echo "2 of 2: everything else"
	@$(BIN)/pip install --quiet --progress-bar on --constraint requirements.lock --editable '.[dev]'
	@touch $@

lock:
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --extra dev --no-header --no-annotate --no-emit-index-url --no-emit-find-links pyproject.toml --output-file requirements.lock
	sed -i 's/^\(torch==[0-9.]*\)+.*/\1/' requirements.lock  # any build of that version: CPU or CUDA

# Needs Chromium: apt install chromium
screenshots: $(READY)
	$(BIN)/python -m experiments.screenshots

clean:
	rm -rf $(VENV) .data
