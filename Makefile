# Every target runs from .venv; scripts/setup makes or refreshes it first, and returns at once when it is good.
# ARGS is handed on: make demo ARGS="--kill", make test ARGS="tests/store -k torn".
.DEFAULT_GOAL := help
BIN := .venv/bin
ARGS ?=

.PHONY: help setup demo test test-long test-real test-edge test-all simulate fuzz lint format proto crds lock assets bench e2e e2e-kind clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## make or refresh .venv
	@scripts/setup

demo: setup ## 336,776 real flights as delayed messages on three local nodes (ARGS="--kill" kills one)
	@$(BIN)/python -m demo $(ARGS)

# Rooms of tests of real processes against a real clock, the longest first. They wait most of the time, so that three
# at once have room: make test-real -j 3 -O. One alone: make tests/faults.
REAL_SPARK := tests/rebalance
REAL := $(addprefix tests/,operator serve faults client local doors/rows doors/rocketmq console/real kube sinks/real \
  redteam demo) $(REAL_SPARK)
.PHONY: $(REAL)
RECKONED := -n 2 --dist worksteal $(addprefix --ignore=,$(REAL))

test: setup ## what only reckons, on both cores, without the long samples: minutes (ARGS="tests/store -k torn")
	@$(BIN)/python -m pytest $(or $(ARGS),$(RECKONED) -m "not long")

test-long: setup ## the long samples of what only reckons
	@$(BIN)/python -m pytest $(RECKONED) -m long $(ARGS)

test-real: $(REAL) ## real processes against a real clock, room by room

$(REAL): setup
	@echo "$@:"
	@$(BIN)/python -m pytest $@ $(ARGS)

test-edge: ## the tests of the compiled edge, by cargo and by pytest; it needs Rust
	@DELAY_EDGE_BUILD=yes scripts/setup
	@cd edge && cargo test --quiet --locked --no-default-features
	@cd edge && ../$(BIN)/python -m pytest $(ARGS)

test-all: test test-long test-real ## every test, an hour and a half

simulate: setup ## clusters in virtual time with troubles drawn from seeds (SEEDS=10000 FROM=0, or SEED=4711 for one with its trace)
	@$(BIN)/python -m tests.simulation.run $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),200) --from $(or $(FROM),0)) $(ARGS)

# In Debian they are packages beside Rust's: rustfmt-web and rust-web-clippy.
cargo_tool = cd edge && if cargo $(1) --version >/dev/null 2>&1; then cargo $(1) $(2); \
  else echo "there is no 'cargo $(1)': edge/ is left out" >&2; fi

fuzz: setup ## spoiled requests to each door, on each edge: quarter of an hour (CASES=10000 SEED=1)
	@DELAY_FUZZ_SEED=$(or $(SEED),1) DELAY_FUZZ_HTTP_CASES=$(or $(CASES),10000) \
	  DELAY_FUZZ_ROWS_CASES=$(or $(CASES),10000) DELAY_FUZZ_ROCKETMQ_CASES=$(or $(CASES),10000) \
	  DELAY_FUZZ_PORTS_CASES=$(or $(CASES),10000) \
	  $(BIN)/python -m pytest tests/doors/test_fuzz_rows.py tests/doors/rows/test_fuzz_http.py \
	  tests/doors/rows/test_fuzz_ports.py tests/doors/rocketmq/test_fuzz.py --timeout=1800 $(ARGS)

lint: setup ## ruff, mypy --strict, the import contracts, names, stale generated code; of edge/ cargo fmt and clippy too
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy scripts/proto.py scripts/openapi.py scripts/crds.py scripts/chart.py scripts/names.py scripts/lock.py scripts/release.py scripts/sbom.py scripts/assets.py
	@cd edge && ../$(BIN)/mypy
	@$(call cargo_tool,fmt,--check)
	@$(call cargo_tool,clippy,--quiet --locked --all-targets -- -D warnings)
	@$(BIN)/lint-imports
	@$(BIN)/python scripts/names.py
	@$(BIN)/python scripts/proto.py --check
	@$(BIN)/python scripts/openapi.py --check
	@$(BIN)/python scripts/crds.py --check
	@$(BIN)/python scripts/chart.py --check
	@$(BIN)/python scripts/lock.py --check

format: setup ## rewrite what ruff can, and cargo fmt
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(call cargo_tool,fmt)

proto: setup ## generate the _pb2 modules from the .proto files
	@$(BIN)/python scripts/proto.py
	@$(BIN)/python scripts/openapi.py

crds: setup ## generate crds/*.yaml from the models, and the chart's copies
	@$(BIN)/python scripts/crds.py
	@$(BIN)/python scripts/chart.py

lock: setup ## lock the packages that pyproject.toml asks for (ARGS=--upgrade takes the newest), with their hashes
	@$(BIN)/python scripts/lock.py $(ARGS)

assets: setup ## fetch what the console's pages run in browsers, npm packages by their hashes
	@$(BIN)/python scripts/assets.py

bench: setup ## the workloads of docs/benchmarks.md, whose figures it replaces (takes long; the machine should be idle)
	@$(BIN)/python benchmarks/record.py $(ARGS)

e2e: setup ## the Kubernetes tests: on kind where Docker runs, else on a cluster of its own (ARGS="-m quick", "-k freeze")
	@$(BIN)/python -m e2e.run $(ARGS)

e2e-kind: setup ## the same, on kind
	@$(BIN)/python -m e2e.run --on kind $(ARGS)

clean: ## remove .venv and everything that tools left behind
	rm -rf .venv build dist edge/target *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
