# Everything lives in one virtual environment, .venv, in this checkout.
PYTHON ?= python3
TORCH ?= torch==2.13.0
BIN := .venv/bin
READY := .venv/.ready
PACKAGES := $(sort $(wildcard packages/outrider*))
EDITABLE := $(foreach package,$(PACKAGES),--editable $(package))
# LOCKED=1: the exact versions of requirements-dev.txt, as CI has them.
CONSTRAINT := $(if $(LOCKED),--constraint requirements-dev.txt)
empty :=
# The sources and the tests of all packages: the tests form one namespace, ``tests``.
TESTS := $(subst $(empty) $(empty),:,$(wildcard packages/*/src packages/*))

.PHONY: demo help test test-core lock test-slow test-exactness test-gpu mutants check audit docs format bench gpu lab wheel wheels standalone deb packages wheel-check native-digest conversations fuzz-native attack-native race-native clients fuzz-requests fuzz-tools fuzz-loaders fuzz-fields fuzz-http fuzz-schema soak fuzz-grammar fuzz-template wheel-check-all sdist release docs-release clean

demo: $(READY)  ## generate text from a real model, plain and with speculation
	$(BIN)/python examples/demo.py

help:  ## list the targets
	@sed -n 's/^\([a-z][a-z-]*\):.*  ## /\1: /p' $(firstword $(MAKEFILE_LIST))

# Compiled tests and asserts are kept, which is a tenth of a run, also where the environment forbids it.
test: $(READY)  ## the test-suite (no network, a few minutes)
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest -n 2 --dist worksteal -m "not slow and not gpu"

test-core: $(READY)  ## the tests of the core alone (packages/outrider)
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest -n 2 --dist worksteal -m "not slow and not gpu" packages/outrider/tests

test-slow: $(READY)  ## tests on real models, downloaded on first use
	$(BIN)/pytest -m slow

test-exactness: $(READY)  ## every source, verifier, option and precision (ARGS="--minutes 20": a random part, as large as there is time for)
	$(BIN)/pytest tests/exactness packages/outrider/tests/engine/test_same_output.py -m "slow or not slow" $(ARGS)

test-gpu: $(READY)
	$(BIN)/pytest -m gpu

mutants: $(READY)  ## plant seeded bugs, one at a time, and see which the tests notice (ARGS="--area cache", say)
	PYTHONPATH=$(TESTS) OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutants.run $(ARGS)

check: $(READY)  ## what must be clean before a commit
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) audit docs

audit: $(READY)  ## known vulnerabilities in what is installed
	$(BIN)/python -m tests.audit

docs: $(READY)  ## the documentation site, in build/site; a broken link is an error (not with --quiet, which hides it)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lock: $(READY)  ## write the versions installed here into requirements-dev.txt (make LOCKED=1 installs them)
	$(BIN)/python deploy/lock.py > requirements-dev.tmp && mv requirements-dev.tmp requirements-dev.txt

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)  ## time plain and speculative decoding on this machine
	$(BIN)/python -m benchmarks.rows
	$(BIN)/outrider bench -s none -s lookup:10 -s ngram:4

STAGE ?=
DEVICE ?= cuda
SCALE ?= 1
MINUTES_OF_GPU = $(if $(filter command line environment,$(origin MINUTES)),$(MINUTES),9.5)
OUT ?= bench-results/gpu/results
# It downloads nothing, so that it works where there is no network: without .venv, with the packages of $(PYTHON).
gpu:  ## for a machine with one GPU: tests, answers, heads and benchmarks, as far as the time goes (STAGE=heads MINUTES=9)
	PYTHONPATH=$(TESTS) $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m benchmarks.gpu --device $(DEVICE) --scale $(SCALE) \
		--minutes $(MINUTES_OF_GPU) --out "$(OUT)" --stage "$(STAGE)" $(if $(MODEL),--model "$(MODEL)") \
		$(if $(QUESTIONS),--questions "$(QUESTIONS)") $(ARGS)

lab: $(READY)  ## train a small target and drafts for it from nothing, and compare them
	$(BIN)/python -m benchmarks.lab

WHEEL_PLATFORM ?= manylinux_2_28_$(shell uname -m)

wheel: $(READY)  ## a wheel of each distribution, the core's with the compiled library, in dist/ (WHEEL_PLATFORM=win_amd64: for Windows)
	rm -rf dist
	OUTRIDER_WHEEL=$(WHEEL_PLATFORM) $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist . $(addprefix ./,$(PACKAGES))

WHEEL_PLATFORMS := manylinux_2_28_x86_64 manylinux_2_28_aarch64 macosx_11_0_arm64 win_amd64
wheels: $(READY)  ## the wheels of all distributions for all platforms, in dist/
	$(MAKE) wheel WHEEL_PLATFORM=$(firstword $(WHEEL_PLATFORMS))
	@set -e; for platform in $(wordlist 2,9,$(WHEEL_PLATFORMS)); do \
		OUTRIDER_WHEEL=$$platform $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist ./packages/outrider; done

VERSION_NOW = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' packages/outrider/src/outrider/__init__.py)
STANDALONE = build/standalone/bin/python
standalone:  ## a folder with the program and its Python, in dist/, of the wheels there (after make wheel)
	rm -rf build/standalone
	$(PYTHON) -m venv build/standalone
	$(STANDALONE) -m pip install --quiet --find-links dist "outrider==$(VERSION_NOW)" "outrider-drafters==$(VERSION_NOW)" "pyinstaller>=6.10"
	$(STANDALONE) deploy/standalone/build.py --version "$(VERSION_NOW)" --out dist
	$(STANDALONE) deploy/standalone/check.py dist/outrider-$(VERSION_NOW)-*.tar.gz tests/data/lab/target

deb:  ## a Debian package of the standalone program, in dist/ (after make standalone)
	$(PYTHON) deploy/debian.py dist/outrider-$(VERSION_NOW)-linux-*.tar.gz --out dist

URL ?= https://example.org/outrider
packages: wheels sdist standalone deb  ## all that a release consists of, in dist/, with digests; nothing is pushed (URL=where it will be)
	$(PYTHON) deploy/homebrew.py dist --url "$(URL)" > dist/outrider.rb
	cd dist && sha256sum *.whl *.tar.gz *.deb *.rb > SHA256SUMS

wheel-check: wheel  ## install the wheels where there is no compiler, and load the library
	rm -rf build/wheel-check
	$(PYTHON) -m venv build/wheel-check
	build/wheel-check/bin/python -m pip install --quiet --no-deps dist/*.whl
	$(BIN)/python packages/outrider/tests/native/check_wheel.py build/wheel-check/bin/python

PYTHONS ?= python3.11 python3.12 python3.13 python3.14
wheel-check-all: wheel  ## install the default distribution with its dependencies for each Python that is here, and use it (PYTHONS="...")
	@set -e; for python in $(PYTHONS); do \
		$$python -c "" 2>/dev/null || { echo "$$python: not here"; continue; }; \
		rm -rf build/wheel-check-all; $$python -m venv build/wheel-check-all; \
		build/wheel-check-all/bin/python -m pip install --quiet --find-links dist dist/outrider-[0-9]*.whl; \
		$(BIN)/python packages/outrider/tests/native/check_install.py build/wheel-check-all/bin/python; \
	done

sdist: $(READY)  ## the source distribution of each distribution, in dist/
	$(BIN)/python -m pip install --quiet $(EDITABLE) --editable ".[release]"
	for package in . $(PACKAGES); do $(BIN)/python -m build --sdist --outdir dist $$package || exit 1; done

release: $(READY)  ## check, build and tag a release; nothing is pushed (VERSION=x.y.z)
	$(MAKE) check test
	$(BIN)/python deploy/release.py "$(VERSION)" --prepare
	$(MAKE) wheel-check
	$(MAKE) packages
	$(BIN)/python deploy/catalogue.py --out dist/drafts
	$(BIN)/python deploy/release.py "$(VERSION)" --tag

docs-release: $(READY)  ## the documentation of this version beside those before, on the branch gh-pages; nothing is pushed
	$(BIN)/python -m pip install --quiet $(EDITABLE) --editable ".[release]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mike deploy --update-aliases "$$($(BIN)/python -c 'import outrider; print(outrider.__version__)')" latest
	$(BIN)/mike set-default latest

NATIVE := packages/outrider/src/outrider/native/src
FUZZ_SECONDS ?= 60
fuzz-native:  ## random tensors into the packing of weights, under sanitizers (FUZZ_SECONDS=600 for longer)
	mkdir -p build/native
	$(CC) -O1 -g -std=c11 -ffp-contract=off -fsanitize=address,undefined -fno-sanitize-recover=all -I$(NATIVE) \
		packages/outrider/tests/native/fuzz_pack.c $(addprefix $(NATIVE)/,unpack.c unpack_legacy.c unpack_k.c unpack_iq.c quantise.c plan.c pack.c checksum.c rows.c) \
		-lm -o build/native/fuzz_pack
	build/native/fuzz_pack $(FUZZ_SECONDS)

SANITIZERS = $(shell $(CC) -print-file-name=libasan.so) $(shell $(CC) -print-file-name=libubsan.so)
attack-native: $(READY)  ## calls of the native library that cannot be, each in a process of its own, under sanitizers
	library=$$($(BIN)/python packages/outrider/src/outrider/native/compile.py --out build/native --sanitize) && \
		PYTHONPATH=$(TESTS) ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONMALLOC=malloc LD_PRELOAD="$(SANITIZERS)" \
		$(BIN)/python -m tests.native.attack "$$library"

# What a job with several contexts does to others is the thread sanitizer's, what it leaves behind the leak sanitizer's.
RACE = $(BIN)/python packages/outrider/src/outrider/native/compile.py --program packages/outrider/tests/native/side_by_side.c
race-native: $(READY)  ## several contexts of the native library at once, under the thread and the leak sanitizer
	program=$$($(RACE) --out build/native/thread --flag=-O1 --flag=-g --flag=-fsanitize=thread) && TSAN_OPTIONS=halt_on_error=1 $$program
	program=$$($(RACE) --out build/native/leak --sanitize) && ASAN_OPTIONS=detect_leaks=1 $$program

fuzz-requests: $(READY)  ## 5,000 random requests, each compared with plain decoding (ARGS="--count 500 --seed 7")
	PYTHONPATH=$(TESTS) $(BIN)/python -m tests.engine.fuzz_requests $(ARGS)

clients: $(READY)  ## install clients from PyPI and npm, each alone, and run their recipes against a server (ARGS="--only openai,codex")
	PYTHONPATH=$(TESTS) $(BIN)/python -m tests.clients $(ARGS)

fuzz-tools: $(READY)  ## 1,000 requests for tool calls in every notation, with every source of drafts (ARGS="--calls 100")
	PYTHONPATH=$(TESTS) $(BIN)/python -m tests.analysis.certify.tool_traffic $(ARGS)

fuzz-loaders: $(READY)  ## damaged and hostile model files, each opened in a process of its own (FUZZ_SECONDS=600 for longer)
	PYTHONPATH=$(TESTS) $(BIN)/python -m tests.weights.fuzz --seconds $(FUZZ_SECONDS) $(ARGS)

fuzz-fields: $(READY)  ## every field of every request at its largest: none may keep the server's loop for 50 ms (ARGS="--model NAME")
	PYTHONPATH=$(TESTS) $(BIN)/python -m tests.server.fuzz_fields $(ARGS)

STRESS = PYTHONPATH=$(TESTS) $(BIN)/python -m tests.server.stress
fuzz-http: $(READY)  ## a server under connections that are no proper HTTP (FUZZ_SECONDS=600 for longer)
	$(STRESS).fuzz_http --seconds $(FUZZ_SECONDS) $(ARGS)

fuzz-schema: $(READY)  ## schemathesis on every operation of a server (FUZZ_SECONDS=600 for longer)
	$(STRESS).fuzz_schema --seconds $(FUZZ_SECONDS) $(ARGS)

fuzz-grammar: $(READY)  ## schemas, regexes and grammars that are almost right (FUZZ_SECONDS=600 for longer)
	$(STRESS).fuzz_grammar --seconds $(FUZZ_SECONDS) $(ARGS)

fuzz-template: $(READY)  ## chat templates that are almost right (FUZZ_SECONDS=600 for longer)
	$(STRESS).fuzz_grammar --templates --seconds $(FUZZ_SECONDS) $(ARGS)

MINUTES ?= 10
CLIENTS ?= 200
soak: $(READY)  ## a server under many clients, good and bad, while its engine fails (MINUTES=60 CLIENTS=200)
	$(STRESS).soak --minutes $(MINUTES) --clients $(CLIENTS) $(ARGS)

native-digest: $(READY)  ## the same logits, to the bit, on every instruction set that can be run here (ARGS=--here: no emulation; ARGS=--write: note them)
	PYTHONPATH=$(TESTS) $(BIN)/python -m tests.native.digest $(ARGS)

conversations: $(READY)  ## the same tokens and logits of whole conversations on every instruction set (ARGS="--models lab": without downloads)
	$(BIN)/python -m benchmarks.conversations $(ARGS)

clean:
	rm -rf .venv build/site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache bench-results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first: it is the one large dependency, and this choice decides between CPU and CUDA builds.
$(READY): pyproject.toml $(wildcard packages/*/pyproject.toml)
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"outrider needs Python 3.11 or newer, but {sys.executable} is {v.major}.{v.minor}: make PYTHON=/path/to/python3.11")'
	[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(CONSTRAINT) "$(TORCH)"
	$(BIN)/python -m pip install --quiet $(CONSTRAINT) $(EDITABLE) --editable ".[dev]"
	@touch $(READY)
