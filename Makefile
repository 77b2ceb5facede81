# make demo and make test do everything on a fresh machine: they create .venv, install into it once, and run.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint bench clean

demo: .venv/.installed-demo
	$(BIN)/castling demo --out demo

test: lint
	$(BIN)/pytest -n auto --maxprocesses 8

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: .venv/.installed-dev
	$(BIN)/python benchmarks/attention.py

clean:
	rm -rf .venv demo

$(BIN)/python:
	$(PYTHON) -m venv .venv

.venv/.installed-%: pyproject.toml | $(BIN)/python
	@echo "Installing castling-vit[$*] into .venv; the first time takes some minutes"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[$*]"
	@touch $@
