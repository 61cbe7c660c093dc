# What a newcomer types: `make demo`, `make test`. What a developer types: the rest.

SHELL := /bin/bash
VENV := .venv
PYTHON ?= python3
CARGO ?= cargo
SIMGPU := tests/simgpu/simgpu
MEMLAB := target/release/memlab

.PHONY: all demo test test-rust test-python lint bench bench-overhead bench-append bench-replay fuzz clean

all:
	$(CARGO) build --release --workspace

# A training under memlab, on the GPU if there is one, else on the simulated one.
demo: all $(VENV)/.installed
	@tests/demo.sh

test: test-rust test-python

test-rust: all
	$(CARGO) test --workspace --release --quiet

test-python: all $(VENV)/.installed
	$(VENV)/bin/python -m pytest tests

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --release -- -D warnings
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: bench-append bench-replay bench-overhead

# What memlab adds to a block event, beside PyTorch's own recorder.
bench-overhead: all $(VENV)/.installed
	$(SIMGPU) --memory 8GiB $(VENV)/bin/python benches/overhead.py

bench-append: all
	$(CARGO) bench --package memlab-interpose

bench-replay: all
	$(CARGO) run --release --quiet --package memlab-trace --example replay_bench

$(VENV)/.installed: tests/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --upgrade pip
	$(VENV)/bin/pip install --quiet --requirement tests/requirements.txt
	touch $@

clean:
	$(CARGO) clean
	rm -rf $(VENV)
