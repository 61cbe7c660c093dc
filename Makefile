# What a newcomer types: `make demo`, `make test`. What a developer types: the rest.

SHELL := /bin/bash
VENV := .venv
PYTHON ?= python3
CARGO ?= cargo
SIMGPU := simgpu/simgpu
MEMLAB := target/release/memlab
NATIVE := python/memlab/_native.abi3.so

.PHONY: all demo wheel ready packages test test-long test-full mutants test-rust test-python test-old coverage lint bench peers fuzz clean

# The native module goes into the package too, so that PYTHONPATH=python is enough to import memlab. It is renamed into its
# place: a Python that runs has the old one mapped.
all:
	$(CARGO) build --release --workspace
	@cmp -s target/release/lib_native.so $(NATIVE) || \
		{ cp target/release/lib_native.so $(NATIVE).$$$$ && mv -f $(NATIVE).$$$$ $(NATIVE); }

# A training under memlab, on the GPU if there is one, else on the simulated one.
demo: all $(VENV)/.installed
	@tests/demo.sh

# The Python package with the library, the command, its manual and its completions, and the simulated GPU's libraries in it:
# dist/memlab-*.whl. WHEEL_PLATFORM is what maturin checks it for and names it by: `linux` for machines like this one;
# `manylinux_2_28` for all with glibc 2.28 or newer, which is what PyPI takes: zig links against that glibc. maturin has a target
# folder of its own: it configures pyo3 otherwise than `all` does, and each would build it again after the other.
WHEEL_VENV := target/wheel-venv
WHEEL_PLATFORM ?= linux
WHEEL_GLIBC := $(patsubst manylinux_2_%,2.%,$(filter manylinux_%,$(WHEEL_PLATFORM)))
WHEEL_TARGET := x86_64-unknown-linux-gnu
WHEEL_RELEASE := $(if $(WHEEL_GLIBC),target/manylinux/$(WHEEL_TARGET)/release,target/release)
WHEEL_SHARE := python/memlab.data/data/share
# The names by which programs open the simulated GPU's libraries (viewer/base/src/simulation.rs), and what Cargo builds.
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

# Programs and libraries for an older glibc, with the zig that PyPI has.
.PHONY: wheel-data wheel-release licences
wheel-release: $(WHEEL_VENV)/.zig
	PATH=$(CURDIR)/$(WHEEL_VENV)/bin:$$PATH $(CARGO) zigbuild --quiet --release --locked --target-dir target/manylinux \
		--target $(WHEEL_TARGET).$(WHEEL_GLIBC) --package memlab --package memlab-interpose --package 'simgpu-*'

# What goes to share/ beside the command, and the list of what it is made of.
wheel-data: all
	$(CARGO) build --quiet --release --example man_pages
	@rm -rf $(WHEEL_SHARE)
	target/release/examples/man_pages $(WHEEL_SHARE)/man/man1 $$(git log -1 --format=%cs 2>/dev/null || date +%F)
	mkdir -p $(WHEEL_SHARE)/{bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}
	$(MEMLAB) completions bash > $(WHEEL_SHARE)/bash-completion/completions/memlab
	$(MEMLAB) completions zsh > $(WHEEL_SHARE)/zsh/site-functions/_memlab
	$(MEMLAB) completions fish > $(WHEEL_SHARE)/fish/vendor_completions.d/memlab.fish
	$(PYTHON) python/sbom.py python/memlab.cdx.json

# The licences of what is linked, for the wheel: after a change of dependencies, with cargo-about (`cargo install cargo-about`).
licences:
	$(CARGO) about generate --workspace --fail --locked --offline --output-file python/LICENSES-CRATES about.hbs

$(WHEEL_VENV)/.installed: python/requirements.txt
	tests/venv.sh $(WHEEL_VENV) $< $(PYTHON)
	touch $@

$(WHEEL_VENV)/.zig: python/requirements-zig.txt $(WHEEL_VENV)/.installed
	$(WHEEL_VENV)/bin/pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

# The docs as a site, target/docs/html, with mdBook (`cargo install mdbook`). Pages keep their places, so that their links lead
# where they lead in the repository.
DOCS := target/docs
DOCS_PAGES := README.md CONTRIBUTING.md CHANGELOG.md docs simgpu/README.md benches/RESULTS.md
DOCS_LINKED := LICENSE-MIT LICENSE-APACHE benches/history.csv benches/history.svg examples trace/src/record.rs interpose/include/memlab.h
.PHONY: docs
docs:
	@rm -rf $(DOCS) && mkdir -p $(DOCS)/src
	cp -r --parents $(DOCS_PAGES) $(DOCS_LINKED) $(DOCS)/src && mv $(DOCS)/src/docs/site/SUMMARY.md $(DOCS)/src
	mv $(DOCS)/src/docs/site/book.toml $(DOCS) && rm -r $(DOCS)/src/docs/site
	mdbook build $(DOCS)
	$(PYTHON) docs/site/links.py $(DOCS)/html

