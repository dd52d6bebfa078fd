# Two commands matter to a newcomer: `make demo` and `make test`. Everything lives in .venv beside this file.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
SHELL  := /bin/bash
.DEFAULT_GOAL := help

.PHONY: help install demo test unit lint format soak fuzz bench docs drills constraints clean guard audit slurm-packages slurm-newer on-newer-slurm prometheus-packages postgres-packages chromium-packages slurm-lab kubernetes-lab

PROMETHEUS_PACKAGES := prometheus prometheus-alertmanager
POSTGRES_PACKAGES := postgresql
CHROMIUM_PACKAGES := chromium fonts-dejavu-core
SLURM_PACKAGES := slurmctld slurmd slurm-client munge slurmdbd mariadb-server slurmrestd iproute2 nftables libslurm-dev gcc

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
	@$(PIP) install -c constraints.txt torch numpy -e '.[postgres,otel,dev]' 2> >(grep -v WARNING >&2)
	@touch $(STAMP)

# The training frameworks that holdfast.integrations is tested with, pyarrow, and for the walks pandas and an MPI: the demo
# needs none of them.
$(VENV)/.frameworks: $(STAMP) Makefile
	@$(PIP) install -c constraints.txt accelerate lightning mpich nv-one-logger-training-telemetry pandas transformers -e '.[parquet]' 2> >(grep -v WARNING >&2)
	@$(PIP) install -c constraints.txt --no-deps nvidia-resiliency-ext 2> >(grep -v WARNING >&2)  # its pynvml would make torch warn
	@touch $@

demo: install ## a real training job survives three real faults on this machine (under 3 minutes)
	@$(BIN)/holdfast demo $(ARGS)

# Real daemons for the tests on Slurm. While they are installed a policy keeps Debian from starting them as services.
slurm-packages:
	@export PATH=$$PATH:/usr/sbin:/sbin; missing=; \
	  for program in slurmctld slurmd sbatch munged slurmdbd mariadbd slurmrestd ip nft gcc; do command -v $$program >/dev/null || missing="$$missing $$program"; done; \
	  [ -e /usr/include/slurm/spank.h ] || missing="$$missing spank.h"; \
	  if [ -z "$$missing" ]; then :; \
	  elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing Slurm for its tests (apt-get: $(SLURM_PACKAGES)) ..."; policy=/usr/sbin/policy-rc.d; \
	    if [ -e $$policy ]; then policy=; else printf '#!/bin/sh\nexit 101\n' > $$policy && chmod +x $$policy; fi; \
	    apt-get update -qq >/dev/null 2>&1; \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(SLURM_PACKAGES) >/dev/null 2>&1 \
	      || echo "left out: tests on a real Slurm, because apt-get could not install$$missing"; \
	    [ -z "$$policy" ] || rm -f $$policy; \
	  else echo "left out: tests on a real Slurm (missing:$$missing); as root: apt-get install $(SLURM_PACKAGES)"; fi

# The real Prometheus that every shipped query and rule is run against; never started as a service.
prometheus-packages:
	@missing=; for program in prometheus promtool amtool; do command -v $$program >/dev/null || missing="$$missing $$program"; done; \
	  if [ -z "$$missing" ]; then :; \
	  elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing Prometheus for its tests (apt-get: $(PROMETHEUS_PACKAGES)) ..."; policy=/usr/sbin/policy-rc.d; \
	    if [ -e $$policy ]; then policy=; else printf '#!/bin/sh\nexit 101\n' > $$policy && chmod +x $$policy; fi; \
	    apt-get update -qq >/dev/null 2>&1; \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(PROMETHEUS_PACKAGES) >/dev/null 2>&1 \
	      || echo "left out: queries and rules on a real Prometheus, because apt-get could not install$$missing"; \
	    [ -z "$$policy" ] || rm -f $$policy; \
	  else echo "left out: queries and rules on a real Prometheus (missing:$$missing); as root: apt-get install $(PROMETHEUS_PACKAGES)"; fi

