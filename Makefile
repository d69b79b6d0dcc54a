PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SEED ?=
SEEDS ?= 100
SECONDS ?= 60
RECORDS ?= 100000
# Which tests run where; tests/test_makefile.py sees to it that each runs once.
GOLDEN := backends/lmdb/test_golden.py
CONTRACTS := backends/test_contract.py $(GOLDEN) codec
KAFKA := contract native gaps limits fields topics sharing copying reading lag settings
DOORS := tools testing harness/proof cli test_docs.py
BESIDE := backends/kafka engines spark $(DOORS)
LATER := backends/lmdb $(BESIDE)
comma := ,
space := $(subst ,, )
WHOLE := $(subst $(space),$(comma),$(patsubst %,*/core/%.py,$(patsubst %,groups/%,machine draft group events allocators even_shares seat silence checkpoint handed_out group_bytes journal) byte_fields $(patsubst %,computations/%,dispatch policy attempts)))

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-8s %s\n", $$1, $$2}'

.PHONY: setup
setup: $(STAMP) ## Make .venv, install the pinned requirements, say what optional parts still need
	@$(BIN)/python -m headrace.ops.needs

$(STAMP): requirements/dev.txt pyproject.toml hatch_build.py src/headrace/backends/kafka/client/columns.c
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed: make setup PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --compile -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m compileall -q src
	@touch $@

.PHONY: demo
demo: $(STAMP) ## Three stages on Spark: kill a replica, stop another, add a fourth, prove the result: two minutes
	$(BIN)/headrace demo $(if $(SEED),--seed $(SEED))

.PHONY: check
check: $(STAMP) ## Format, lint, types, layers, core and contract tests: under a minute
	$(BIN)/ruff format --check --quiet src tests examples hatch_build.py
	$(BIN)/ruff check --quiet src tests examples hatch_build.py
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo >/dev/null || $(BIN)/lint-imports
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target check-core check-contracts check-rest

.PHONY: check-core check-contracts check-rest
check-core: $(STAMP)
	$(BIN)/python -m pytest -q -m "not slow" tests/core
check-contracts: $(STAMP)
	$(BIN)/python -m pytest -q -m "not slow" $(patsubst %,tests/%,$(CONTRACTS))
check-rest: $(STAMP)
	$(BIN)/python -m pytest -q -m "not slow" $(patsubst %,--ignore=tests/%,core $(CONTRACTS) $(LATER))

.PHONY: test
test: $(STAMP) check ## Everything, Spark, Kafka, kills and damaged files included: about a quarter of an hour
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=recurse \
	  test-kafka test-brokers test-engine test-store test-doors test-spark
	$(MAKE) --no-print-directory cover

.PHONY: test-kafka test-brokers test-engine test-store test-doors test-spark
test-store: $(STAMP)
	$(BIN)/python -m pytest -q -m "not slow" tests/backends/lmdb --ignore=tests/$(GOLDEN)
	$(BIN)/python -m pytest -q -m slow $(patsubst %,--ignore=tests/%,$(BESIDE))
test-engine: $(STAMP)
	$(BIN)/python -m pytest -q -m "not slow" tests/engines
	$(BIN)/python -m pytest -q -m slow tests/engines
test-spark: $(STAMP) # Last, beside little else: a lane that is not hurt must not pause.
	$(BIN)/python -m pytest -q -m "not slow" tests/spark
	$(BIN)/python -m pytest -q -m slow tests/spark
test-kafka: $(STAMP) # These two wait for brokers most of the time: other targets run beside them.
	$(BIN)/python -m pytest -q $(patsubst %,tests/backends/kafka/test_%.py,$(KAFKA))
test-brokers: $(STAMP)
	$(BIN)/python -m pytest -q tests/backends/kafka $(patsubst %,--ignore=tests/backends/kafka/test_%.py,$(KAFKA))
test-doors: $(STAMP)
	$(BIN)/python -m pytest -q $(patsubst %,tests/%,$(DOORS))

.PHONY: cover
cover: $(STAMP) ## Every branch of the group machine, the dispatch machine and more, by the core tests alone
	$(BIN)/coverage run -m pytest -q tests/core/groups tests/core/computations
	$(BIN)/coverage report --include='$(WHOLE)' --show-missing --fail-under=100

.PHONY: sim
sim: $(STAMP) ## Simulate groups and dispatch under faults: make sim SEEDS=400, or one seed: make sim SEED=7
	$(BIN)/python -m tests.harness.simulator $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

.PHONY: live
live: $(STAMP) ## Hurt real members and producers on one hub: make live SECONDS=600, or SEED=7
	$(BIN)/python -m tests.harness.live --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

.PHONY: engines
engines: $(STAMP) ## The whole contract of engines, on threads and on processes: five minutes
	$(BIN)/python -m pytest -q tests/engines/test_threads.py tests/engines/every_process.py

.PHONY: prove
prove: $(STAMP) ## Kill replicas of a topology at every fail point, 100,000 records each: make prove SEED=7
	$(BIN)/python -m tests.harness.proof --records $(RECORDS) $(if $(SEED),--seed $(SEED))

.PHONY: outages
outages: $(STAMP) ## Kill and stop a Kafka broker under load, at more moments than make test: ten minutes
	HEADRACE_ALL_OUTAGES=1 $(BIN)/python -m pytest -q tests/backends/kafka/test_outages.py

.PHONY: faults
faults: $(STAMP) ## Kill, cut the power and damage files with another seed: make faults SEED=7
	$(if $(SEED),HEADRACE_SEED=$(SEED)) $(BIN)/python -m pytest -q -m slow tests/backends/lmdb

.PHONY: bench
bench: $(STAMP) ## Measure the log against raw LMDB and a file of lines, and the group machine
	$(BIN)/headrace bench log
	$(BIN)/headrace bench groups

.PHONY: format
format: $(STAMP) ## Format the code and apply the fixes of the linter
	$(BIN)/ruff format src tests examples hatch_build.py
	$(BIN)/ruff check --fix src tests examples hatch_build.py

.PHONY: lock
lock: $(STAMP) ## Pin the requirements anew
	$(BIN)/uv pip compile pyproject.toml --group dev --extra spark --extra connect --extra kafka --universal --python-version 3.11 \
	  --generate-hashes --no-header --upgrade --quiet -o requirements/dev.txt
