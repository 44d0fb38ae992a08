# Continuous integration runs these targets too. Each one makes the virtual environment it needs:
# Python 3.11+, git and make are enough.

PYTHON ?= $(shell for p in python3.14 python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
DATA ?= data
# A client of `make run` needs no login, so only this machine can connect.
HOST ?= 127.0.0.1
PORT ?= 4222
HTTP_PORT ?= 8222
CONSOLE_PORT ?= 8080
ARGS ?=
# Workers of `make test`: two for each processor, because tests wait for servers, leases and time-outs for about half of
# their time. The tests of a file run on one worker, so that each worker starts few real servers.
JOBS ?= $(shell echo $$(($$(nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2) * 2)))
SEEDS ?= 10000

# pytest rewrites the assertions of 400 modules. It keeps the bytecode, which costs each worker 9 s of processor time if
# there is none, also where the environment says that Python writes no bytecode. A fresh checkout gets it before the
# workers start, in two processes.
test soak: export PYTHONDONTWRITEBYTECODE :=

.PHONY: run console test check docs soak bench parts wheels release clean compiled help

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 10

run: $(VENV)/.run compiled  ## a broker on the directory store in ./data
	@echo
	@echo "  nats://$(HOST):$(PORT)   any NATS client; e.g. nats.connect('nats://$(HOST):$(PORT)')"
	@echo "  http://$(HOST):$(HTTP_PORT)   monitoring: /varz /connz /jsz /healthz"
	@echo "  make console   pages in the browser for this broker, at http://127.0.0.1:$(CONSOLE_PORT)"
	@echo "  streams are kept in $(abspath $(DATA)); Ctrl-C ends the broker, and the next make run continues with them"
	@echo
	@$(BIN)/jetblock -a $(HOST) -p $(PORT) -m $(HTTP_PORT) --store "file://$(abspath $(DATA))" $(ARGS)

console: $(VENV)/.console  ## pages in the browser for the broker of `make run`
	@$(BIN)/jetblock console --server nats://$(HOST):$(PORT) --monitor http://$(HOST):$(HTTP_PORT) \
		--store "file://$(abspath $(DATA))" --port $(CONSOLE_PORT) $(ARGS)

test: $(VENV)/.dev compiled  ## all tests; ARGS='-k pattern' for fewer
	@$(BIN)/python -m tests.real.parts
	@[ -d tests/docs/__pycache__ ] || { for some in '[a-j]*/' '[k-z]*/ tests/test_*.py'; do \
		$(BIN)/python -m pytest -qq --collect-only -p no:cacheprovider tests/$$some >/dev/null & done; wait; }
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

check: $(VENV)/.dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy -p tests -p bench

docs: $(VENV)/.dev  ## the documentation site, into ./site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "open $(abspath site)/index.html"

soak: $(VENV)/.soak compiled  ## long runs: kill loops, simulation over many seeds, fuzzing, property tests with more examples
	@$(BIN)/python -m tests.real.parts
	@JETBLOCK_TEST_SEEDS=$(SEEDS) $(BIN)/python -m pytest -m "soak or hypothesis" --hypothesis-profile long \
		--timeout 7200 $(ARGS)

bench: $(VENV)/.dev compiled  ## measure beside the real nats-server, in one run
	@$(BIN)/python -m tests.real.parts
	@$(BIN)/python -m bench $(ARGS)

# Without files of bytecode, half of a start would be compiling if PYTHONDONTWRITEBYTECODE is set, as in many images. If
# there is a C compiler, the hottest modules become machine code, too: once for the same sources.
compiled: | $(BIN)/python
	@$(BIN)/python -m compileall -q broker jetblock
	@$(BIN)/python compile_modules.py

parts: $(VENV)/.dev  ## fetch or build the real servers that tests run against
	@$(BIN)/python -m tests.real.parts

wheels: | $(BIN)/python  ## compiled wheels for Linux on x86-64 and arm64, into ./dist
	@$(BIN)/python compile_modules.py wheels

release: | $(BIN)/python  ## build what a release publishes into ./dist, and try each part in a clean environment
	@$(BIN)/python release.py $(ARGS)

clean:  ## remove what was built, but not ./data nor the caches outside the checkout
	rm -rf $(VENV) .venv-newest build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis broker/compiled/*.*-*

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Making the virtual environment $(VENV) ..."
	@$(PYTHON) -m venv $(VENV) || { echo "python -m venv failed; on Debian: apt install python3-venv" >&2; exit 1; }

# Stamp files: nothing is installed again unless pyproject.toml has changed.
INSTALLING = @echo "Installing $(1) into $(VENV), once: this can take a minute ..."

$(VENV)/.run: pyproject.toml | $(BIN)/python
	$(call INSTALLING,jetblock and what it needs)
	@$(BIN)/python -m pip install -q -e .
	@touch $@

$(VENV)/.console: pyproject.toml | $(BIN)/python
	$(call INSTALLING,jetblock and its console)
	@$(BIN)/python -m pip install -q -e '.[console]'
	@touch $@ $(VENV)/.run

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(call INSTALLING,jetblock and what its tests need)
	@$(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@ $(VENV)/.run $(VENV)/.console

$(VENV)/.soak: pyproject.toml | $(BIN)/python
	$(call INSTALLING,jetblock and what its long runs need)
	@$(BIN)/python -m pip install -q -e '.[soak]'
	@touch $@ $(VENV)/.dev $(VENV)/.run
