# What can be done here. `make help` lists it.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.9
# As many files of tests run at a time: most of them wait most of their time.
SIDE_BY_SIDE ?= 3
export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := $(VENV)
# Whatever is downloaded stays in this folder.
export UV_CACHE_DIR := $(CURDIR)/.tenure/cache/uv
export PIP_CACHE_DIR := $(CURDIR)/.tenure/cache/pip
export npm_config_cache := $(CURDIR)/.tenure/cache/npm
STUBS_TOOLS := golang-go protoc-gen-go-1-5 protoc-gen-go-grpc golang-google-grpc-dev golang-google-genproto-dev \
  golang-google-protobuf-dev golang-github-golang-protobuf-1-5-dev protobuf-compiler protobuf-compiler-grpc-java-plugin \
  default-jdk-headless libgrpc-java libprotobuf-java libnetty-java libperfmark-java libgeronimo-annotation-1.3-spec-java
ADVISORIES ?= https://api.osv.dev/
SOURCES := store_service mcp_bridge tests proto/generate.py

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The environment is made once and again when the lock file changes.
$(VENV)/.installed: uv.lock pyproject.toml
	@echo "installing into $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tenure needs Python 3.11 or later: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(BIN)/uv sync --frozen --quiet --all-extras
	@touch $@

.PHONY: install
install: $(VENV)/.installed ## make the virtual environment

.PHONY: demo
demo: install ## see a tool call become durable work and outlive its worker
	@$(BIN)/python -m tests.examples.demo

.PHONY: up
up: install ## keep Postgres, store, bridge and a worker running (PORT=8080, ROUTES=file)
	@$(BIN)/python -m tests.examples.up

.PHONY: test
test: install ## run the tests, three files at a time (ARGS='-k name', SIDE_BY_SIDE=0)
	@$(BIN)/pytest -n $(SIDE_BY_SIDE) --dist loadfile $(ARGS)

.PHONY: test-unbatched
test-unbatched: install ## run the tests, the model and the interleavings with each call and its statement by itself (ARGS='tests/client')
	@$(BIN)/pytest --without-batching -n $(SIDE_BY_SIDE) --dist loadfile $(ARGS)
	@$(if $(ARGS),,MODEL_SEED=1 MODEL_PARTS=2 $(BIN)/pytest --without-batching -n 2 --dist worksteal tests/model)

.PHONY: test-pgbouncer
test-pgbouncer: install ## run the store's tests through a PgBouncer in transaction mode, five connections for each database
	@PGBOUNCER_ROUNDS=$${PGBOUNCER_ROUNDS:-10000} $(BIN)/pytest --through-pgbouncer $${TESTS:-tests/store tests/security/store tests/retention} $(ARGS)

.PHONY: plans
plans: install ## print the plans of the hot statements where many tasks wait (TASKS=1000000 TENANTS=10000)
	@$(BIN)/python -m tests.store.plans

.PHONY: model
model: install ## hold the store against a pure model of its contract (MODEL_EXAMPLES=2000 MODEL_STEPS=60 MODEL_SEED=any)
	@MODEL_EXAMPLES=$${MODEL_EXAMPLES:-2000} $(BIN)/pytest tests/model $(ARGS)

.PHONY: model-ci
model-ci: install ## the same as long as a change may wait: 400 examples of 60 steps, the same ones each time, two at a time
	@MODEL_EXAMPLES=400 MODEL_STEPS=60 MODEL_SEED=1 MODEL_PARTS=4 $(BIN)/pytest -n 2 --dist worksteal tests/model $(ARGS)

.PHONY: model-mutants
model-mutants: install ## put known defects back, and see the model find each (ARGS='"a finish of another epoch"')
	@$(BIN)/python -m tests.model.mutants $(ARGS)

.PHONY: interleaving
interleaving: install ## race every pair of the store's operations (ten minutes)
	@INTERLEAVING=all $(BIN)/pytest tests/interleaving $(ARGS)

.PHONY: robustness-tools
robustness-tools: ## install what runs under fire need besides, libfaketime and PgBouncer, from Debian's packages (as root)
	@apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends libfaketime pgbouncer >/dev/null

