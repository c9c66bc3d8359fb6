# make demo   the main job, end to end, on the bundled corpus
# make test   the default test suite
# make test-distributed  several processes, kills, every combination of strategy and precision
# make test-serving URL=http://HOST:8501 MODEL=NAME [GRPC=HOST:8500]  the contract, at any server
# make docs   the documentation site, in build/docs/site
# make check  what continuous integration runs: format, lint, types, docs, all tests
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test test-distributed test-serving check docs format lint types clean

demo: $(READY)
	$(BIN)/keras-transformer demo

test: $(READY)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

test-distributed: $(READY)
	$(BIN)/python -m pytest -m distributed

test-serving: $(READY)
	SERVING_URL=$(URL) SERVING_MODEL=$(MODEL) SERVING_GRPC=$(GRPC) \
		$(BIN)/python -m pytest tests/integration/test_serving_contract.py

check: lint types docs test test-distributed

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# mypy wants the package's folders as they are imported.
types: $(READY)
	rm -rf build/types && mkdir -p build/types/keras_transformer
	ln -s $(CURDIR)/keras_transformer/* $(CURDIR)/trainers $(CURDIR)/export $(CURDIR)/cli \
		build/types/keras_transformer/
	cd build/types && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/setup.cfg -p keras_transformer

# The links make the sub-packages what they are imported as, and links into the code resolve.
docs: $(READY)
	rm -rf build/docs && mkdir -p build/docs/pages build/docs/packages/keras_transformer
	ln -s $(CURDIR)/keras_transformer/* $(CURDIR)/trainers $(CURDIR)/export $(CURDIR)/cli \
		build/docs/packages/keras_transformer/
	ln -s $(CURDIR)/docs $(CURDIR)/keras_transformer $(CURDIR)/trainers $(CURDIR)/export \
		$(CURDIR)/cli $(CURDIR)/*.md build/docs/pages/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Made anew when the dependencies change; the stamp comes last, so that a broken installation is
# never taken for a whole one.
$(READY): setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv demo build dist *.egg-info
