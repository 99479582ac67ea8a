# The two commands of the README are `make demo` and `make test`; both create .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_DB := .demo/sweep.db

.PHONY: demo test long faults cluster walkthrough docs lint check clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	touch $@

# The main job without a GPU: real Ray, real server processes, simulated engine.
demo: $(VENV)/.installed
	rm -rf .demo && mkdir -p .demo
	$(BIN)/sweep start search_spaces/eagle3.yaml --simulate --db sqlite:///$(DEMO_DB)
	$(BIN)/sweep best --db sqlite:///$(DEMO_DB)

test: $(VENV)/.installed
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not faults and not cluster and not long and not walkthrough and not clock"
	$(BIN)/python -m pytest -q -m "clock and not long"

# Minutes together, and not part of `make test`: whole studies, and what every page of the documentation shows.
long: $(VENV)/.installed
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "long and not clock"
	$(BIN)/python -m pytest -q -m "long and clock"

# Minutes each, and not part of `make test`: harm done to hosts and controllers; Ray clusters of several nodes.
faults: $(VENV)/.installed
	$(BIN)/python -m pytest -q -m faults -n 3 tests/faults

cluster: $(VENV)/.installed
	$(BIN)/python -m pytest -q -m cluster tests/cluster

# The reference pages, from the program itself.
docs: $(VENV)/.installed
	$(BIN)/python docs/generator

# The README as a stranger follows it, in a clone and environments of its own: needs the package registries, a browser.
walkthrough: $(VENV)/.installed
	$(BIN)/python -m pytest -q -m walkthrough tests/walkthrough_tests

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .
	$(BIN)/hadolint docker/*Dockerfile
	$(BIN)/shellcheck docker/*.sh .ci/run

check: lint test

clean:
	rm -rf $(VENV) .demo dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
