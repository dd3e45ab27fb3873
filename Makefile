# Two commands: `make demo` shows what bertkit does, `make test` proves it. Each sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-peers lint types browser setup wheel clean

setup: $(READY)

# torch first and pinned, so that nothing else can pull a build with gigabytes of CUDA libraries.
$(READY): pyproject.toml constraints.txt
	@echo "== setting up $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "bertkit needs Python 3.11 or newer; set PYTHON=..."; exit 2; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -q -c constraints.txt torch numpy
	@$(BIN)/pip install -q -c constraints.txt -e ".[dev]"
	@touch $@

demo: setup
	@$(BIN)/python tools/demo.py

# mypy keeps one core busy, so it runs beside the first tests; either may fail.
test: setup lint browser
	@echo "== mypy and tests"
	@$(BIN)/mypy & types=$$!; $(BIN)/python -m pytest -n 2; tests=$$?; wait $$types && exit $$tests

# Clients and libraries that need other versions of packages than constraints.txt names have an environment of their own.
PEERS := .venv-peers

test-peers: setup
	@$(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/pip install -q torch==$$(sed -n 's/^torch==//p' constraints.txt) numpy
	@$(PEERS)/bin/pip install -q -e ".[serve]" -r peers/requirements.txt
	@$(PEERS)/bin/python -m pytest peers

lint: setup
	@echo "== ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup
	@echo "== mypy"
	@$(BIN)/mypy

# The page's tests need a browser; one that is missing stops here, with a sentence, and is never skipped.
browser: setup
	@echo "== browser"
	@$(BIN)/python tools/fetch_chromium.py

# The sdist and the wheel, in dist/.
wheel: setup
	@$(BIN)/python tools/build_wheel.py dist

clean:
	rm -rf $(VENV) $(PEERS) .cache .pytest_cache .mypy_cache .ruff_cache
