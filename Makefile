# `make run` and `make test` do all their own set-up, in .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# The CPU build of PyTorch where pip finds one; the newest release brings several GB of CUDA.
TORCH ?= torch==2.13.0

.PHONY: run paper ablation uniform attacks slow schedulers benchmark federation simulation test test-all lint unit bench docs \
	screenshots hooks check locked lock package clean

run: $(READY)-run
	$(BIN)/adcs compare --fallback-data digits

# Options: SEEDS=2 ROUNDS=1500 DATA=digits DATA_FOLDER=DIR JOBS=1 ONLY="figure-1 table-1", and
# OUT=DIR, a new folder or one to continue.
REPRODUCTION = $(if $(SEEDS),--seeds $(SEEDS)) $(if $(ROUNDS),--rounds $(ROUNDS)) \
	$(if $(DATA),--data '$(DATA)') $(if $(DATA_FOLDER),--data-folder '$(DATA_FOLDER)') \
	$(if $(OUT),--out '$(OUT)') $(if $(JOBS),--jobs $(JOBS))

paper ablation schedulers: $(READY)-run
	$(BIN)/python -m reproduction.$@ $(ONLY) $(REPRODUCTION)

attacks: $(READY)-flower
	$(BIN)/python -m reproduction.$@ $(ONLY) $(REPRODUCTION)

slow: $(READY)-run
	$(BIN)/python -m reproduction.slow_clients $(REPRODUCTION)

uniform: $(READY)-torch
	$(BIN)/python -m reproduction.$@ $(ONLY) $(REPRODUCTION)

# TIER=full for all cases, SCHEDULER=mine.py:Mine for one's own, PUBLISHED=1 to take the others' results as published,
# AGAIN=LiveADCS to run one scheduler of the table again, PUBLISH=1 to renew results.csv and docs/evidence/benchmark.md.
benchmark: $(READY)-torch
	$(BIN)/python -m reproduction.benchmark $(ONLY) $(REPRODUCTION) $(if $(TIER),--tier $(TIER)) \
		$(if $(SCHEDULER),--scheduler '$(SCHEDULER)') $(if $(PUBLISHED),--published) \
		$(if $(AGAIN),--again $(AGAIN)) $(if $(PUBLISH),--publish)

federation simulation: $(READY)-flower
	$(BIN)/python examples/flower-fashion-mnist/run.py $@

PYTEST = OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test: lint unit

lint: $(READY)-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# With the libraries that `make test` does without (tests that need them are skipped there), and the
# tests that wait for minutes.
test-all: lint $(READY)-test-all
	$(PYTEST)

unit: $(READY)-test
	$(PYTEST) -m "not minutes"

bench: $(READY)-bench
	$(BIN)/python benchmarks/bench_map.py
	$(BIN)/python benchmarks/bench_live.py
	$(BIN)/python benchmarks/bench_sketch.py
	$(BIN)/python benchmarks/bench_simulator.py
	$(BIN)/python benchmarks/bench_certificate.py
	$(BIN)/python benchmarks/bench_noise.py
	$(BIN)/python benchmarks/bench_flower.py
	$(BIN)/python benchmarks/bench_schedulers.py
	$(BIN)/python benchmarks/bench_private_kernels.py
	$(BIN)/python benchmarks/bench_networks.py

# The docs site, in site/; warnings are errors.
docs: $(READY)-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html, or for its search: $(BIN)/python -m http.server --directory site"

# The pictures of docs/howto/page.md; needs a chromium (CHROMIUM=PATH, or /usr/bin/chromium).
screenshots: $(READY)-test-all
	$(BIN)/python docs/screenshots/make.py

# The Git hooks of .pre-commit-config.yaml; `make check` runs them on all files.
hooks: $(READY)-dev
	$(BIN)/pre-commit install

check: $(READY)-dev
	$(BIN)/pre-commit run --all-files

# .venv with the versions of requirements-dev.lock; targets after it keep them.
locked: | .venv
	$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/pip install -q --disable-pip-version-check --no-deps -e .
	touch $(READY)-run $(READY)-flower $(READY)-test $(READY)-dev

# Pins stay where they satisfy pyproject.toml; LOCK_FLAGS=--upgrade moves all of them.
lock: $(READY)-dev
	$(BIN)/uv pip compile pyproject.toml --extra cli --extra flower --extra data --extra test --extra dev \
		--universal --python-version 3.11 --generate-hashes --no-annotate --quiet \
		--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' \
		$(LOCK_FLAGS) --output-file requirements-dev.lock

# Builds wheel and sdist, installs each in an environment of its own, and uses it.
package: $(READY)-dev
	rm -rf dist
	$(BIN)/python -m build
	for built in dist/*.whl dist/*.tar.gz; do \
		$(BIN)/python .github/smoke_test.py "$$built" || exit 1; \
	done

clean:
	rm -rf .venv

.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv

$(READY)-run: pyproject.toml | .venv
	$(BIN)/pip install -q --disable-pip-version-check -e '.[cli]'
	touch $@

$(READY)-torch: pyproject.toml | .venv
	$(BIN)/pip install -q --disable-pip-version-check '$(TORCH)'
	$(BIN)/pip install -q --disable-pip-version-check -e '.[cli,data]'
	touch $@

$(READY)-flower: pyproject.toml | .venv
	$(BIN)/pip install -q --disable-pip-version-check -e '.[cli,flower]'
	touch $@

$(READY)-test: pyproject.toml | .venv
	$(BIN)/pip install -q --disable-pip-version-check '$(TORCH)'
	$(BIN)/pip install -q --disable-pip-version-check -e '.[cli,flower,data,page,test]'
	touch $@

$(READY)-test-all: $(READY)-test
	$(BIN)/pip install -q --disable-pip-version-check -e '.[cli,flower,data,page,test,test-all]'
	touch $@

$(READY)-docs: pyproject.toml | .venv
	$(BIN)/pip install -q --disable-pip-version-check -e '.[cli,docs]'
	touch $@

$(READY)-dev: pyproject.toml | .venv
	$(BIN)/pip install -q --disable-pip-version-check -e '.[cli,flower,test,dev]'
	touch $@

$(READY)-bench: pyproject.toml | .venv
	$(BIN)/pip install -q --disable-pip-version-check '$(TORCH)'
	$(BIN)/pip install -q --disable-pip-version-check -e '.[cli,flower,data,test,torch,bench]'
	touch $@
