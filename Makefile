# Every target does the set-up it needs (a virtual environment in $(VENV)); none needs root.
VENV ?= .venv
OUT ?= runs/demo
PYTHON_BIN = $(VENV)/bin/python
# peers that benchmarks import without all that they depend on, beside those that scripts/setup.sh has put there
BESIDE = browsergym-core==0.14.3 browsergym-miniwob==0.14.3 playwright==1.44.0 pyee==11.1.0 greenlet==3.5.6 lxml==5.4.0 \
  beautifulsoup4==4.15.0 soupsieve==4.1.3 pyparsing==3.3.3
VLLM_VENV ?= .vllm-venv
export VENV VLLM_VENV

.PHONY: help setup vllm sources image demo check test core laws bars fuzz clean

help: ## This list.
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10

setup: ## The virtual environment with all dependencies.
	@scripts/setup.sh

vllm: setup ## vLLM for CPUs in an environment of its own ($(VLLM_VENV)); setup makes it too, unless VLLM_VENV=none.
	@scripts/vllm_env.sh

sources: setup ## The source packages that code-repair tasks are built from, checked by hash.
	@$(PYTHON_BIN) scripts/fetch_sources.py

image: setup ## The image that tests on images and containers need; without it they are skipped and say why.
	@$(VENV)/bin/envgym images build base --accept || true

demo: setup ## The main job: build tasks, expert, warm start, RL in sandboxes, evaluation (at most 20 minutes).
	@OUT=$(OUT) scripts/demo.sh

check: setup ## Style, types and import rules.
	@scripts/check.sh

test: check sources image ## Checks, then every test; what cannot run here is listed with its reason.
	@scripts/test.sh all

core: setup ## Only the core tests, without checks: under two minutes.
	@scripts/test.sh core

laws: setup ## The laws (property-based tests) on new draws, which CI does not make: it draws the same for the same code.
	@scripts/test.sh all -m hypothesis

bars: sources ## The benchmarks at full size, against their bars; results in benchmarks/results.
	@$(PYTHON_BIN) -m pip install -qq --disable-pip-version-check -e '.[peers]'
	@$(PYTHON_BIN) -m pip install -qq --disable-pip-version-check --no-deps --upgrade --target $(VENV)/peers $(BESIDE)
	@PEERS=$(VENV)/peers $(PYTHON_BIN) benchmarks/run_all.py

fuzz: setup ## What hostile peers can say, guided by coverage: FUZZ_S seconds (300) for each target.
	@scripts/fuzz.sh

clean: ## Remove what builds and tests left; keeps $(VENV) and runs.
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