# Three tiers. `test` proves a change: Rust tests, Python tests in pytest's own process, and of each test that starts programs
# the first case. `test-long` runs before an issue is called resolved: the other cases, what is marked `long`, an old PyTorch.
# `test-full` runs before a release.
test: ready
	$(MAKE) test-rust test-python

test-long: ready
	tests/long.py

# Also the cases marked `full`, and every version of PyTorch and CPython.
test-full: PYTEST_OPTIONS := --full
test-full: ready wheel
	$(MAKE) test-rust test-python PYTEST_OPTIONS=--full
	tests/versions.sh

# Builds the programs and fetches the tests' packages beside each other.
ready:
	$(MAKE) -j 2 all packages
packages: $(VENV)/.installed $(VENV)/.lazy-compiler $(VENV)/.chromium $(VENV)/.prometheus

test-rust: all
	$(CARGO) test --workspace --release --quiet --no-fail-fast

PYTEST := PYTHONPATH=$(CURDIR)/python$${PYTHONPATH:+:$$PYTHONPATH} $(VENV)/bin/python -m pytest -q -n 2 --dist loadgroup
test-python: all packages
	$(PYTEST) --durations 25 $(PYTEST_OPTIONS) tests

# An old PyTorch and what depends on PyTorch's insides; skipped, with a message, where no CPython fits.
# `tests/versions.sh` walks through all versions.
test-old: all $(VENV)/.installed
	tests/versions.sh --old

# Changes the sources a little at a time, and lists the changes that no test notices: tests/mutants.py has the options.
MUTANTS_VENV := target/mutants-venv
mutants: ready $(MUTANTS_VENV)/.installed
	@$(CARGO) mutants --version >/dev/null 2>&1 || $(CARGO) install --quiet --locked cargo-mutants
	$(MUTANTS_VENV)/bin/python tests/mutants.py $(MUTANTS)

$(MUTANTS_VENV)/.installed:
	$(PYTHON) -m venv --clear $(MUTANTS_VENV)
	$(MUTANTS_VENV)/bin/pip install --quiet --disable-pip-version-check cosmic-ray==8.7.0
	touch $@

# Counts the lines that the tests run, into docs/coverage.md: tests/measure_coverage.py has the options. Its Python has the packages
# of the tests, and coverage.py in every process.
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

# Style, types, layers, the map of the repository and licences. Licences are checked where cargo-deny is installed (`cargo install cargo-deny`).
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

# Benchmarks that need no GPU, or some: `make bench BENCH="append viewer"`. `benches/run.py --list` has a sentence for each.
# `make bench BENCH="--record append"` keeps the figures: in benches/history.csv, its tables in benches/RESULTS.md, and its plot.
bench: all
	$(PYTHON) benches/run.py $(BENCH)

# Environments of benchmarks that compare memlab with packages of others. That of plans shares the packages of the tests.
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

# Packages without what they need, so that they can be carried to a machine without a network.
PEERS := target/peers
peers: $(PEERS)/.installed
$(PEERS)/.installed: benches/peers.txt
	rm -rf $(PEERS)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --target $(PEERS) --requirement $<
	touch $@

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

# Hostile requests, files of compilers and traces against their readers, a minute each, from the seeds that the Rust tests replay.
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

# Has test programs import PyTorch's compiler only when they compile.
$(VENV)/.lazy-compiler: tests/lazy_compiler/lazy_torch_compiler.py tests/lazy_compiler/lazy_torch_compiler.pth $(VENV)/.installed
	cp tests/lazy_compiler/* $$($(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	touch $@

# Without it the tests that open pages are skipped, and say so.
$(VENV)/.chromium: tests/chromium.sh | $(VENV)/.installed
	tests/chromium.sh $(VENV) && touch $@ || echo "memlab: no Chromium to be had: tests/see/test_html.py will be skipped" >&2

# Without it the tests that have figures scraped are skipped, and say so.
$(VENV)/.prometheus: tests/prometheus.sh | $(VENV)/.installed
	tests/prometheus.sh $(VENV) && touch $@ || echo "memlab: no Prometheus to be had: parts of tests/see/test_serve.py will be skipped" >&2

clean:
	$(CARGO) clean
	rm -rf $(VENV) $(NATIVE)* python/memlab/bin python/memlab.data python/memlab.cdx.json dist
