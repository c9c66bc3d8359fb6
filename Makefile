# make demo   the main job, end to end, on the bundled corpus
# make test   the default test suite
# make test PYTHON=python3.13  with another Python, in an environment of its own, .venv-3.13
# make test-distributed  several processes, kills, combinations of options
# make test-programs  notebooks, pages with long commands, exports of more kinds
# make test-all  all of these; less than one after the other, because they share what they need
# make test-serving URL=http://HOST:8501 MODEL=NAME [GRPC=HOST:8500]  the contract, at any server
# make docs   the documentation site, in build/docs/site
# make notebooks  colab/NAME.ipynb from colab/NAME.py
# make bench [RUN=run trained on Multi30k] [MULTI30K=folder] [BENCH="--only PREFIX ..."]
#             measures this package and its peers in turns, and writes docs/benchmarks.md
# make bench-quick  a part of the cases, one round, in build/bench/quick
# make check  what continuous integration runs: format, lint, types, docs, all tests
PYTHON ?= python3
# .venv for python3, .venv-3.13 for python3.13
VENV := .venv$(patsubst python3.%,-3.%,$(filter-out python3,$(notdir $(PYTHON))))
BIN := $(VENV)/bin
READY := $(VENV)/ready
BENCH_READY := build/bench-venv/ready
RUN_BENCH := PYTHONPATH=benchmarks build/bench-venv/bin/python -m bench

.PHONY: demo test test-all test-distributed test-programs test-serving bench bench-quick check docs notebooks format lint types clean

demo: $(READY)
	@echo "The demo trains for some minutes, and writes to demo/"
	$(BIN)/keras-transformer demo

test: $(READY)
	@echo "The default tests take about 10 minutes on 2 cores"
	$(BIN)/python -m pytest --numprocesses 2

test-all: $(READY)
	$(BIN)/python -m pytest -m "" --numprocesses 2 --durations 40

test-distributed: $(READY)
	$(BIN)/python -m pytest -m distributed

test-programs: $(READY)
	$(BIN)/python -m pytest -m programs --numprocesses 2

test-serving: $(READY)
	SERVING_URL=$(URL) SERVING_MODEL=$(MODEL) SERVING_GRPC=$(GRPC) \
		$(BIN)/python -m pytest tests/integration/test_serving_contract.py

bench: $(BENCH_READY)
	$(RUN_BENCH) run $(if $(RUN),--run $(RUN)) $(BENCH)
	$(RUN_BENCH) report

bench-quick: $(BENCH_READY)
	$(RUN_BENCH) run --quick $(if $(RUN),--run $(RUN)) $(BENCH)
	$(RUN_BENCH) report --quick

check: lint types docs test-all

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# mypy wants the package's folders as they are imported.
types: $(READY)
	rm -rf build/types && mkdir -p build/types/keras_transformer
	ln -s "$(CURDIR)"/keras_transformer/* "$(CURDIR)/trainers" "$(CURDIR)/export" "$(CURDIR)/cli" \
		build/types/keras_transformer/
	cd build/types && "$(CURDIR)/$(BIN)/mypy" --config-file "$(CURDIR)/setup.cfg" -p keras_transformer

# The links make the sub-packages what they are imported as, and links into the code resolve.
docs: $(READY)
	rm -rf build/docs && mkdir -p build/docs/pages build/docs/packages/keras_transformer
	ln -s "$(CURDIR)"/keras_transformer/* "$(CURDIR)/trainers" "$(CURDIR)/export" "$(CURDIR)/cli" \
		build/docs/packages/keras_transformer/
	ln -s "$(CURDIR)/docs" "$(CURDIR)/keras_transformer" "$(CURDIR)/trainers" "$(CURDIR)/export" \
		"$(CURDIR)/cli" "$(CURDIR)/colab" "$(CURDIR)"/*.md build/docs/pages/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

notebooks: $(READY)
	$(BIN)/python colab/pair.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Made anew when the dependencies change. The stamp comes last: without it, make installs again.
$(READY): setup.cfg pyproject.toml constraints.txt
	@echo "Installing the package and its tools into $(VENV): 3.5 GB, some minutes, once"
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[dev]'
	touch $@

# An environment of its own, with the peers.
$(BENCH_READY): setup.cfg constraints.txt benchmarks/requirements-peers.txt
	$(PYTHON) -m venv --clear build/bench-venv
	build/bench-venv/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --requirement benchmarks/requirements-peers.txt \
		--editable '.[plots]'
	touch $@

clean:
	rm -rf .venv .venv-* demo build dist *.egg-info