# The real PostgreSQL that the journal is tested on: the tests start a server of their own, and no service is started.
postgres-packages:
	@if command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; then :; \
	  elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing PostgreSQL for its tests (apt-get: $(POSTGRES_PACKAGES)) ..."; policy=/usr/sbin/policy-rc.d; \
	    if [ -e $$policy ]; then policy=; else printf '#!/bin/sh\nexit 101\n' > $$policy && chmod +x $$policy; fi; \
	    apt-get update -qq >/dev/null 2>&1; \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(POSTGRES_PACKAGES) >/dev/null 2>&1 \
	      || echo "left out: the journal on a real PostgreSQL, because apt-get could not install $(POSTGRES_PACKAGES)"; \
	    [ -z "$$policy" ] || rm -f $$policy; \
	  else echo "left out: the journal on a real PostgreSQL; as root: apt-get install $(POSTGRES_PACKAGES)"; fi

# The real browser that the cockpit's pages are tested in, without a window.
chromium-packages:
	@if command -v chromium >/dev/null || command -v chromium-browser >/dev/null; then :; \
	  elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing Chromium for the cockpit's tests (apt-get: $(CHROMIUM_PACKAGES)) ..."; \
	    apt-get update -qq >/dev/null 2>&1; \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(CHROMIUM_PACKAGES) >/dev/null 2>&1 \
	      || echo "left out: the cockpit in a real browser, because apt-get could not install $(CHROMIUM_PACKAGES)"; \
	  else echo "left out: the cockpit in a real browser (missing: chromium); as root: apt-get install $(CHROMIUM_PACKAGES)"; fi

# A newer Slurm than the distribution's, for the same tests: built once (5 to 15 minutes) and kept in the cache.
NEWER_SLURM := 24.11.5
NEWER_PREFIX = $(or $(XDG_CACHE_HOME),$(if $(filter 0,$(shell id -u)),/var/cache,$(HOME)/.cache))/holdfast/slurm/$(NEWER_SLURM)
ON_NEWER := tests/deploy/test_spank.py tests/adapters/slurm/test_rest.py tests/contract/test_orchestrator_slurm.py

slurm-newer: install slurm-packages ## build Debian trixie's Slurm from its sources; tests then run on it, too
	@[ -e $(NEWER_PREFIX)/complete ] || tests/newer_slurm.sh $(NEWER_SLURM) $(CURDIR)/$(BIN)/holdfast

on-newer-slurm: install
	@if [ -e $(NEWER_PREFIX)/complete ]; then \
	  PATH=$(NEWER_PREFIX)/bin:$(NEWER_PREFIX)/sbin:$$PATH $(BIN)/python -m pytest -p no:cacheprovider -m "cluster and not soak" $(ON_NEWER); \
	else echo "left out: tests on Slurm $(NEWER_SLURM); 'make slurm-newer' builds it"; fi

slurm-lab: install slurm-packages ## a real Slurm of 8 nodes on this machine (ARGS="16 --netns"); holdfast lab slurm down ends it
	@$(BIN)/holdfast lab slurm up $(ARGS)

# The control plane for the tests on Kubernetes: built once (5 minutes) and kept in ~/.cache/holdfast. Without it they fail.
kubernetes-lab: install
	@if ! command -v kubectl >/dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing kubectl for the walks (apt-get: kubernetes-client) ..."; \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends kubernetes-client >/dev/null 2>&1 || true; fi; \
	  command -v kubectl >/dev/null || echo "the walk of HyperPod on EKS will fail: kubectl is missing (apt-get install kubernetes-client)"; fi
	@$(BIN)/holdfast lab kubernetes build >/dev/null || echo "tests on a real Kubernetes will fail, for the reason above"

# Two at a time, file by file, first without clusters, then with (one Slurm at a time: tests/conftest.py), because those
# mostly wait. Last, with nothing beside, what is held to parts of a second.
TWO := $(BIN)/python -m pytest -n 2 --dist loadfile
UNIT := $(TWO) -m "not soak and not cluster"

