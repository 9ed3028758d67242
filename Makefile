# Needs Python 3.11 or newer, make and git; everything else goes into .venv. `make` alone says what there is.

VENV ?= .venv
CONSTRAINTS ?= constraints.txt
# What `make test` and `make lint` install beside the package (setup.cfg says what is in each).
EXTRAS ?= test,dev,torch,docs
WORKERS ?= 2
PYTEST_ARGS ?=

SUITABLE = import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
CANDIDATES = python3 python3.11 python3.12 python3.13 python3.14 python
PYTHON ?= $(shell for p in $(CANDIDATES); do if $$p -c '$(SUITABLE)' 2>/dev/null; then echo $$p; break; fi; done)
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check
METADATA = setup.cfg pyproject.toml $(CONSTRAINTS)

.PHONY: help demo docs test test-all test-nightly lint clean
.DELETE_ON_ERROR:

help:
	@echo "make demo   trains a supernet on real images, searches it and writes runs/demo/report.html"
	@echo "make docs   builds the documentation, with the reference of every public name, into build/docs"
	@echo "make test   checks style and types, then runs the quick tests (5 minutes)"
	@echo "make test-all      checks style and types, then runs all tests but the nightly ones (25 minutes)"
	@echo "make test-nightly  runs what is left: clusters, buckets, several processes, all pairs (an hour)"
	@echo "make lint   checks style and types only"
	@echo "make clean  removes $(VENV) and every cache, of compiled programs too (runs/ stays)"
	@echo
	@echo "Each makes $(VENV) and installs into it by itself. Variables: PYTHON=python3.12, VENV=directory,"
	@echo "CONSTRAINTS=file, WORKERS=2, PYTEST_ARGS='-k space', EXTRAS=test,dev (that is without PyTorch, whose"
	@echo "usual Linux build is several GB: the tests that compare with it are skipped, and listed)."

demo: $(VENV)/.installed
	$(VENV)/bin/jaxnas train_supernet --config=autoformer_digits --workdir=runs/demo
	$(VENV)/bin/jaxnas search --config=autoformer_digits --workdir=runs/demo

docs: $(VENV)/.installed-docs
	$(VENV)/bin/python -m sphinx -W --keep-going -j auto docs build/docs
	@echo "Open build/docs/index.html"

# tests/tiers.py says which tests are in which tier.
PYTEST = $(VENV)/bin/python -m pytest -n $(WORKERS) --dist=loadfile --no-loadscope-reorder --max-worker-restart=0

test: lint
	$(PYTEST) --tier=quick $(PYTEST_ARGS)

test-all: lint
	$(PYTEST) $(PYTEST_ARGS)

test-nightly: $(VENV)/.installed-test
	$(PYTEST) --tier=nightly $(PYTEST_ARGS)

lint: $(VENV)/.installed-test
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/ruff check
	$(VENV)/bin/pyrefly check --python-interpreter-path=$(VENV)/bin/python

clean:
	rm -rf $(VENV) "$${XDG_CACHE_HOME:-$$HOME/.cache}/jaxnas-tests" .pytest_cache .ruff_cache .hypothesis build *.egg-info
	find jaxnas experiments benchmarks tools tests -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.made:
	@if [ -z "$(PYTHON)" ]; then \
	  echo "jaxnas needs Python 3.11 or newer with its venv module; none of these is one: $(CANDIDATES)."; \
	  echo "Install one (on Debian and Ubuntu: python3-venv too), or name one: make PYTHON=/path/to/python3"; \
	  exit 1; fi
	@"$(PYTHON)" -c '$(SUITABLE)' || { \
	  echo "$(PYTHON) is not Python 3.11 or newer with its venv module; name another: make PYTHON=/path/to/python3"; \
	  exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	@touch $@

# setuptools builds the package; taken from the constraints too, so that nothing depends on the day.
$(VENV)/.installed: $(VENV)/.made $(METADATA)
	@echo "Installing into $(VENV): about 1.3 GB, a minute or more ..."
	@$(PIP) install --quiet --constraint $(CONSTRAINTS) setuptools
	@$(PIP) install --quiet --constraint $(CONSTRAINTS) --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "Installing what the tests need into $(VENV): $(EXTRAS) ..."
	@$(PIP) install --quiet --constraint $(CONSTRAINTS) --no-build-isolation --editable '.[$(EXTRAS)]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@echo "Installing what the documentation needs into $(VENV) ..."
	@$(PIP) install --quiet --constraint $(CONSTRAINTS) --no-build-isolation --editable '.[docs]'
	@touch $@
