# `make serve` and `make test` are the main targets; `make help` lists all. Each target first sets up the virtual
# environment, once: `make serve` with the packages for serving, the others with all.
PYTHON ?= $(shell for python in python3.11 python3; do $$python -c '$(SUITS)' 2>/dev/null && echo $$python && break; done)
SUITS := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
VENV := .venv
BIN := $(VENV)/bin
# Before the name of each image, and its tag: the version, as the compose files have it.
IMAGES ?= dilaserve
TAG ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
GPU_PYTHON ?= python3 # of `gpu-check`, which needs no virtual environment
TESTERS = $(shell expr $$(nproc) + 1) # cores + 1: many tests wait for servers
SERVING := $(VENV)/.serving # the packages of `make serve`
READY := $(VENV)/.ready # and those of all other targets
INSTALL = $(BIN)/pip install --quiet --progress-bar on --no-compile --no-build-isolation --constraint requirements.lock
SERVICES := gateway scheduler predictor worker reconfigurator
COMPILE = $(BIN)/uv pip compile --quiet --no-header --no-annotate --no-emit-index-url --no-emit-find-links

.PHONY: serve help test check fix paper clients schema gpu-check docs reference images lock audit sbom \
  screenshots clean

serve: $(SERVING) ## start the embedded cluster with the demo model (options: ARGS="...")
	$(BIN)/dilaserve up $(ARGS)

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

# The variable is empty so that modules are compiled once, not by each of the processes that tests start.
test: $(READY) ## run the default test suite (pytest options: ARGS="...")
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -m "not slow and not cuda and not docker" --numprocesses $(TESTERS) \
	  --maxprocesses 4 --dist loadscope --no-loadscope-reorder $(ARGS)

check: $(READY) ## check format, lint, types, import rules and plain English
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy || { [ $$? -eq 2 ] && $(BIN)/mypy --num-workers 0; } # 2: on a busy machine its workers start too late
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/contract/test_plain_english.py

fix: $(READY) ## format, and fix what the linter can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

paper: $(READY) ## reproduce the paper's evaluation by simulation
	$(BIN)/python -m experiments.paper $(ARGS)

clients: $(READY) ## run public clients, unchanged, against a stack (options: ARGS="...")
	$(BIN)/python -m experiments.clients $(ARGS)

schema: $(READY) ## try the gateway with requests that schemathesis makes from its OpenAPI document
	$(BIN)/python -m pytest -q tests/integration/gateway/test_openapi.py

gpu-check: ## check the engine on a GPU, with a python3 that has torch (GPU_PYTHON=...; options: ARGS="...")
	$(GPU_PYTHON) -m experiments.gpu_check $(ARGS)

docs: $(READY) ## build the documentation site into .site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

reference: $(READY) ## write the generated files docs/asyncapi.json, docs/configuration.md and compose/users.conf
	$(BIN)/python -m dilaserve.reference

# The lock pins every package. torch goes first, so that no other package pulls in another build of it. pip would compile
# all modules, one after the other; imports compile those that serving needs, a tenth of them.
$(SERVING): pyproject.toml setup.py requirements.lock
	@"$(PYTHON)" -c '$(SUITS)' 2>/dev/null || { echo "needs Python 3.11 or newer with its venv module: apt install python3-venv (or set PYTHON=...)"; exit 1; }
	@echo "Setting up $(VENV), once: downloads and installs packages (torch is the largest). Takes minutes."
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo "1 of 2: torch"
	@$(INSTALL) torch setuptools
	@echo "2 of 2: the other packages for serving"
	@$(INSTALL) --editable '.[embedded]'
	@printf '%s\n' $(SERVICES) | PYTHONDONTWRITEBYTECODE= xargs -P $$(nproc) -I{} $(BIN)/python -m services.{} --version > /dev/null
	@touch $@

$(READY): $(SERVING)
	@echo "Adding the packages of the tests and tools to $(VENV), once"
	@$(INSTALL) --editable '.[dev]'
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib > /dev/null || true # some packages have files for other versions
	@touch $@

images: ## build the image of each service with Docker, as dilaserve/SERVICE:VERSION (IMAGES=registry/path, TAG=tag)
	for service in $(SERVICES); do \
	  docker build --build-arg SERVICE=$$service --tag $(IMAGES)/$$service:$(TAG) --file compose/Dockerfile . || exit; \
	done

lock: ## pin the packages after a change in pyproject.toml, and the hashes of those in the images; keeps pins that fit
	$(BIN)/pip install --quiet uv
	$(COMPILE) --extra dev pyproject.toml --output-file requirements.lock
	sed -i 's/^\(torch==[0-9.]*\)+.*/\1/' requirements.lock  # any build of that version: CPU or CUDA
	for service in $(SERVICES); do \
	  $(COMPILE) --extra $$service --constraint requirements.lock --override compose/locks/no-torch.txt --generate-hashes \
	    --python-version 3.11 pyproject.toml compose/locks/build.txt --output-file compose/locks/$$service.lock || exit; \
	done
	for name in flash-attn-build flash-attn; do \
	  $(COMPILE) --constraint requirements.lock --override compose/locks/no-torch.txt --generate-hashes \
	    --python-version 3.11 compose/locks/$$name.txt --output-file compose/locks/$$name.lock || exit; \
	done

audit: $(READY) ## compare the pinned packages with known vulnerabilities (needs an advisory service)
	$(BIN)/pip install --quiet uv
	$(BIN)/python -m experiments.audit $(BIN)/uvx

sbom: $(READY) ## list the packages of each image as CycloneDX documents in .sbom/
	$(BIN)/pip install --quiet uv
	mkdir -p .sbom
	for service in $(SERVICES); do \
	  $(COMPILE) --extra $$service --constraint requirements.lock --generate-hashes --python-version 3.11 \
	    pyproject.toml --output-file .sbom/$$service.txt && \
	  $(BIN)/uvx --from cyclonedx-bom cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
	    --output-file .sbom/$$service.json .sbom/$$service.txt || exit; \
	done

screenshots: $(READY) ## take the console's screenshots (needs Chromium)
	$(BIN)/python -m experiments.screenshots

clean: ## delete the virtual environment and the data directory
	rm -rf $(VENV) .data