test: install $(VENV)/.frameworks slurm-packages prometheus-packages postgres-packages chromium-packages kubernetes-lab lint ## all checks and tests (what CI runs)
ifdef ARGS
	@$(BIN)/python -m pytest -m "not soak" $(ARGS)
else
	@codes=; $(UNIT) --cache-clear; codes="$$codes $$?"; $(TWO) -m "cluster and not alone and not soak"; codes="$$codes $$?"; \
	  $(BIN)/python -m pytest -m "alone and not soak"; codes="$$codes $$?"; $(BIN)/python tests/second_try.py $$codes
	@$(MAKE) --no-print-directory on-newer-slurm
endif

unit: install $(VENV)/.frameworks ## tests without the ones that start clusters
	@$(UNIT) $(ARGS)

lint: install ## ruff, mypy --strict, import contracts
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: install
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

soak: install $(VENV)/.frameworks slurm-newer ## long randomised runs, and all tests of Slurm on a newer one (two hours or so)
	@$(BIN)/python -m pytest -m soak --timeout 7200 $(ARGS)
	@$(MAKE) --no-print-directory on-newer-slurm ON_NEWER="$$(grep -lrE '\bslurm_(lab|fixture|world|keeper)\b' tests --include='test_*.py' | tr '\n' ' ')"

# The first seed comes from the commit, so that nobody can choose seeds that pass.
fuzz: install ## SEEDS=10000 seeds of random faults for engine, controller and the launcher's cores (an hour on two cores)
	@first=$$((2000000000 + 0x$$(git rev-parse --short=7 HEAD | cut -c1-7))); \
	  $(BIN)/python -m tests.sim.launch_core --from $$first --seeds $(or $(SEEDS),10000) && \
	  $(BIN)/holdfast simulate fuzz --from $$first --seeds $(or $(SEEDS),10000) --jobs $$(nproc)

bench: install ## every figure of the docs, beside what a user would pick instead
	@$(PIP) install -c constraints.txt google-re2 defusedxml 2> >(grep -v WARNING >&2)
	@$(PIP) install -c constraints.txt --no-deps nvidia-resiliency-ext 2> >(grep -v WARNING >&2)  # its pynvml would make torch warn
	@$(BIN)/python benchmarks/run.py $(ARGS)

drills: install ## every drill on a fresh embedded cluster
	@$(BIN)/holdfast drill run --all $(ARGS)

# What changes the engine or moves code says first that nothing else changed: tests/guard, docs/decisions/076-...
guard: install ## the same events, the same orders as in an older commit (BASE=COMMIT COUNT=2000 PARTS=lab,replay)
	@PYTHONPATH=src $(BIN)/python -m tests.guard $(if $(BASE),--base $(BASE)) $(if $(COUNT),--count $(COUNT)) $(if $(PARTS),--parts $(PARTS))

# Audited is what users install, with every extra, in an environment of its own; the maker of the bill has another.
audit: install ## bill of materials, licences, security rules, known vulnerabilities (ADVISORIES=OSV folder or zip)
	@for name in shipped maker; do test -x build/audit/$$name/bin/python || $(PYTHON) -m venv build/audit/$$name || exit 1; done
	@build/audit/shipped/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt '.[postgres,aws,tls,parquet,otel,kubernetes]' 2> >(grep -v WARNING >&2)
	@build/audit/maker/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt cyclonedx-bom==7.5.0 2> >(grep -v WARNING >&2)
	@$(BIN)/python audit/run.py $(if $(ADVISORIES),--advisories $(ADVISORIES))

docs: install ## write the generated pages anew
	@for script in docs/make_*.py; do $(BIN)/python $$script || exit 1; done

constraints: install
	@$(BIN)/python -m pip freeze --exclude-editable | sed 's/^torch==.*/torch==2.13.0/' > constraints.new && mv constraints.new constraints.txt

clean: ## remove .venv and caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