.PHONY: robustness
robustness: install ## run it for 90 s under kills, pauses, cuts and a crash of Postgres, and judge the history (SEED=n)
	@$(BIN)/python -m tests.robustness $${SEED:+--seed $$SEED} $(ARGS)

.PHONY: robustness-mutants
robustness-mutants: install ## put the seeded bugs back, one at a time, and see a run find each (ARGS='"cursors of a sequence"')
	@$(BIN)/python -m tests.robustness.defects $(ARGS)

.PHONY: soak
soak: install ## the same for as long as you like, with failovers (MINUTES=60 SEED=n)
	@$(BIN)/python -m tests.robustness --plan soak --seconds $$(( $${MINUTES:-60} * 60 )) $${SEED:+--seed $$SEED} $(ARGS)

.PHONY: fuzz
fuzz: install ## a million bodies to the bridge, a million messages to the store (FUZZ_BODIES=n FUZZ_MESSAGES=n FUZZ_SEED=n)
	@$(BIN)/python -m tests.security.fuzz --bodies $${FUZZ_BODIES:-1000000} --messages $${FUZZ_MESSAGES:-1000000} \
	  $${FUZZ_SEED:+--seed $$FUZZ_SEED}

.PHONY: disclosure
disclosure: install ## time 2,000 answers of each kind that must not differ (ten minutes)
	@SECURITY_SAMPLES=2000 $(BIN)/pytest -s -q tests/security/test_disclosure.py $(ARGS)

.PHONY: audit
audit: install ## look up what is installed: licences, known faults (asks OSV; ADVISORIES=url)
	@$(BIN)/python -m tests.security.supply_chain
	@$(BIN)/uv audit --frozen --preview-features audit-command --service-url $(ADVISORIES) || { \
	  test $$? -eq 1 || echo "make audit: the known faults could not be read from $(ADVISORIES): nothing is known of them" >&2; exit 1; }

.PHONY: sbom
sbom: install ## list what is installed, as CycloneDX, in dist/
	@$(BIN)/python -m tests.security.supply_chain sbom

.PHONY: retention-load
retention-load: install ## clean up a million tasks by two stores that are killed twenty times (TASKS=n TENANTS=n KILLS=n)
	@$(BIN)/python -m tests.retention.load --tasks $${TASKS:-1000000} --tenants $${TENANTS:-1000} --kills $${KILLS:-20} $(ARGS)

.PHONY: cases
cases: install ## try the trials from public bug reports in full, an hour (ARGS='-k test_36'); their table: python -m tests.cases
	@CASES=all $(BIN)/pytest -q tests/cases $(ARGS)

.PHONY: subscriptions
subscriptions: install ## open 2,000 subscriptions and let their tasks change, their clients stall, reset and vanish
	@SUBSCRIPTIONS=all $(BIN)/pytest -q tests/system/test_subscriptions.py $(ARGS)

.PHONY: fmt
fmt: install ## format and mend what can be mended
	@$(BIN)/ruff format $(SOURCES)
	@$(BIN)/ruff check --fix $(SOURCES)

.PHONY: lint
lint: install ## ruff, the floors of the house, buf on the API
	@$(BIN)/ruff format --check $(SOURCES)
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m tests.node_tools.buf lint

.PHONY: typecheck
typecheck: install ## mypy, strict
	@$(BIN)/mypy

.PHONY: proto
proto: install ## write the Python stubs of proto/
	@PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python proto/generate.py

.PHONY: proto-check
proto-check: install ## show that the stubs are current
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python proto/generate.py "$$folder" && \
	diff -r -x __pycache__ proto/gen "$$folder" && echo "the stubs are current"

.PHONY: proto-breaking
proto-breaking: install ## show that clients of the last release can use the API (AGAINST=revision)
	@$(BIN)/python -m tests.node_tools.buf breaking $(AGAINST)

.PHONY: stubs-tools
stubs-tools: ## install what the stubs of other languages need, from Debian's packages (as root)
	@apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends $(STUBS_TOOLS) >/dev/null

.PHONY: stubs
stubs: install ## write stubs for TypeScript, Go and Java into proto/stubs
	@$(BIN)/python -m tests.polyglot.stubs

