# Plumage, for its developers. Every target sets up its environment first.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
VLLM_VENV ?= .venv-vllm
PEERS_VENV ?= .venv-peers
NAME   ?= cht
ARGS   ?=
KEEP   ?= 0
SET    ?= nodes
NODES  ?= 2
IMAGES ?=
SOURCES := core router engine operator cli bench
# Without bytecode each of a test run's hundreds of processes compiles all that it imports, vLLM for eight seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-vllm setup-peers check-vllm demo test test-quick test-compiled lint format bench clean images chart cluster cluster-down cluster-programs e2e e2e-vllm e2e-victims crds evidence docs docs-pages

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

setup: $(VENV)/.ready  ## create .venv with everything (seconds, with a cold cache too)

$(VENV)/.ready: pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash scripts/setup.sh

setup-vllm: $(VLLM_VENV)/.ready  ## create .venv-vllm: real vLLM on the CPU, for its tests and benchmarks (3.5 GB, or 9.8 GB with CUDA's PyTorch, which VLLM_TORCH=cpu refuses); make test does it

$(VLLM_VENV)/.ready: pyproject.toml constraints-vllm.txt scripts/setup-vllm.sh
	@PYTHON="$(PYTHON)" VLLM_VENV="$(VLLM_VENV)" bash scripts/setup-vllm.sh

setup-peers:  ## create .venv-peers: other routers, to measure them beside ours (0.5 GB)
	@PYTHON="$(PYTHON)" PEERS_VENV="$(PEERS_VENV)" bash scripts/setup-peers.sh

check-vllm: setup  ## check another vLLM by its sources for what the plugin hooks: make check-vllm VERSION=0.33.0 (a version, wheel or folder)
	@test -n "$(VERSION)" || { echo "check-vllm: say which: make check-vllm VERSION=0.33.0" >&2; exit 2; }
	@$(BIN)/python -m plumage_bench.vllm_sources "$(VERSION)"

demo: setup  ## run a pool on this machine, load it, and compare it with round robin and LRU (KEEP=1 leaves it up)
	@KEEP="$(KEEP)" $(BIN)/plumage demo

test: setup  ## run every test this machine can run; names what it skipped
	@BIN="$(BIN)" VLLM_VENV="$(VLLM_VENV)" bash scripts/test.sh $(ARGS)

test-quick: setup  ## run the tests that need neither vLLM nor a Kubernetes API server: three minutes on two cores
	@BIN="$(BIN)" bash scripts/test.sh --quick

test-compiled: setup  ## run tests of router and engine with their modules compiled to C, as the images have them (needs gcc and Python's headers)
	@$(BIN)/python scripts/compile_modules.py build/compiled
	@PYTHONPATH="$(CURDIR)/build/compiled" $(BIN)/python -m pytest -q tests/unit/routing tests/unit/blocks tests/unit/eviction tests/unit/simulator tests/contract/test_own_policies.py tests/integration/router $(ARGS)

cluster: setup  ## start a Kubernetes cluster of its own, without Docker: eval "$$(make -s cluster)" (NODES=2; tests/cluster/README.md)
	@BIN="$(BIN)" bash scripts/cluster.sh up --nodes $(NODES)

cluster-down: setup  ## stop that cluster
	@BIN="$(BIN)" bash scripts/cluster.sh down

cluster-programs: setup  ## download or build the test cluster's programs into its cache (once: 12 minutes on two idle cores; SET=api: only those of an API server)
	@BIN="$(BIN)" bash scripts/cluster.sh programs $(SET)

e2e: setup  ## run the end-to-end tests, on the cluster of make cluster, on one of their own, or on yours: PLUMAGE_E2E=kubeconfig KUBECONFIG=… (tests/cluster/README.md)
	@[ "$(PLUMAGE_E2E)" = kubeconfig ] || { BIN="$(BIN)" bash scripts/cluster.sh programs nodes && bash scripts/make_images.sh plumage engine-without-vllm; }
	@BIN="$(BIN)" bash scripts/test.sh tests/e2e_cluster $(ARGS)

e2e-vllm: setup  ## test a pool with a real vLLM engine on the CPU, on a cluster of its own (its image is 4 GB; four minutes after that is built)
	@[ "$(PLUMAGE_E2E)" = kubeconfig ] || { BIN="$(BIN)" bash scripts/cluster.sh programs nodes && bash scripts/make_images.sh plumage cpu-engine; }
	@BIN="$(BIN)" bash scripts/test.sh -s tests/e2e_cluster_vllm $(ARGS)

e2e-victims: setup  ## compare the deletion of the coldest replica with that of a random one: ten pairs, twenty minutes
	@[ "$(PLUMAGE_E2E)" != kubeconfig ] || { echo "e2e-victims: needs the test cluster: unset PLUMAGE_E2E" >&2; exit 2; }
	@BIN="$(BIN)" bash scripts/cluster.sh programs nodes && bash scripts/make_images.sh plumage
	@BIN="$(BIN)" bash scripts/test.sh -s tests/e2e_cluster_victims $(ARGS)

images:  ## build the images with docker, podman or buildah (scripts/make_images.sh lists the settings)
	@bash scripts/make_images.sh $(IMAGES)

chart: setup  ## write the generated parts of charts/plumage: CRDs, the operator's rights, its README's tables
	@$(BIN)/python scripts/make_chart.py

lint: setup  ## ruff, mypy --strict, import-linter, generated files, docs in strict mode
	@BIN="$(BIN)" bash scripts/lint.sh

format: setup  ## let ruff reformat
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

crds: setup  ## write crds/*.yaml from the models; make lint fails when they differ
	@$(BIN)/python scripts/make_crds.py

evidence: setup  ## write docs/evidence.md from its claims and runs; make lint fails when they disagree
	@$(BIN)/python scripts/make_evidence.py

docs: setup  ## build the site of docs/ into out/site; a broken link or code reference fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-pages: setup  ## write the generated pages of docs/: decisions, tested, reference; make lint fails when they differ
	@$(BIN)/python scripts/make_docs.py && $(BIN)/python scripts/make_manifest_reference.py && $(BIN)/python scripts/make_metrics_reference.py

bench: setup  ## run a benchmark: make bench NAME=cht ARGS=--quick
	@$(BIN)/plumage bench $(NAME) $(ARGS)

clean:  ## remove both environments and everything built or measured
	rm -rf $(VENV) $(VLLM_VENV) out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .plumage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
