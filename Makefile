# PYTHON is the interpreter of the environment that has specsearch with its dev extra.
PYTHON ?= python

.PHONY: install check format lint types test test-real chaos docs bench wheel clean

install:
	$(PYTHON) -m pip install -e '.[dev]'

check: lint types test

format:
	$(PYTHON) -m ruff format
	$(PYTHON) -m ruff check --fix

lint:
	$(PYTHON) -m ruff format --check
	$(PYTHON) -m ruff check

types:
	$(PYTHON) -m mypy

test:
	$(PYTHON) -m pytest

# Drives the real SGLang on the CPU, in about ten minutes; SPECSEARCH_SGLANG_PYTHON names the interpreter that has it.
# SPECSEARCH_REAL=part leaves out what takes long and shows least.
test-real:
	$(PYTHON) -m pytest tests/real --durations=0 --durations-min=1

# Strikes a study in every phase of its trials, by a seeded schedule, and prints what was lost, left or harmed. Goes on
# where it was interrupted; takes hours. make chaos N=20 SEED=7: another, shorter schedule.
N ?= 200
SEED ?= 1
chaos:
	$(PYTHON) -m tests.chaos --number $(N) --seed $(SEED)

# Writes the tables that docs/ takes from the code.
docs:
	$(PYTHON) docs/generate.py

bench:
	$(PYTHON) benchmarks/overhead.py

wheel:
	$(PYTHON) -m pip wheel --no-deps --wheel-dir dist .

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
