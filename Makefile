# make PYTHON=/path/to/python    choose the interpreter that .venv is made with
# make test ARGS="-k racing"     hand arguments to pytest

.SUFFIXES:
.DEFAULT_GOAL := help
.NOTPARALLEL:

VENV = .venv
WORKERS = 2
ARGS =

BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
# One BLAS thread per worker: more would only compete for the same cores. A file stays with one worker,
# so that what its tests share is made once; those with many tests come first. Bytecode is kept for the processes
# that tests start.
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' Makefile

.PHONY: venv
venv: $(VENV)/.installed ## make .venv with the package and all that demo and test need

.PHONY: demo
demo: $(VENV)/.installed ## run short examples: doctor visits against NUTS, then late flights
	$(BIN)/python examples/tall_regression.py --quick --no-simulated
	$(BIN)/python examples/flights.py

.PHONY: test
test: $(VENV)/.installed ## run the fast tests and the docstring examples
	$(PYTEST) -m "not slow" $(ARGS)

.PHONY: test-all
test-all: $(VENV)/.installed ## run all tests, the slow ones too
	$(PYTEST) $(ARGS)

.PHONY: test-bambi
test-bambi: $(VENV)/bambi/.installed ## run fast tests with Bambi and with PyMC 6.3
	$(subst $(BIN),$(VENV)/bambi/bin,$(PYTEST)) -m "not slow" \
		tests/interoperability/test_bambi.py tests/reading $(ARGS)

.PHONY: lint
lint: $(VENV)/.installed-dev ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.PHONY: format
format: $(VENV)/.installed-dev ## format the code and apply safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: docs
docs: $(VENV)/.installed-docs ## build the documentation site, docs/_build/html; warnings are errors
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

.PHONY: clean
clean: ## delete .venv, caches and build results
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build dist docs/_build docs/api/generated docs/examples
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are written last, so an interrupted installation is done again.
# A .venv that still runs on a supported Python is kept and brought up to date.
$(VENV)/.installed: pyproject.toml constraints.txt
	@rm -f $(VENV)/.installed $(VENV)/.installed-dev $(VENV)/.installed-docs
	@if ! { PYTHON=$(BIN)/python sh scripts/find_python.sh && $(BIN)/python -m pip --version; } \
		>/dev/null 2>&1; then \
		python=$$(PYTHON="$(PYTHON)" sh scripts/find_python.sh) || exit 1; \
		echo "Making $(VENV) with $$python"; \
		"$$python" -m venv --clear $(VENV) || exit 1; \
	fi
	@echo "Installing amc_pymc and its dependencies into $(VENV); this takes a few minutes"
	@$(PIP) --editable '.[examples,test]'
	@echo "Compiling kernels; this takes two minutes"
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m amc_pymc.compile || echo "Left for the first run."
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing the development tools into $(VENV)"
	@$(PIP) --editable '.[dev]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@echo "Installing the tools of the documentation into $(VENV)"
	@$(PIP) --editable '.[docs]'
	@touch $@

# Bambi shares an environment with the oldest supported minor version of PyMC, and with a PyTensor of its time.
$(VENV)/bambi/.installed: $(VENV)/.installed
	@echo "Installing Bambi and PyMC 6.3 into $(VENV)/bambi"
	@$(BIN)/python -m venv --clear $(VENV)/bambi
	@grep -v -e '^pymc==' -e '^pytensor==' constraints.txt >$(VENV)/bambi/constraints.txt
	@$(VENV)/bambi/bin/python -m pip --disable-pip-version-check install --quiet \
		--constraint $(VENV)/bambi/constraints.txt --editable '.[test]' \
		bambi==0.21.0 pymc==6.3.2 pytensor==3.3.4
	@touch $@
