# `make run` and `make test` do all their own set-up, in .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: run federation simulation test lint unit bench clean

run: $(READY)-run
	$(BIN)/adcs compare --fallback-data digits

federation simulation: $(READY)-flower
	$(BIN)/python examples/flower-fashion-mnist/run.py $@

test: lint unit

lint: $(READY)-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

unit: $(READY)-test
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

bench: $(READY)-bench
	$(BIN)/python benchmarks/bench_map.py
	$(BIN)/python benchmarks/bench_live.py
	$(BIN)/python benchmarks/bench_sketch.py
	$(BIN)/python benchmarks/bench_simulator.py
	$(BIN)/python benchmarks/bench_certificate.py
	$(BIN)/python benchmarks/bench_noise.py
	$(BIN)/python benchmarks/bench_flower.py

clean:
	rm -rf .venv

.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv

$(READY)-run: pyproject.toml | .venv
	$(BIN)/pip install -q --disable-pip-version-check -e '.[cli]'
	touch $@

$(READY)-flower: pyproject.toml | .venv
	$(BIN)/pip install -q --disable-pip-version-check -e '.[cli,flower]'
	touch $@

$(READY)-test: pyproject.toml | .venv
	$(BIN)/pip install -q --disable-pip-version-check -e '.[cli,flower,test]'
	touch $@

$(READY)-bench: pyproject.toml | .venv
	$(BIN)/pip install -q --disable-pip-version-check -e '.[cli,flower,test,torch,bench]'
	touch $@
