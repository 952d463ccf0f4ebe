# One word runs everything: make install | demo | test | campaign | mutants | compat | conformance | bench | lock | clean
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ARCHIVE := $(VENV)/spark.jsa
SECONDS_OPTION := $(if $(filter command line environment override,$(origin SECONDS)),--seconds $(SECONDS),)
UV_VERSION := 0.13.8
# The certificates of the machine, as pip takes them, so that a company's own authority is known to uv too.
export UV_SYSTEM_CERTS ?= 1

.PHONY: install demo test lint campaign mutants bench compat conformance lock clean browser
.DEFAULT_GOAL := help

help:           ## what each word does
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

install: $(VENV)/.installed   ## everything into .venv, from the lock file; leaves .venv/bin/onceflow

$(VENV)/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else f"onceflow needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}: call make PYTHON=python3.12 install")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv==$(UV_VERSION)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --compile-bytecode -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q src
	@touch $@

demo: install   ## the whole pipeline with a live page; SECONDS=20 stops by itself, verifies and says equal or not
	@$(BIN)/onceflow demo $(SECONDS_OPTION)

test: install browser   ## lint, strict types, all tests
	@$(MAKE) --no-print-directory -j2 lint $(ARCHIVE)
	$(BIN)/python -m pytest -m "not campaign and not compat and not conformance" -n 4 --dist loadscope --no-loadscope-reorder

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(ARCHIVE): $(VENV)/.installed  # Spark's classes, so that the tests' JVMs start in half the time
	@$(BIN)/python -m tests.class_archive $@

browser:        ## Debian's chromium for the page's test, where there is none and apt may be used
	@./tests/install-chromium.sh

campaign: install   ## the long runs of kills, damage and hostile frames; ONLY=word runs some; all write docs/campaigns.md
	$(BIN)/python -m pytest -m campaign --timeout=3000 $(if $(ONLY),-k "$(ONLY)",)

mutants: install ## some hundred defects put into the source, each with a test that must fail; one of the campaigns
	$(BIN)/python -m pytest -m campaign --timeout=3000 -k mutants

compat: install  ## strangers' clients and Kafka's own tools against the broker, those that are found
	$(BIN)/python -m pytest -m compat tests/compat

conformance: install  ## the same requests to Apache Kafka and to ours, answers compared field by field
	$(BIN)/python -m pytest -m conformance tests/conformance

bench: install  ## benchmarks/, each paired with a peer where one is found
	$(BIN)/python -m benchmarks

lock:           ## requirements.lock anew from pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --custom-compile-command 'make lock' --all-extras --group dev pyproject.toml -o requirements.lock

clean:          ## removes what install, test and demo made
	rm -rf $(VENV) .onceflow .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
