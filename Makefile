# Each command does everything on a fresh machine: it creates a virtual environment, installs into it once, and runs.
# PYTHON=python3.12, or a path, takes another Python than the machine's, in an environment of its own: .venv-3.12.
PYTHON ?= python3
ifeq ($(PYTHON),python3)
VENV := .venv
else
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
VENV := .venv-$(or $(VERSION),$(error PYTHON=$(PYTHON) does not run))
endif
BIN := $(VENV)/bin
OLDEST := $(VENV)-oldest
PYTEST := pytest -n auto --maxprocesses 8 --dist worksteal

.PHONY: demo check test test-oldest lint bench docs docs-serve clean

demo: $(VENV)/.installed-demo
	$(BIN)/castling demo --out demo

# What to run after each change: some minutes.
check: lint
	$(BIN)/$(PYTEST) -m "not slow"

test: lint
	$(BIN)/$(PYTEST)

# The suite on the oldest versions that pyproject.toml allows, in an environment of its own.
test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/$(PYTEST)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# The documentation as a site in site/: a broken link or a page that is missing fails.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/attention.py

clean:
	rm -rf .venv .venv-* demo site

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	@echo "Installing castling-vit[$*] into $(VENV); the first time takes some minutes"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[$*]"
	@touch $@

$(OLDEST)/.installed: pyproject.toml
	$(PYTHON) -m venv $(OLDEST)
	sed '1,/^dependencies/d' pyproject.toml | grep -oE '[a-z-]+>=[0-9.]+(; [^"]*)?' | sed 's/>=/==/' > $(OLDEST)/oldest.txt
	@echo "Installing the oldest versions into $(OLDEST); the first time takes some minutes"
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(OLDEST)/oldest.txt -e ".[dev]"
	@touch $@
