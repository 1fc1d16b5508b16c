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

.PHONY: build libraries demo test setup lint unit judges stories bench codegen

## The libraries that programs load.
libraries:
	cargo build --release --quiet --package libcuda --package libnvml --package cuda-trace

## The binary, with those libraries inside.
build: libraries
	cargo build --release --quiet --package dxpu

## A pool on this machine: a CUDA program, a GPU that breaks, the spare that takes its place; no GPU needed.
demo: build
	$(DXPU) demo

## Everything that can be checked without a GPU.
test: setup lint unit stories judges
	@echo "all tests passed"

## System packages and Python packages; a second run does nothing.
setup:
	scripts/setup

## Format, lints, documentation, licences, generated files.
lint: setup libraries
	cargo fmt --all --check
	cargo clippy --release --quiet --workspace --all-targets -- --deny warnings
	RUSTDOCFLAGS="--deny warnings" cargo doc --release --quiet --workspace --no-deps --document-private-items
	scripts/deny

## Unit, property and golden tests, and the fuzz corpus.
unit: build
	cargo test --release --workspace --quiet

## Real processes: many clients, kills, stalls, transcripts.
stories: build
	tests/stories/run $(DXPU)

## Programs nobody here wrote: libcudart, nvcc, NVRTC, CuPy, Numba's own suite, QEMU, a stock Linux kernel.
judges: build setup
	cargo build --release --quiet --package tlp --example tlp_lines
	tests/judges/run $(DXPU)
	DXPU_BIN=$(DXPU) .venv/bin/python -m pytest -q -p no:cacheprovider tests/pool
	tests/pcie/run
	.venv/bin/python -m pytest -q tests/gpu/test_harness.py

## What the api plane costs on this machine.
bench: build
	$(DXPU) bench api --json

## Rewrites generated files from the table.
codegen:
	cargo xtask codegen
