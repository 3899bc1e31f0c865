# The one command surface: README, CONTRIBUTING and CI call these. `make` alone lists them.

PYTHON ?= python3
PY := .venv/bin/python
READY := .venv/ready
SUPPORTED := import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))
NBVAL := $(PY) -m pytest --nbval --nbval-current-env

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup lab test check notebooks handouts gpu record clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile

setup: $(READY) ## install everything into .venv (the others do it themselves)

lab: $(READY) ## open JupyterLab on the first lesson (LAB_ARGS=... is passed on)
	.venv/bin/jupyter lab --ServerApp.root_dir=. notebooks/00_start_here.ipynb $(LAB_ARGS)

test: $(READY) lint ## everything: lint, unit tests, every lesson executed and compared with its stored outputs
	$(PY) -m pytest tests
	$(NBVAL) notebooks

check: $(READY) lint ## the quick part of test: lint and the frame of the lessons
	$(PY) -m pytest -q tests/test_frame.py

notebooks: $(READY) ## execute the lessons in place, in order (ONLY=03 for one)
	$(PY) -m helpers._notebooks execute $(ONLY)

handouts: $(READY) ## write copies without solutions to build/handouts/
	$(PY) -m helpers._notebooks handouts

gpu: $(READY) ## the tests that need NVIDIA GPUs; fails where there is none
	$(PY) -m pytest -m gpu tests

record: $(READY) ## measure what the lessons measure and keep it as this machine's file in notebooks/data/recorded/
	$(PY) -m helpers._notebooks record $(ONLY)

clean: ## remove what was built, but neither .venv nor lessons as text
	rm -rf build/handouts .pytest_cache .ruff_cache
	find helpers notebooks tests -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf

.PHONY: lint
lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

$(READY): requirements.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null && $(PYTHON) -c '$(SUPPORTED)' || { echo "Python 3.10 to 3.13 is needed, and $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo not there): name another, as in make lab PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --disable-pip-version-check -r requirements.txt
	@touch $@
