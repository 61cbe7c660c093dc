# Newcomers use `make demo` and `make test`; developers use the rest.

SHELL := /bin/bash
VENV := .venv
PYTHON ?= python3
CARGO ?= cargo
SIMGPU := simgpu/simgpu
MEMLAB := target/release/memlab
NATIVE := python/memlab/_native.abi3.so

.PHONY: all demo wheel ready packages test test-long test-full mutants test-rust test-python test-old coverage lint bench peers fuzz clean

# Also copies the native module into the package, so that PYTHONPATH=python is enough to import memlab. Renames it into
# place, because a running Python has the old one mapped.
all:
	$(CARGO) build --release --workspace
	@cmp -s target/release/lib_native.so $(NATIVE) || \
		{ cp target/release/lib_native.so $(NATIVE).$$$$ && mv -f $(NATIVE).$$$$ $(NATIVE); }

# Runs a training under memlab, on a GPU if the machine has one, otherwise on the simulated GPU.
demo: all $(VENV)/.installed
	@tests/demo.sh

# Builds dist/memlab-*.whl: the Python package with the library, the command, its manual and completions, and the simulated
# GPU's libraries. maturin checks the wheel against WHEEL_PLATFORM, which becomes part of its name. `linux` is for machines
# like this one. `manylinux_2_28`, which PyPI accepts, is for all machines with glibc 2.28 or newer: zig links against that
# glibc. maturin has a separate target folder. It configures pyo3 differently from `all`, and each would rebuild it after the
# other.
WHEEL_VENV := target/wheel-venv
WHEEL_PLATFORM ?= linux
WHEEL_GLIBC := $(patsubst manylinux_2_%,2.%,$(filter manylinux_%,$(WHEEL_PLATFORM)))
WHEEL_TARGET := x86_64-unknown-linux-gnu
WHEEL_RELEASE := $(if $(WHEEL_GLIBC),target/manylinux/$(WHEEL_TARGET)/release,target/release)
WHEEL_SHARE := python/memlab.data/data/share
# Names of the simulated GPU's libraries for programs (viewer/base/src/simulation.rs), and the files that Cargo builds.
SIMGPU_LIBRARIES := libcuda.so.1:libsimgpu_cuda.so libcuda.so:libsimgpu_cuda.so libnvidia-ml.so.1:libsimgpu_nvml.so \
	libsimgpu_cudart.so libsimgpu_libraries.so libsimgpu_nccl.so libcupti.so.13:libsimgpu_cupti.so
