# One word per task; `make` alone lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.run
STAMP := $(VENV)/.stamp
PAGE := tests/dashboard
CODE = $(wildcard src tests benchmarks docs)
PYTEST := $(BIN)/pytest -n auto --dist worksteal
MINUTES ?= 10
HOURS ?= 24

# Without bytecode files every worker of pytest, and every process that a test starts, compiles all it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install setup up example torch browser screenshots quick test test-long search chaos kills case lint page-types \
  check format bench bench-policies docs hooks clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(RUN) ## make .venv with what running needs, pinned; no tools for development

$(RUN): pyproject.toml requirements/dev.txt
	@command -v $(PYTHON) >/dev/null || { \
	  echo "error: $(PYTHON) not found; install Python 3.11 or newer, or name one: make up PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: Dovetail needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1)" >&2; \
	  echo "  name a newer one: make up PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "error: $(PYTHON) cannot make virtual environments" >&2; \
	  echo "  on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements/dev.txt -e .
	@touch $@

setup: $(STAMP) ## add the tools for development, pinned; skipped while nothing changed

$(STAMP): $(RUN) requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
	@touch $@

up: install ## start a plane on this machine (more: make up ARGS="--virtual 4x8:A100 --demo")
	@$(BIN)/dovetail up $(ARGS)

example: install ## compare three policies on a real trace; writes report.html
	$(BIN)/dovetail compare philly --cluster 52x8 --policies fifo,sjf,tiresias-l --head 5000 --report report.html

torch: setup ## add PyTorch (CPU), for the examples that train and their tests
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/torch.txt

browser: $(VENV)/.browser ## what the tests of the page need: Chromium, Playwright, checkers from npm

$(VENV)/.browser: $(STAMP) requirements/browser.txt $(PAGE)/package-lock.json
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/browser.txt
	cd $(PAGE) && PATH="$(abspath $(BIN)):$$PATH" npm ci --silent
	@$(PAGE)/chromium.sh
	@touch $@

screenshots: browser ## every page, light and dark, desktop and phone, into build/screenshots
	$(BIN)/python -m tests.dashboard.screenshots $(ARGS)

quick: lint ## lint, and the tests of core, model and mechanisms: under a minute of CPU
	$(BIN)/pytest -m "not long" tests/core tests/model tests/mechanisms $(ARGS)

test: setup browser ## run the tests, without the long ones (more: make test ARGS="-k tiresias")
	$(PYTEST) -m "not long" $(ARGS)

test-long: setup browser ## the long tests: 200 kills, live against simulated, ten thousand traces
	$(PYTEST) -m long $(ARGS)

search: setup ## property tests draw new worlds for MINUTES=10; a failure is kept in tests/cases
	$(BIN)/python -m tests.search --minutes $(MINUTES) $(ARGS)

chaos: setup ## simulate the whole plane under faults, with new seeds for MINUTES=10, or SEED=n; HOURS=24 each
	$(BIN)/python -m tests.chaos --hours $(HOURS) --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) \
	  $(if $(FAULTS),--faults $(FAULTS)) $(ARGS)

kills: setup ## the tests that kill real planes and engines, with new seeds, for MINUTES=10
	$(BIN)/python -m tests.search --kills --minutes $(MINUTES) $(ARGS)

case: setup ## run one failure again that a search found: make case CASE=tests/cases/NAME.json
	@test -f "$(CASE)" || { echo "error: name a case: make case CASE=tests/cases/NAME.json" >&2; exit 2; }
	DOVETAIL_CASE=$(abspath $(CASE)) $(BIN)/pytest "$$($(BIN)/python -c \
	  'import json, sys; print(json.load(open(sys.argv[1]))["test"])' $(CASE))" $(ARGS)

lint: setup ## format, lint, types, import order; changes nothing, needs no browser
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports --no-logo

page-types: browser ## types of the page's scripts and of its tests
	PATH="$(abspath $(BIN)):$$PATH" $(PAGE)/node_modules/.bin/tsc --project $(PAGE)/jsconfig.json
	$(BIN)/mypy $(PAGE)

check: lint page-types test ## what a change must pass

format: setup ## rewrite the code in the house format, fix what ruff can fix
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

bench: setup ## measure decisions per second against their expected ranges
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/bench.txt
	$(BIN)/python -m benchmarks $(ARGS)

bench-policies: setup ## every working policy on the same workloads; writes docs/systems/tournament.md
	$(BIN)/dovetail tournament --page docs/systems/tournament.md $(ARGS)

docs: setup ## write the pages that are read off the code; build the API and Python reference in build/docs
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/generate.py --build build/docs

hooks: ## lint before every commit (a git pre-commit hook)
	@hook="$$(git rev-parse --git-path hooks)/pre-commit"; \
	  if [ -e "$$hook" ] && ! grep -q 'make lint' "$$hook"; then \
	    echo "error: $$hook exists and is not ours; add 'make lint' to it by hand" >&2; exit 1; fi; \
	  mkdir -p "$$(dirname "$$hook")" && printf '#!/bin/sh\nexec make lint\n' > "$$hook" && chmod +x "$$hook" && \
	  echo "commits now run make lint first ($$hook)"

clean: ## remove all that these targets made
	rm -rf $(VENV) $(PAGE)/node_modules build dist report.html .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
