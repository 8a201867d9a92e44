# Every target sets up what it needs and does nothing twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: demo test test-slow check bench gpu-check format clean setup

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "ZeroBERT needs Python 3.10 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	sh scripts/install.sh $(BIN)/pip
	touch $(READY)

demo: $(READY)
	$(BIN)/python -m demo.run

test: $(READY)
	$(BIN)/pytest -n 2 --dist loadfile -m "not slow and not gpu"

test-slow: $(READY)
	$(BIN)/pytest -m "slow and not gpu"

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/repo/import_rules.py

bench: $(READY)
	$(BIN)/python -m benchmarks.run

# GPU_PYTHON: an interpreter that has what is needed; then nothing is set up, and no network is used.
GPU_PYTHON ?=
GPU_SCALE ?= full
GPU_JSON ?= runs/gpu_check.json

gpu-check: $(if $(GPU_PYTHON),,$(READY))
	$(or $(GPU_PYTHON),$(BIN)/python) -m benchmarks.gpu_check --scale $(GPU_SCALE) --json $(GPU_JSON)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) runs build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
