# The environment is .venv; `make run` and `make test` make it when it is not there yet.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
# pytest rewrites every assertion of every test: half of the collection, unless compiled files are kept
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run demo test test-all check bench bench-study bench-deployment bench-images bench-privacy bench-prediction bench-vertical bench-hierarchical bench-uncertainty bench-tasks bench-aggregation bench-peers clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: $(STAMP)  ## Make .venv with everything that studies, tests and benchmarks need

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all]'
	@touch $@

run: $(STAMP)  ## Run the shipped heart study and show its result
	$(BIN)/wardround run heart-fedprox

demo: $(STAMP)  ## Four hospitals on this machine, each a process of its own, and the same model as in simulation
	$(BIN)/wardround demo

test: $(STAMP)  ## Lint, check types and run the test suite
	@sh scripts/install-test-packages.sh
	@$(MAKE) --no-print-directory check
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow"  # on 2 cores: some tests mostly wait

test-all: $(STAMP)  ## The same with the long tests
	@sh scripts/install-test-packages.sh
	@$(MAKE) --no-print-directory check
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(STAMP)  ## Format, lint and types
	$(BIN)/ruff format --check --quiet src tests benchmarks
	$(BIN)/ruff check --quiet src tests benchmarks
	$(BIN)/mypy --no-error-summary

bench: $(STAMP)  ## Measure our engine beside hand-written loops on the same work
	$(BIN)/python -m benchmarks

bench-study: $(STAMP)  ## Time the whole heart study: its ratio to the reference engine, and to an earlier revision
	$(BIN)/python -m benchmarks.study
	$(BIN)/python -m benchmarks.study --against c613a17

bench-deployment: $(STAMP)  ## Time a round across four processes beside stock Flower, and memory over rounds
	$(BIN)/python -m benchmarks.deployment

bench-images: $(STAMP)  ## Time a round of the networks beside a hand-written loop, and memory as sites grow
	$(BIN)/python -m benchmarks --works W3,W6 --contenders serial,tight,plain,flower
	$(BIN)/python -m benchmarks.images

bench-privacy: $(STAMP)  ## What clipping and noise cost beside Opacus, and what a secure sum costs a site
	$(BIN)/python -m benchmarks.privacy
	$(BIN)/python -m benchmarks.secure_sum

bench-vertical: $(STAMP)  ## Match 100,000 patients; what a second party and blocks of batches are worth
	$(BIN)/python -m benchmarks.psi
	$(BIN)/python -m benchmarks.vertical

bench-hierarchical: $(STAMP)  ## Memory and time of 50 sites in 5 regions beside a flat federation
	$(BIN)/python -m benchmarks.hierarchical

bench-uncertainty: $(STAMP)  ## What 30 passes of dropout cost beside one
	$(BIN)/python -m benchmarks.uncertainty cost

bench-tasks: $(STAMP)  ## What a number, a count or several outcomes cost to train beside two classes
	$(BIN)/python -m benchmarks.tasks

bench-aggregation: $(STAMP)  ## What a rule in place of the mean adds to a round of a million parameters and 10 sites
	$(BIN)/python -m benchmarks.aggregation

bench-prediction: $(STAMP)  ## Speed and memory of `predict`, and one row over HTTP
	$(BIN)/python -m benchmarks.prediction

bench-peers:  ## Install Flower, pfl and NVFlare, each into an environment of its own, so that `make bench` measures them
	@for peer in flower:'flwr[simulation]==1.41.0' pfl:'pfl==0.6.0' nvflare:'nvflare==2.9.0'; do \
		folder=.venv-$${peer%%:*}; package=$${peer#*:}; \
		$(PYTHON) -m venv $$folder && \
		$$folder/bin/python -m pip install --quiet torch==2.13.0 numpy && \
		$$folder/bin/python -m pip install --quiet "$$package" || { echo "$$package cannot be had; left out"; rm -rf $$folder; }; \
	done

clean:  ## Remove the environment and what tools cached
	rm -rf $(VENV) .venv-flower .venv-pfl .venv-nvflare .mypy_cache .ruff_cache .pytest_cache .hypothesis
