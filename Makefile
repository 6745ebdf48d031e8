# Everything a contributor needs. `make` alone tells what there is.

BIN := .venv/bin
READY := .venv/.ready
PEERS := .venv-bench/.ready
PROCESSES := auto

# A thousand processes are started by the tests: what is compiled once serves all of them.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint check format bench lock clean

help: ## Tell what the targets do
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(READY) ## Make .venv with everything from the lock file (uv if present, otherwise venv and pip)
	@:

$(READY): requirements.lock pyproject.toml scripts/setup
	@sh scripts/setup .venv
	@touch $@

demo: $(READY) ## Kill agents at step 40 and see them go on at step 41
	@$(BIN)/everstep demo

test: $(READY) ## Run the tests on all cores; TESTS="tests/cli -k review" for a part, PROCESSES=0 for one process
	@sh scripts/setup-browser
	@sh scripts/setup-pooler
	@sh scripts/setup-js
	@$(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal $(TESTS)

lint: $(READY) ## Check style, types and the layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports --no-logo

check: lint test ## Run every check: lint, then the tests

format: $(READY) ## Rewrite the code in the project's style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(READY) $(PEERS) ## Compare with peers and write docs/benchmarks.md (40 minutes); RUNS=2 for half of it, QUICK=1 for a short look, ONLY=SCENARIO for one
	@$(BIN)/python -m bench $(if $(QUICK),--scale quick) $(if $(ONLY),--only $(ONLY)) $(if $(RUNS),--runs $(RUNS)) $(if $(QUICK)$(ONLY),,--write)

$(PEERS): bench/requirements.txt scripts/setup-bench
	@sh scripts/setup-bench .venv-bench
	@touch $@

lock: ## Resolve pyproject.toml into requirements.lock again, with the newest versions allowed (needs uv)
	@command -v uv > /dev/null || { echo "make lock needs uv: python3 -m pip install uv" >&2; exit 1; }
	@uv pip compile pyproject.toml --quiet --upgrade --all-extras --group dev --universal --python-version 3.11 \
		--generate-hashes --custom-compile-command "make lock" --output-file requirements.lock

clean: ## Remove what was built, .venv included
	rm -rf .venv .venv-bench bench/results.json bench/.work-* build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache everstep-demo
	find everstep tests -name __pycache__ -type d -prune -exec rm -rf {} +
