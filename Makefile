# make help         this list
# make demo         the main job: 336,776 flights through broker, clients and Spark
# make test         the tests, unless this tree has passed them (AGAIN=1: also then)
# make test-more    more rows of the same tests: combinations, seeds and stores that make test leaves out
# make check        everything a change must pass: lint, pages, tests
# make lint         format, ruff, strict types, import contracts, generated files, citations, pages
# make docs         rewrites what is generated: import graph, sync face, tables of access, options, formats, metrics, events
# make site         the pages as a site, into site/, every link checked
# make bench        figures against budgets
# make conformance  official clients and stores against ours, and ours against the official servers
# make browser      the console in Chromium: each page and change, our broker and the official one; pictures in build/browser
# make crash        210,000 power cuts, failing calls and kills (STATES=N PAIR_STATES=N KILLS=N)
# make faults       each use of a client x each event, and consumers through faults (SEEDS=N)
# make lake         tables on a real S3 server, killed, refused and cut at every request; orders of change
# make campaign     lists all campaigns, such as siege, fuzz, kills, soak; NAME=siege runs one (MINUTES=N ...)
# make wheels       wheels of CPython 3.11 to 3.13 and one of Python alone, into dist/, each tried and checked
# make clean        removes what was built

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
KERNELS := $(wildcard src/rucola/*/_*_cy.py src/rucola/*/*/_*_cy.py src/rucola/*/*.pxd)
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test test-more check lint docs site bench conformance browser crash faults lake campaign wheels clean

# One stamp per extra. The kernels are built by the installation, so a changed kernel installs again.
$(VENV)/.built: pyproject.toml setup.py $(KERNELS)
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found: install Python 3.11 or newer"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is older than 3.11; set PYTHON=..."; exit 2; }
	@[ -x $(BIN)/python ] || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@touch $@

# PySpark comes as source: its jars are not packed only to be unpacked, and the kernels compile meanwhile.
$(VENV)/.pyspark: | $(VENV)/.built
	@$(PIP) wheel --no-deps --config-settings=--build-option=--compression=stored --wheel-dir $(VENV)/wheels pyspark
	@touch $@

$(VENV)/.package: $(VENV)/.built
	@$(PIP) install --no-compile --editable .
	@touch $@

# The last line is in place of pip's compiling, which takes one processor and also the tests of other packages.
define install
	@echo "installing rucola-mq[$(1)] into $(VENV) (PySpark is 435 MB: about a minute)"
	@$(MAKE) --no-print-directory --jobs $(VENV)/.pyspark $(VENV)/.package
	@$(PIP) install --no-compile --find-links $(VENV)/wheels 'rucola-mq[$(1)]'
	@rm -f $(VENV)/wheels/*.whl
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests/' $(VENV)/lib src || true
endef

$(VENV)/.demo: $(VENV)/.built
	@$(BIN)/python demo/flights/java.py
	$(call install,demo)
	@touch $@

$(VENV)/.dev: $(VENV)/.built
	$(call install,dev)
	@touch $@ $(VENV)/.demo

$(VENV)/.release: $(VENV)/.dev
	@$(PIP) install --no-compile 'rucola-mq[release]'
	@touch $@

help:
	@sed -n 's/^# make/make/p' Makefile

demo: $(VENV)/.demo
	@$(BIN)/python -m demo.flights

# Files of bytecode are wanted: each of the processes would compile all tests, in half a minute.
# Python 3.11 may fail to parse the source of a failed test while other threads run; --tb=native does not parse it.
RUN_TESTS = @env -u PYTHONDONTWRITEBYTECODE $(BIN)/python tools/run_tests.py --name $@ $(if $(AGAIN),--again) \
	$(BIN)/python -m pytest --tb=native --durations 10 --numprocesses 4 --dist loadfile --no-loadscope-reorder

test: $(VENV)/.dev
	$(RUN_TESTS) -m "not more"

test-more: $(VENV)/.dev
	$(RUN_TESTS) -m more

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/import_graph.py --check
	$(BIN)/python tools/async_to_sync.py --check
	$(BIN)/python tools/grpc_stub.py --check
	$(BIN)/python tools/acl_table.py --check
	$(BIN)/python tools/generated_docs.py --check
	$(BIN)/python tools/check_citations.py --check
	$(BIN)/python tools/check_docs.py --check
	$(BIN)/python tools/house.py --check
	$(BIN)/python -m tests.scenario.matrix.page --check

check: lint site test

site: $(VENV)/.release
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

wheels: $(VENV)/.release
	@$(BIN)/python tools/wheels.py
	@$(BIN)/python tools/release_check.py

bench: $(VENV)/.dev
	@$(BIN)/python -m bench.run

# Sizes such as STATES=1000 on the command line go to the campaign.
CAMPAIGN = @$(BIN)/python -m tests.campaigns $(1) $(filter-out NAME=% PYTHON=% AGAIN=%,$(MAKEOVERRIDES)) $(if $(AGAIN),--again)

conformance crash faults lake: $(VENV)/.dev
	$(call CAMPAIGN,$@)

campaign: $(VENV)/.dev
	$(call CAMPAIGN,$(NAME))

$(VENV)/.browser: $(VENV)/.dev
	@$(PIP) install --no-compile 'rucola-mq[browser]'
	@touch $@

browser: $(VENV)/.browser
	@$(BIN)/python -m tests.browser.run

docs: $(VENV)/.dev
	@$(BIN)/python tools/import_graph.py
	@$(BIN)/python tools/async_to_sync.py
	@$(BIN)/python tools/grpc_stub.py
	@$(BIN)/python tools/acl_table.py
	@$(BIN)/python tools/generated_docs.py
	@$(BIN)/python -m tests.scenario.matrix.page

clean:
	rm -rf $(VENV) build dist site .demo .bench .peers .mypy_cache .ruff_cache .pytest_cache src/*.egg-info
	find src -name '*.so' -delete
