# The commands of this project; `make help` lists them.

VENV := .venv
BIN := $(VENV)/bin
PINS := requirements/cpu.txt requirements/dev.txt
# Set-up is done once for each state of these files.
STAMP := $(VENV)/.setup-$(shell cat $(PINS) pyproject.toml | cksum | tr ' ' -)

.DEFAULT_GOAL := help
.PHONY: help setup demo test learn bench equality lint clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## Make .venv and install the pinned packages, once (about 3 minutes)

demo: $(STAMP) ## Train the default run here from start to end and show it (Ctrl-C stops all of it)
	@$(BIN)/tautrain demo

# Runs one phase of the tests: $(1) is its name, $(2) the command.
define phase
@begin=$$(date +%s); echo "== $(1)"; \
if $(2); then echo "== $(1): passed in $$(( $$(date +%s) - begin )) s"; \
else echo "== $(1): FAILED after $$(( $$(date +%s) - begin )) s; later phases did not run" >&2; exit 1; fi
endef

test: $(STAMP) ## Check format, lint and types, then run all tests, real training included
	$(call phase,format,$(BIN)/ruff format --check .)
	$(call phase,lint,$(BIN)/ruff check .)
	$(call phase,types,$(BIN)/mypy)
	$(call phase,unit tests,$(BIN)/python -m pytest -q tests --ignore=tests/e2e)
	$(call phase,end-to-end tests,$(BIN)/python -m pytest -q tests/e2e)
	@echo "== all phases passed"

learn: $(STAMP) ## Train from several seeds and a negative control, and print the table
	@$(BIN)/python -m tests.e2e.learn

bench: $(STAMP) ## Measure what a rollout costs besides its models, against the same calls of τ²
	@$(BIN)/python -m bench.rewards

equality: $(STAMP) ## Compare our rewards with τ²'s on every task and on random mutations (half an hour)
	@$(BIN)/python -u -m bench.equality

lint: $(STAMP) ## Reformat, and mend what the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/mypy

clean: ## Remove .venv, builds and caches; the data folder stays
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

CANDIDATES := $(strip $(PYTHON) python3 python3.11 python3.12)
# Whether a Python is one that the pins are for, and can make a virtual environment.
USABLE := import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))

$(STAMP): $(PINS) pyproject.toml
	@if ! $(BIN)/python -c '$(USABLE)' 2>/dev/null || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		for python in $(CANDIDATES); do \
			if $$python -c '$(USABLE)' >/dev/null 2>&1; then found=$$python; break; fi; \
		done; \
		if [ -z "$$found" ]; then \
			echo "make: no usable Python 3.11 or 3.12 (with venv) among: $(CANDIDATES)." >&2; \
			echo "      Install one, or name it: make $(or $(MAKECMDGOALS),setup) PYTHON=/path/to/python3.11" >&2; \
			exit 1; \
		fi; \
		echo "== set-up: $(VENV) with $$($$found --version)"; \
		$$found -m venv --clear $(VENV); \
	fi
	@begin=$$(date +%s); echo "== set-up: installing the pinned packages (about 3 minutes, and 3 GB)" && \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/cpu.txt -r requirements/dev.txt && \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . && \
	$(BIN)/python -m pip check && \
	$(BIN)/python -c 'import torch; print("== set-up: torch", torch.__version__, "(CUDA build)" if torch.version.cuda else "(CPU build)")' && \
	echo "== set-up: done in $$(( $$(date +%s) - begin )) s"
	@rm -f $(VENV)/.setup-* && touch $@
