# Two commands matter: `make demo` shows it, `make test` proves it. Both set up what they need, once.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

# Continuous integration works in fresh clones: builds are kept beside them.
ifeq ($(CI),true)
export CARGO_TARGET_DIR ?= $(HOME)/.cache/dxpu/target
endif
TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
DXPU := $(TARGET)/release/dxpu
export DXPU_LIBCUDA_SO := $(TARGET)/release/libcuda.so
export DXPU_LIBNVML_SO := $(TARGET)/release/libnvidia_ml.so
export DXPU_LIBCUDA_TRACE_SO := $(TARGET)/release/libcuda_trace.so

.PHONY: build dist install libraries demo demo-release demo-first test quick setup lint unit stories judges functions http dashboard pcie harness slurm first-hour packages package bench codegen
.PHONY: $(addprefix part-,setup lint build unit stories judges functions http dashboard pcie harness slurm first-hour packages)

# Prerequisites are made in the order they are written: cargo and the parts use every core by themselves.
.NOTPARALLEL:

# A first build takes minutes; cargo shows how far it is. `scripts/test` sets QUIET=--quiet.
QUIET ?=

# Cargo chooses the features of shared dependencies by the packages that it is told of: told of the same ones each time, it builds
# each dependency once. `cargo test --workspace` finds the same features, which xtask/tests/tidy/built_once.rs holds.
PACKAGES := --package libcuda --package libnvml --package cuda-trace --package dxpu --package dxpu-binary

## The libraries that programs load. All else of the binary is built beside them, because what waits for them uses one core.
libraries:
	cargo build --release $(QUIET) $(PACKAGES) --lib

## The binary, with those libraries inside.
build: libraries
	cargo build --release $(QUIET) $(PACKAGES)

## The binary to ship, without debug data, which lies beside it: target/dist/dxpu and target/dist/dxpu.debug.
dist: build
	scripts/dist $(DXPU) $(TARGET)/dist

# Where `make install` puts things; DESTDIR is put in front, for packages.
PREFIX ?= /usr/local

## The binary, manual pages and completions below PREFIX.
install: dist
	install -D -m 755 $(TARGET)/dist/dxpu $(DESTDIR)$(PREFIX)/bin/dxpu
	mkdir -p $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	$(TARGET)/dist/dxpu man --out $(DESTDIR)$(PREFIX)/share/man/man1
	$(TARGET)/dist/dxpu completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/dxpu
	@echo "installed: $(DESTDIR)$(PREFIX)/bin/dxpu"

## A pool on this machine: a CUDA program, a GPU that breaks, the spare that takes its place; no GPU needed. It runs the release
## build where there is one; elsewhere it makes a quick build.
demo: $(if $(wildcard $(DXPU)),demo-release,demo-first)
demo-release: build
	$(DXPU) demo

# The quick build, Cargo.toml's profile `first`, is for a first look: less than half of the work for the compiler, and slow code.
# All other targets use the release build.
FIRST := $(TARGET)/first
demo-first: export DXPU_LIBCUDA_SO := $(FIRST)/libcuda.so
demo-first: export DXPU_LIBNVML_SO := $(FIRST)/libnvidia_ml.so
demo-first: export DXPU_LIBCUDA_TRACE_SO := $(FIRST)/libcuda_trace.so
demo-first:
	@echo "A quick build for a first look: about 5 minutes on two cores. Cargo shows how far it is."
	cargo build --profile first $(QUIET) $(PACKAGES) --lib
	cargo build --profile first $(QUIET) $(PACKAGES)
	$(FIRST)/dxpu demo
	@echo "That was a quick build, which is slow: $(FIRST)/dxpu. \`make install\` builds the fast one and installs it."

## Everything that can be checked without a GPU, with the time of each part; see scripts/test.
test:
	scripts/test

## Format, lints and unit tests of the packages that changed: for the minutes between two edits.
quick: libraries
	scripts/quick

## System packages and Python packages; a second run does nothing.
setup:
	scripts/setup

## Format, lints, documentation, licences, generated files.
lint: setup part-lint
part-lint: libraries
	cargo fmt --all --check
	cargo clippy --release --quiet --workspace --all-targets -- --deny warnings
	RUSTDOCFLAGS="--deny warnings" cargo doc --release --quiet --workspace --no-deps --document-private-items
	scripts/deny

## Unit, property and golden tests, and the fuzz corpus.
unit: build part-unit
part-unit:
	# Without --doc: the examples in comments are pictures, and looking for code in them takes minutes.
	cargo test --release --workspace --quiet --no-fail-fast --lib --bins --tests

## Real processes: many clients, kills, stalls, transcripts.
stories: build part-stories
part-stories:
	tests/stories/run $(DXPU)

## Programs nobody here wrote: libcudart, nvcc, NVRTC, CuPy, Numba's own suite.
judges: build setup part-judges
part-judges:
	cargo build --release --quiet --workspace --examples
	tests/judges/run $(DXPU)

## Functions, judged by AWS's own client and runtime: boto3 and awslambdaric.
functions: build setup part-functions
part-functions:
	tests/functions/run $(DXPU)

## The manager's HTTP interface, judged by Schemathesis.
http: build setup part-http
part-http:
	DXPU_BIN=$(DXPU) .venv/bin/python -m pytest -q -p no:cacheprovider tests/pool

## The dashboard in Chromium: what it shows and does, judged by axe-core in both themes and on a phone.
dashboard: build setup part-dashboard
part-dashboard:
	tests/dashboard/run $(DXPU) --pictures $(TARGET)/dashboard

## docs/first-hour.md, typed word by word in a clean system; the errors of the first hour, word by word.
first-hour: build setup part-first-hour
part-first-hour:
	tests/first_hour/run $(DXPU)
	tests/first_hour/errors $(DXPU)

## PCIe, judged by QEMU, a stock Linux kernel and cocotb.
pcie: build setup part-pcie
part-pcie:
	tests/pcie/run

## The programs that judge, tried without a GPU: those that compare with one, the count of Numba, the reasons of a failure.
harness: setup part-harness
part-harness:
	.venv/bin/python -m pytest -q tests/gpu/test_harness.py tests/gpu/test_share.py
	.venv/bin/python -m pytest -q -p no:cacheprovider tests/why
	.venv/bin/python -m pytest -q --noconftest -p no:cacheprovider tests/judges/test_numba_suite.py

## Jobs of a real Slurm with GPUs of a pool.
slurm: build setup part-slurm
part-slurm:
	SLURM_STORIES=$${SLURM_STORIES:-one_job,sweep,arrays} tests/slurm/run $(DXPU)

## Packages in a clean root: installed, configured, upgraded under a running program, removed; the container image.
packages: build setup part-packages
part-packages:
	tests/packages/run $(TARGET)/release

## Debian packages and a container image in dist/: docs/packages.md.
package: build
	deploy/package --built $(TARGET)/release --out dist
	deploy/image --built $(TARGET)/release --out dist/image

# `scripts/test` calls the parts by these names. It has built and set up before, so that no part does it again.
part-setup: setup
part-build: build

## What the api plane costs on this machine.
bench: build
	$(DXPU) bench api --json

## Rewrites generated files from the table.
codegen:
	cargo xtask codegen