.PHONY: stubs-test
stubs-test: install ## let workers in TypeScript, Go and Java do real tasks
	@$(BIN)/pytest -v tests/polyglot $(ARGS)

# Its tools do not go with ours, so they have an environment of their own.
K8S_TOOLS := .tenure/k8s-tools
$(K8S_TOOLS)/.installed: tests/k8s/requirements.txt | install
	@$(BIN)/uv venv --quiet --clear $(K8S_TOOLS)
	@$(BIN)/uv pip sync --quiet --require-hashes --python $(K8S_TOOLS)/bin/python tests/k8s/requirements.txt
	@touch $@

.PHONY: k8s-tools
k8s-tools: ## install what k8s-check needs besides, Prometheus and its promtool, from Debian's packages (as root)
	@apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends prometheus >/dev/null

.PHONY: k8s-check
k8s-check: $(K8S_TOOLS)/.installed ## render the overlays of k8s/ and hold them to Kubernetes' schemas, checkov's rules and ours
	@PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(K8S_TOOLS)/bin/pytest -v -c tests/k8s/pytest.ini tests/k8s $(ARGS)
	@for overlay in k8s/overlays/*; do echo "checkov: $$overlay"; \
	$(K8S_TOOLS)/bin/kubectl kustomize $$overlay > $(K8S_TOOLS)/rendered.yaml; \
	$(K8S_TOOLS)/bin/checkov --config-file tests/k8s/checkov.yaml -f $(K8S_TOOLS)/rendered.yaml; done

.PHONY: images
images: install ## build the images of store, bridge and worker with docker, podman or buildah
	@$(BIN)/python -m tests.images.build

.PHONY: images-local
images-local: install ## build them, and Postgres, of Debian's packages, without a registry (as root)
	@$(BIN)/python -m tests.images.build --local

.PHONY: image-tools
image-tools: ## install what image-test needs, from Debian's packages (as root)
	@apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends buildah debootstrap >/dev/null

.PHONY: image-test
image-test: install ## build the images on a base of this machine's own and let them work (as root)
	@$(BIN)/pytest -v tests/images $(ARGS)

.PHONY: pod-tools
pod-tools: ## install what k8s-e2e needs besides, podman, from Debian's packages (as root)
	@apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends \
	  podman runc catatonit netavark aardvark-dns iptables util-linux >/dev/null

.PHONY: pods
pods: $(K8S_TOOLS)/.installed ## write the dev overlay as podman can play it into .tenure/pods
	@$(K8S_TOOLS)/bin/kubectl kustomize k8s/overlays/dev | $(BIN)/python -m tests.pods.manifests .tenure/pods

.PHONY: k8s-e2e
k8s-e2e: $(K8S_TOOLS)/.installed ## play the dev overlay with podman as k8s/README.md says, kill and roll its pods under load (as root)
	@$(BIN)/python -m tests.pods --kubectl $(K8S_TOOLS)/bin/kubectl $(ARGS)

.PHONY: check
check: lint typecheck proto-check proto-breaking ## all that needs no services

.PHONY: bench
bench: install ## how fast it is, against peers and the machine's limit (BENCH=P1)
	@$(BIN)/python -m tests.benchmarks $(BENCH) $(ARGS)

.PHONY: bench-quick
bench-quick: install ## the same with short rounds, and fewer, in under three minutes
	@$(BIN)/python -m tests.benchmarks --quick $(BENCH) $(ARGS)

.PHONY: bench-publish
bench-publish: install ## put the newest run into tests/benchmarks/README.md
	@$(BIN)/python -m tests.benchmarks.publish $(RUN)

.PHONY: profile
profile: install ## where the time goes: a flame graph of bridge, store and worker under a benchmark (BENCH=P1)
	@$(BIN)/python -m tests.benchmarks --quick --profile $(BENCH) $(ARGS)

.PHONY: conformance
conformance: install ## run the official MCP suite against a running pair (ARGS=scenario), and against our client
	@$(BIN)/python -m tests.conformance.suite $(ARGS)
	@$(if $(ARGS),,$(BIN)/python -m tests.conformance.client_suite)