wheel: all wheel-data $(WHEEL_VENV)/.installed $(if $(WHEEL_GLIBC),wheel-release)
	@rm -rf target/wheel/dist python/memlab/bin && mkdir -p dist python/memlab/bin/simgpu
	trap 'rm -rf python/memlab/bin' EXIT && \
	strip -o python/memlab/bin/memlab $(WHEEL_RELEASE)/memlab && \
	strip -o python/memlab/bin/libmemlab.so $(WHEEL_RELEASE)/libmemlab.so && \
	for library in $(SIMGPU_LIBRARIES); do \
		strip -o python/memlab/bin/simgpu/$${library%%:*} $(WHEEL_RELEASE)/$${library##*:} || exit; done && \
	PATH=$(CURDIR)/$(WHEEL_VENV)/bin:$$PATH maturin build --quiet --release --locked --compatibility $(WHEEL_PLATFORM) \
		$(if $(WHEEL_GLIBC),--zig --target $(WHEEL_TARGET)) \
		--manifest-path python/Cargo.toml --target-dir target/wheel --out target/wheel/dist
	@rm -f dist/memlab-*.whl && mv target/wheel/dist/memlab-*.whl dist/ && ls dist/memlab-*.whl

# Builds programs and libraries for an older glibc, with zig from PyPI.
.PHONY: wheel-data wheel-release licences
wheel-release: $(WHEEL_VENV)/.zig
	PATH=$(CURDIR)/$(WHEEL_VENV)/bin:$$PATH $(CARGO) zigbuild --quiet --release --locked --target-dir target/manylinux \
		--target $(WHEEL_TARGET).$(WHEEL_GLIBC) --package memlab --package memlab-interpose --package 'simgpu-*'

# Generates the files for share/ beside the command, and the software bill of materials.
wheel-data: all
	$(CARGO) build --quiet --release --example man_pages
	@rm -rf $(WHEEL_SHARE)
	target/release/examples/man_pages $(WHEEL_SHARE)/man/man1 $$(git log -1 --format=%cs 2>/dev/null || date +%F)
	mkdir -p $(WHEEL_SHARE)/{bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}
	$(MEMLAB) completions bash > $(WHEEL_SHARE)/bash-completion/completions/memlab
	$(MEMLAB) completions zsh > $(WHEEL_SHARE)/zsh/site-functions/_memlab
	$(MEMLAB) completions fish > $(WHEEL_SHARE)/fish/vendor_completions.d/memlab.fish
	$(PYTHON) python/sbom.py python/memlab.cdx.json

# Writes the licences of the linked crates, for the wheel. Run it after a change of dependencies. Needs cargo-about
# (`cargo install cargo-about`).
licences:
	$(CARGO) about generate --workspace --fail --locked --offline --output-file python/LICENSES-CRATES about.hbs

$(WHEEL_VENV)/.installed: python/requirements.txt
	tests/venv.sh $(WHEEL_VENV) $< $(PYTHON)
	touch $@

$(WHEEL_VENV)/.zig: python/requirements-zig.txt $(WHEEL_VENV)/.installed
	$(WHEEL_VENV)/bin/pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

# Builds the docs as a site, target/docs/html, with mdBook (`cargo install mdbook`). Pages keep their paths, so that links
# work as in the repository.
DOCS := target/docs
DOCS_PAGES := README.md CONTRIBUTING.md CHANGELOG.md docs simgpu/README.md benches/RESULTS.md
DOCS_LINKED := LICENSE-MIT LICENSE-APACHE benches/history.csv benches/history.svg examples trace/format/src/record.rs interpose/include/memlab.h
.PHONY: docs
docs:
	@rm -rf $(DOCS) && mkdir -p $(DOCS)/src
	cp -r --parents $(DOCS_PAGES) $(DOCS_LINKED) $(DOCS)/src && mv $(DOCS)/src/docs/site/SUMMARY.md $(DOCS)/src
	mv $(DOCS)/src/docs/site/book.toml $(DOCS) && rm -r $(DOCS)/src/docs/site
	mdbook build $(DOCS)
	$(PYTHON) docs/site/links.py $(DOCS)/html

# Three tiers. `test` checks a change: Rust tests, Python tests in pytest's process, and the first case of each test that
# starts programs. Run `test-long` before you call an issue resolved: the other cases, tests marked `long`, an old PyTorch.
# Run `test-full` before a release.
test: ready
	$(MAKE) test-rust test-python

test-long: ready
	tests/long.py

# Adds the cases marked `full`, and every version of PyTorch and CPython.
test-full: PYTEST_OPTIONS := --full
test-full: ready wheel
	$(MAKE) test-rust test-python PYTEST_OPTIONS=--full
	tests/versions.sh

# Builds the programs and fetches the tests' packages, in parallel.
ready:
	$(MAKE) -j 2 all packages
packages: $(VENV)/.installed $(VENV)/.lazy-compiler $(VENV)/.chromium $(VENV)/.prometheus

test-rust: all
	$(CARGO) test --workspace --release --quiet --no-fail-fast

PYTEST := PYTHONPATH=$(CURDIR)/python$${PYTHONPATH:+:$$PYTHONPATH} $(VENV)/bin/python -m pytest -q -n 2 --dist loadgroup
test-python: all packages
	$(PYTEST) --durations 25 $(PYTEST_OPTIONS) tests

# Runs the tests that depend on PyTorch's internals with an old PyTorch. Skipped, with a message, if no CPython fits.
# `tests/versions.sh` runs them with all versions.
test-old: all $(VENV)/.installed
	tests/versions.sh --old

# Makes small changes to the sources, one at a time, and lists those that no test detects. Options: tests/mutants.py.
MUTANTS_VENV := target/mutants-venv
mutants: ready $(MUTANTS_VENV)/.installed
	@$(CARGO) mutants --version >/dev/null 2>&1 || $(CARGO) install --quiet --locked cargo-mutants
	$(MUTANTS_VENV)/bin/python tests/mutants.py $(MUTANTS)

$(MUTANTS_VENV)/.installed:
	$(PYTHON) -m venv --clear $(MUTANTS_VENV)
	$(MUTANTS_VENV)/bin/pip install --quiet --disable-pip-version-check cosmic-ray==8.7.0
	touch $@

# Writes the line coverage of the tests to docs/coverage.md. Options: tests/measure_coverage.py. Its Python has the packages
# of the tests, and runs coverage.py in every process.
COVERAGE_VENV := target/coverage-venv
coverage: packages $(COVERAGE_VENV)/.installed
	@$(CARGO) llvm-cov --version >/dev/null 2>&1 || $(CARGO) install --quiet --locked cargo-llvm-cov
	rustup component add llvm-tools
	$(COVERAGE_VENV)/bin/python tests/measure_coverage.py $(COVERAGE)

$(COVERAGE_VENV)/.installed: $(VENV)/.installed
	$(VENV)/bin/python -m venv --clear $(COVERAGE_VENV)
	$(VENV)/bin/python -c 'import sysconfig; print("import site; site.addsitedir(\"%s\")" % sysconfig.get_path("purelib"))' \
		> $$($(COVERAGE_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tests.pth
	$(COVERAGE_VENV)/bin/pip install --quiet --disable-pip-version-check coverage==7.17.5
	touch $@

# Checks style, types, layers and the map of the repository. Also checks licences if cargo-deny is installed
# (`cargo install cargo-deny`).
lint: $(VENV)/.installed
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --release -- -D warnings
	$(CARGO) test --quiet --release --package layers
	$(VENV)/bin/python -m pytest -q tests/package/test_map.py tests/package/test_covers.py
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny check licenses bans sources; \
		else echo "memlab: cargo-deny is not installed: licences are not checked" >&2; fi
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	PYTHONPATH=python $(VENV)/bin/lint-imports --no-cache --no-logo

# Runs the benchmarks that need no GPU, or the named ones: `make bench BENCH="append viewer"`. `benches/run.py --list`
# describes each. `make bench BENCH="--record append"` adds the figures to benches/history.csv, its tables in
# benches/RESULTS.md, and its plot.
bench: all
	$(PYTHON) benches/run.py $(BENCH)

# Environments of benchmarks that compare memlab with other packages. The one for plans shares the packages of the tests.
TOOLS_VENV := target/tools-venv
$(TOOLS_VENV)/.installed: $(VENV)/.installed
	$(VENV)/bin/python -m venv --clear $(TOOLS_VENV)
	$(TOOLS_VENV)/bin/pip install --quiet --disable-pip-version-check pytorch_memlab==0.3.2 numpy $$($(VENV)/bin/pip freeze | grep ^torch==)
	touch $@

PLAN_VENV := target/plan-venv
$(PLAN_VENV)/.installed: $(VENV)/.installed
	$(VENV)/bin/python -m venv --clear $(PLAN_VENV)
	$(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> $$($(PLAN_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tests.pth
	$(PLAN_VENV)/bin/pip install --quiet --disable-pip-version-check lightning==2.6.6
	touch $@

# Fetches packages without their dependencies, to be copied to a machine without a network.
PEERS := target/peers
peers: $(PEERS)/.installed
$(PEERS)/.installed: benches/peers.txt
	rm -rf $(PEERS)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --target $(PEERS) --requirement $<
	touch $@

# Generates CUPTI's declarations from NVIDIA's headers, with libclang from PyPI. The headers stay in a temporary folder.
BINDINGS_VENV := target/bindings-venv
.PHONY: bindings
bindings:
	$(PYTHON) -m venv --clear $(BINDINGS_VENV)
	$(BINDINGS_VENV)/bin/pip install --quiet --disable-pip-version-check --requirement bindgen/requirements.txt
	packages=$$(echo $(CURDIR)/$(BINDINGS_VENV)/lib/python3*/site-packages) && \
	LIBCLANG_PATH=$$packages/clang/native $(CARGO) run --quiet --package cupti-sys --features generate \
		--bin generate-bindings -- $$packages/nvidia/cu13/include bindgen/src/bindings.rs
	rustfmt --edition 2024 bindgen/src/bindings.rs

# Fuzzes the readers of requests, of compiler output and of traces, a minute each, from the seeds that the Rust tests replay.
# Needs a nightly compiler.
FUZZ_SECONDS ?= 60
fuzz:
	@$(CARGO) fuzz --version >/dev/null 2>&1 || $(CARGO) install --quiet --locked cargo-fuzz
	@mkdir -p fuzz/corpus/{request,wrapper,replay}
	cd fuzz && $(CARGO) +nightly fuzz run request corpus/request seeds/request -- -max_total_time=$(FUZZ_SECONDS)
	cd fuzz && $(CARGO) +nightly fuzz run wrapper corpus/wrapper seeds/wrapper -- -max_total_time=$(FUZZ_SECONDS)
	cd fuzz && $(CARGO) +nightly fuzz run replay corpus/replay seeds/replay ../trace/tests/broken -- -max_total_time=$(FUZZ_SECONDS)

$(VENV)/.installed: tests/requirements.txt
	tests/venv.sh $(VENV) $< $(PYTHON)
	touch $@

# Makes test programs import PyTorch's compiler only when they compile.
$(VENV)/.lazy-compiler: tests/lazy_compiler/lazy_torch_compiler.py tests/lazy_compiler/lazy_torch_compiler.pth $(VENV)/.installed
	cp tests/lazy_compiler/* $$($(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	touch $@

# Without Chromium, the tests that open pages are skipped with a message.
$(VENV)/.chromium: tests/chromium.sh | $(VENV)/.installed
	tests/chromium.sh $(VENV) && touch $@ || echo "memlab: Chromium could not be installed: tests/see/test_html.py will be skipped" >&2

# Without Prometheus, the tests that scrape figures are skipped with a message.
$(VENV)/.prometheus: tests/prometheus.sh | $(VENV)/.installed
	tests/prometheus.sh $(VENV) && touch $@ || echo "memlab: Prometheus could not be installed: parts of tests/see/test_serve.py will be skipped" >&2

clean:
	$(CARGO) clean
	rm -rf $(VENV) $(NATIVE)* python/memlab/bin python/memlab.data python/memlab.cdx.json dist
