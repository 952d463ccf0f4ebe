# Targets: make install | demo | test | campaign | mutants | compat | conformance | bench | lock | clean
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ARCHIVE := $(VENV)/spark.jsa
SECONDS_OPTION := $(if $(filter command line environment override,$(origin SECONDS)),--seconds $(SECONDS),)
UV_VERSION := 0.13.8
# uv uses the system's certificates, as pip does, including those of private authorities.
export UV_SYSTEM_CERTS ?= 1
# Tests start hundreds of Pythons; without cached bytecode each would compile its modules again.
unexport PYTHONDONTWRITEBYTECODE
# All of their tests have a target of their own; five workers would collect them for nothing.
NOT_COLLECTED := --ignore=tests/compat --ignore=tests/conformance
# Otherwise numpy starts a thread for each processor, which takes a third of the start of a Python that uses it.
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: install demo test lint collect campaign mutants bench compat conformance lock clean browser
.DEFAULT_GOAL := help

help:           ## the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

install: $(VENV)/.installed   ## everything into .venv, from the lock file; creates .venv/bin/onceflow

$(VENV)/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else f"onceflow needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}: call make PYTHON=python3.12 install")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv==$(UV_VERSION)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --compile-bytecode -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q src
	@touch $@

demo: install   ## the whole pipeline with a dashboard; SECONDS=20 stops after 20 seconds and verifies the counts
	@$(BIN)/onceflow demo $(SECONDS_OPTION)

test: install browser   ## lint, strict types, all tests
	@$(MAKE) --no-print-directory -j2 lint $(ARCHIVE) collect
	$(BIN)/python -m pytest -m "not campaign and not compat and not conformance" $(NOT_COLLECTED) -n 5 --dist loadscope --no-loadscope-reorder

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

collect: install  # pytest caches the bytecode of the tests once, before five workers need it
	@$(BIN)/python -m pytest $(NOT_COLLECTED) --collect-only --quiet --quiet > $(VENV)/collected.txt || { tail $(VENV)/collected.txt; exit 1; }

$(ARCHIVE): $(VENV)/.installed  # class archive of Spark: the tests' JVMs start in half the time
	@$(BIN)/python -m tests.class_archive $@

browser:        ## Debian's chromium for the dashboard's test, if there is none and apt is allowed
	@./tests/install-chromium.sh

campaign: install   ## long runs of kills, damage and hostile clients; ONLY=word runs some; passes go to docs/campaigns.md
	$(BIN)/python -m pytest -m campaign --timeout=3000 $(if $(ONLY),-k "$(ONLY)",)

mutants: install ## the campaign of defects in the source, each with a test that must fail
	$(BIN)/python -m pytest -m campaign --timeout=3000 -k mutants

compat: install  ## other clients and Kafka's own tools against the broker, those that are installed
	$(BIN)/python -m pytest -m compat tests/compat

conformance: install  ## the same requests to Apache Kafka and to the broker, responses compared field by field
	$(BIN)/python -m pytest -m conformance tests/conformance

bench: install  ## benchmarks/, each paired with a peer if it is installed
	$(BIN)/python -m benchmarks

lock:           ## requirements.lock from pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --custom-compile-command 'make lock' --all-extras --group dev pyproject.toml -o requirements.lock

clean:          ## delete what install, test and demo have created
	rm -rf $(VENV) .onceflow .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
