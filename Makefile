# make demo    the main job: 336,776 flights through broker, clients and Spark
# make test    the tests, unless this tree has passed them (AGAIN=1: also then)
# make check   everything a change must pass: format, lint, types, import contracts, generated files, citations, tests
# make crash   110,000 power cuts, failing calls and kills (STATES=N), 24 killed brokers (KILLS=N), 500 hostile directories
# make bitflips  2,000 flipped bits in stores of RocketMQ and ours, held against what the official store serves (FLIPS=N)
# make damages  2,000 damages of every field and kind in stores of RocketMQ and ours: does verify name file and field, and
#              does a start serve at least what the official store serves? Then 4,000 lost sectors, half of them in
#              stretches that we wrote with checksums: does any reader deliver wrong bytes?
# make kills   30 kills of driver, executor, worker and broker under a Spark stream into a table, 20 under one into a
#              topic, and one of two brokers away for a minute
# make lake    every golden store archived and restored, 1,000 orders of archive, compaction and change, 200 of changes, 20 kills of
#              archiving runs, archive and store as one at 50 moments; tests/lake also on SeaweedFS, which is built from the
#              Go module proxy into build/ once (Go 1.26, 17 minutes of CPU, 2.2 GB of memory); a kill between every two
#              requests to it, every request lost, refused and cut; all jobs on two workers
# make threads a store with real threads, killed or stopped every few seconds, for half an hour (MINUTES=N)
# make faults  each use of a client x each event, in virtual time, every promise checked by a ledger; then every kind of
#              consumer through killed brokers, lost connections, clocks set back (SEEDS=N). With the official brokers, a
#              sample of the cells: python -m tests.scenario.matrix --sample 150 [--seed N] [--broker 5.5.0] --jobs 4
# make fuzz    10,000,000 changed inputs for the decoders, 100,000 more for running servers (INPUTS=N for more or fewer)
# make tenants 1,000,000 requests of every code from a low account, while its neighbours send (REQUESTS=N)
# make rebuild  queues and index of 20,000,000 messages in 200 topics: our start, store rebuild, spark rebuild (MESSAGES=N)
# make bench   figures against budgets       make conformance   official clients and store against ours
# make siege   a random mix of 61 attacks for half an hour, three canaries beside it (MINUTES=N); single ones:
#              python -m tests.attack.siege [--attack NAME] [--seconds N]
# make directories  2,000 hostile store directories for every command and start, 150 directories and tables for the jobs
#                  of rucola spark; continues where it was ended (CASES=N, SPARK_CASES=N)
# make soak    half the maximum rate for half an hour, consumers coming and going (MINUTES=N; PUBLISH=1 into docs/)
# make lab     the engine laboratory: all lessons, report into docs/lab/ (SIZE=small|normal|large); on a quiet machine
# make fallbacks  tests of client, broker and offline reader where a system has nothing of what only Linux has
# make site    the pages as a site, into site/, every link checked
# make wheels  wheels of CPython 3.11 to 3.13 and one of Python alone, into dist/, each tried in empty environments
# make release-check  metadata, README, licence, files and size of the wheels in dist/
# make spark-cluster  the archive of rucola spark package on a standalone master, local-cluster and Spark Connect
# make sample  the shop in examples/ with its own 100 tests, a broker each
# make pipeline  the template in examples/pipeline under both of its runners, twice with messages between
# make docs    rewrites what is generated: import graph, sync face, access table, tables of options, formats, metrics, events

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
KERNELS := $(wildcard src/rucola/*/_*_cy.py src/rucola/*/*/_*_cy.py src/rucola/*/*.pxd)
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.PHONY: directories pipeline damages rebuild demo site wheels spark-cluster release-check fallbacks sample test check lint crash kills lake threads bitflips faults fuzz tenants bench soak siege conformance lab docs clean

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

demo: $(VENV)/.demo
	@$(BIN)/python -m demo.flights

# Files of bytecode are wanted: each of the processes would compile all tests, in half a minute.
# Python 3.11 may fail to parse the source of a failed test while other threads run; --tb=native does not parse it.
test: $(VENV)/.dev
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python tools/run_tests.py $(if $(AGAIN),--again) \
		$(BIN)/python -m pytest --tb=native --numprocesses 4 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/import_graph.py --check
	$(BIN)/python tools/async_to_sync.py --check
	$(BIN)/python tools/acl_table.py --check
	$(BIN)/python tools/generated_docs.py --check
	$(BIN)/python tools/check_citations.py --check
	$(BIN)/python tools/check_docs.py --check
	$(BIN)/python -m tests.scenario.matrix.page --check

check: lint site test

site: $(VENV)/.release
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

wheels: $(VENV)/.release
	@$(BIN)/python tools/wheels.py

release-check: $(VENV)/.release
	@$(BIN)/python tools/release_check.py

STATES ?= 100000
KILLS ?= 12

crash: $(VENV)/.dev
	@$(BIN)/python -m tests.crash.explore --states $(STATES)
	@$(BIN)/python -m tests.crash.broker_explore --states $$(( $(STATES) / 10 ))
	@$(BIN)/python -m tests.crash.broker_kills --rounds $(KILLS)
	@$(BIN)/python -m tests.crash.hostile --variants 500
	@$(BIN)/python -m tests.crash.bitflips --variants 400

DAMAGES ?= 2000

damages: $(VENV)/.dev
	@$(BIN)/python -m tests.crash.damages --variants $(DAMAGES)
	@$(BIN)/python -m tests.crash.damage_starts --variants $(DAMAGES)
	@$(BIN)/python -m tests.crash.lost_ends --variants $$(( 2 * $(DAMAGES) ))

kills: $(VENV)/.dev
	@$(BIN)/python -m tests.spark.kills --to table --kills 30
	@$(BIN)/python -m tests.spark.kills --to topic --kills 20
	@$(BIN)/python -m tests.spark.outage

lake: $(VENV)/.dev
	@$(BIN)/python -m tests.lake.s3_server build
	@$(BIN)/python -m pytest --tb=native tests/lake
	@$(BIN)/python -m tests.lake.request_kills
	@$(BIN)/python -m tests.lake.cluster
	@$(BIN)/python -m tests.spark.lake goldens
	@$(BIN)/python -m tests.spark.lake schedules --count 1000
	@$(BIN)/python -m tests.lake.changes --count 200
	@$(BIN)/python -m tests.spark.lake kills --count 20
	@$(BIN)/python -m tests.spark.lake moments --count 50

FLIPS ?= 2000

bitflips: $(VENV)/.dev
	@$(BIN)/python -m tests.crash.bitflips --variants $(FLIPS)

threads: $(VENV)/.dev
	@$(BIN)/python -m tests.crash.threads --minutes $(MINUTES)

SEEDS ?= 5

faults: $(VENV)/.dev
	@$(BIN)/python -m tests.scenario.matrix
	@$(BIN)/python -m tests.scenario.consumer_faults --seeds $(SEEDS)

INPUTS ?= 10000000

fuzz: $(VENV)/.dev
	@$(BIN)/python -m tests.fuzz --inputs $(INPUTS)

REQUESTS ?= 1000000

tenants: $(VENV)/.dev
	@$(BIN)/python -m tests.fuzz.tenants --requests $(REQUESTS)

bench: $(VENV)/.dev
	@$(BIN)/python -m bench.run

MESSAGES ?= 20000000

rebuild: $(VENV)/.dev
	@$(BIN)/python -m bench.rebuild --messages $(MESSAGES)

MINUTES ?= 30

soak: $(VENV)/.dev
	@$(BIN)/python -m bench.soak --minutes $(MINUTES) $(if $(PUBLISH),--publish)

CASES ?= 2000
SPARK_CASES ?= 150

directories: $(VENV)/.dev
	@$(BIN)/python -m tests.attack.directories --cases $(CASES) --state build/directories.seed
	@$(BIN)/python -m tests.attack.spark_directories --cases $(SPARK_CASES) --state build/spark-directories.seed

siege: $(VENV)/.dev
	@$(BIN)/python -m tests.attack.siege --mix $(MINUTES)

conformance: $(VENV)/.dev
	@$(BIN)/python -m tests.conformance.store.run
	@$(BIN)/python -m tests.conformance.store.pending
	@$(BIN)/python -m tests.conformance.run
	@$(BIN)/python -m tests.conformance.cluster
	@$(BIN)/python -m tests.conformance.python_client
	@$(BIN)/python -m tests.conformance.guarded
	@$(BIN)/python -m tests.conformance.examples
	@$(BIN)/python -m tests.conformance.admin.run
	@$(BIN)/python -m tests.conformance.spark

spark-cluster: $(VENV)/.dev
	@$(BIN)/python -m tests.spark.cluster $(if $(ARCHIVE),--archive $(ARCHIVE))

pipeline: $(VENV)/.dev
	@$(BIN)/python -m tests.spark.pipelines

fallbacks: $(VENV)/.dev
	@$(BIN)/python -m tests.fallbacks --numprocesses 2 -k 'not uvloop'

sample: $(VENV)/.dev
	@cd examples/shop && $(CURDIR)/$(BIN)/python -m pytest -p no:cacheprovider

SIZE ?= normal

lab: $(VENV)/.dev
	@mkdir -p .lab
	@$(BIN)/rucola lab report --size $(SIZE) --out docs/lab --dir .lab

docs: $(VENV)/.dev
	@$(BIN)/python tools/import_graph.py
	@$(BIN)/python tools/async_to_sync.py
	@$(BIN)/python tools/acl_table.py
	@$(BIN)/python tools/generated_docs.py
	@$(BIN)/python -m tests.scenario.matrix.page

clean:
	rm -rf $(VENV) build dist site .demo .bench .lab .peers .mypy_cache .ruff_cache .pytest_cache src/*.egg-info
	find src -name '*.so' -delete
