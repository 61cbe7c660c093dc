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

test-rust: all $(VENV)/.installed
	$(CARGO) test --workspace --release --quiet --no-fail-fast

test-python: all $(VENV)/.installed
	$(VENV)/bin/python -m pytest -q -n 2 tests

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --release -- -D warnings
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: bench-append bench-replay bench-overhead

# What memlab adds to a block event, beside PyTorch's own recorder.
bench-overhead: all $(VENV)/.installed
	$(SIMGPU) --memory 8GiB $(VENV)/bin/python benches/overhead.py

# What appending one event costs by itself.
bench-append: all
	@mkdir -p target/bench
	$(CC) -O2 -Wall -o target/bench/append benches/append.c -lpthread
	MEMLAB_OUTPUT=target/bench/append.jsonl LD_PRELOAD=$(CURDIR)/target/release/libmemlab.so target/bench/append
	@rm -f target/bench/append.jsonl

bench-replay: all
	$(CARGO) run --release --quiet --package memlab-trace --example replay_bench

# CUPTI's declarations, from NVIDIA's headers and with the libclang that PyPI has. The headers stay in a throw-away folder.
BINDINGS_VENV := target/bindings-venv
.PHONY: bindings
bindings:
	$(PYTHON) -m venv --clear $(BINDINGS_VENV)
	$(BINDINGS_VENV)/bin/pip install --quiet --disable-pip-version-check --requirement bindgen/requirements.txt
	packages=$$(echo $(CURDIR)/$(BINDINGS_VENV)/lib/python3*/site-packages) && \
	LIBCLANG_PATH=$$packages/clang/native $(CARGO) run --quiet --package cupti-sys --features generate \
		--bin generate-bindings -- $$packages/nvidia/cu13/include bindgen/src/bindings.rs
	rustfmt --edition 2024 bindgen/src/bindings.rs

# Hostile traces against decoder and model; needs cargo-fuzz and a nightly compiler.
fuzz:
	cd fuzz && $(CARGO) +nightly fuzz run replay

$(VENV)/.installed: tests/requirements.txt
	tests/venv.sh $(VENV) $< $(PYTHON)
	touch $@

clean:
	$(CARGO) clean
	rm -rf $(VENV)
