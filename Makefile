# make demo and make test do everything on a fresh machine: they create .venv, install into it once, and run.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-oldest lint bench clean

demo: .venv/.installed-demo
	$(BIN)/castling demo --out demo

test: lint
	$(BIN)/pytest -n auto --maxprocesses 8

# The suite on the oldest versions that pyproject.toml allows, in an environment of its own.
test-oldest: .venv-oldest/.installed
	.venv-oldest/bin/pytest -n auto --maxprocesses 8

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: .venv/.installed-dev
	$(BIN)/python benchmarks/attention.py

clean:
	rm -rf .venv .venv-oldest demo

$(BIN)/python:
	$(PYTHON) -m venv .venv

.venv/.installed-%: pyproject.toml | $(BIN)/python
	@echo "Installing castling-vit[$*] into .venv; the first time takes some minutes"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[$*]"
	@touch $@

.venv-oldest/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-oldest
	sed '1,/^dependencies/d' pyproject.toml | grep -oE '[a-z-]+>=[0-9.]+' | sed 's/>=/==/' > .venv-oldest/oldest.txt
	@echo "Installing the oldest versions into .venv-oldest; the first time takes some minutes"
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-oldest/oldest.txt -e ".[dev]"
	@touch $@
