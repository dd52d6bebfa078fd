# Two commands matter to a newcomer: `make demo` and `make test`. Everything lives in .venv beside this file.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
SHELL  := /bin/bash
.DEFAULT_GOAL := help

.PHONY: help install demo test unit lint format soak bench docs drills constraints clean

help: ## show these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(STAMP) ## make .venv and install everything that demo and tests need

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Holdfast needs Python 3.11 or later: set PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { rm -rf $(VENV); \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null && $(PYTHON) -m venv $(VENV); \
	  else echo "python3-venv is missing: run 'apt-get install python3-venv' as root"; exit 1; fi; }

$(STAMP): pyproject.toml constraints.txt $(VENV)/bin/python
	@echo "installing into $(VENV) (pinned by constraints.txt) ..."
	@$(PIP) install -c constraints.txt -e '.[torch,dev]' 2> >(grep -v WARNING >&2)
	@touch $(STAMP)

demo: install ## a real training job survives three real faults on this machine (under 3 minutes)
	@$(BIN)/holdfast demo $(ARGS)

test: install lint ## all checks and tests (what CI runs)
	@$(BIN)/python -m pytest -m "not soak" $(ARGS)

unit: install ## tests without the ones that start clusters
	@$(BIN)/python -m pytest -m "not soak and not cluster" $(ARGS)

lint: install ## ruff, mypy --strict, import contracts
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: install
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

soak: install ## long randomised runs (an hour or so)
	@$(BIN)/python -m pytest -m soak --timeout 7200 $(ARGS)

bench: install ## every figure of the docs, beside what a user would pick instead
	@$(PIP) install -c constraints.txt google-re2 defusedxml 2> >(grep -v WARNING >&2)
	@$(PIP) install -c constraints.txt --no-deps nvidia-resiliency-ext 2> >(grep -v WARNING >&2)  # its pynvml would make torch warn
	@$(BIN)/python benchmarks/run.py $(ARGS)

drills: install ## every drill on a fresh embedded cluster
	@$(BIN)/holdfast drill run --all $(ARGS)

docs: install ## write the generated pages anew
	@for script in docs/make_*.py; do $(BIN)/python $$script || exit 1; done

constraints: install
	@$(BIN)/python -m pip freeze --exclude-editable | sed 's/^torch==.*/torch==2.13.0/' > constraints.new && mv constraints.new constraints.txt

clean: ## remove .venv and caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
