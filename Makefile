# `make train` and `make test` do all the set-up themselves; a new machine needs Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
SLOW_READY := $(VENV)/ready-for-slow-tests
BENCH_VENV := .venv-bench
BENCH_READY := $(BENCH_VENV)/ready
DOCS_VENV := .venv-docs
DOCS_READY := $(DOCS_VENV)/ready
INSTALL := python -m pip install --quiet --disable-pip-version-check
NEW_PIP := "pip>=25.1"
KERNELS := $(shell find src -name '*.c' -o -name '*.h')

# Tests start many processes; without bytecode each would compile Esper, and each worker all tests.
export PYTHONDONTWRITEBYTECODE :=

AS_ROOT := $(shell test "$$(id -u)" = 0 || echo sudo -n)

.PHONY: train grow test fast-test check coverage slow-test soak bench bench-learning bench-growth bench-warm-start evidence docs chromium clean

train: $(READY)  ## train a controller and say whether growth helped; ARGS="--rounds 60" for more
	$(BIN)/esper train $(ARGS)

grow: $(READY)  ## grow a model of your own on real data; the model, a figure and a page are kept in grown/
	$(BIN)/python examples/grow_your_own_model.py --out grown

test: $(READY)  ## everything that must pass before a change lands
	@$(MAKE) --no-print-directory -j 2 check fast-test

fast-test: $(READY)  ## the tests of `make test` without the checks
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

check: $(READY)  ## style, types, import directions, sizes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python tools/size_report.py src

coverage: $(READY)  ## branch coverage of the tests by package; core packages need 95%
	OMP_NUM_THREADS=1 ESPER_TEST_EXAMPLES=100 $(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=; \
		code=$$?; $(BIN)/python tools/coverage_by_package.py && exit $$code

slow-test: $(SLOW_READY) chromium coverage  ## coverage, then tests that take minutes or need other libraries or a browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -rs -n 2 --dist worksteal

soak: $(READY)  ## memory, open files and telemetry over 500 rounds, as docs/images/soak.png; a few minutes
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/soak.py

bench: $(BENCH_READY)  ## speed against other libraries; BENCH="--only act" for a part of it
	$(BENCH_VENV)/bin/python benchmarks/run.py $(BENCH)

bench-learning: $(BENCH_READY)  ## what PPO learns against other libraries; an hour and a half, continues after Ctrl-C; LEARNING="--only images"
	$(BENCH_VENV)/bin/python benchmarks/learning.py $(LEARNING)

bench-growth: $(READY)  ## growing networks against every fixed size at equal FLOPs; two hours, continues after Ctrl-C; GROWTH="--only text"
	$(BIN)/python benchmarks/growth_pays.py $(GROWTH)

bench-warm-start: $(SLOW_READY)  ## more budget for a trained model: continue, grow or start over; an hour, continues after Ctrl-C
	$(BIN)/python benchmarks/warm_start.py $(WARM_START)

evidence: $(READY)  ## every claim about controllers, from training to the shipped one; hours; goes on after Ctrl-C
	$(BIN)/python benchmarks/evidence/run.py $(EVIDENCE)

docs: $(DOCS_READY)  ## the documentation as a site, in site/; any broken link is an error
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --strict --quiet
	@echo "To read it, with search: $(PYTHON) -m http.server --bind 127.0.0.1 --directory site"

clean:
	rm -rf $(VENV) $(BENCH_VENV) $(DOCS_VENV) build site
	find src -name "*.so" -delete

# Dependency groups need pip 25.1, which is newer than the one of a fresh Python 3.11.
$(READY): pyproject.toml setup.py constraints.txt $(KERNELS)
	@echo "Installing Esper, PyTorch and the development tools into $(VENV); the first time takes a few minutes."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/$(INSTALL) $(NEW_PIP)
	$(BIN)/$(INSTALL) -c constraints.txt -e . --group dev
	touch $@

# Nothing here replaces a package that `make test` uses, so one environment serves both.
$(SLOW_READY): $(READY)
	$(BIN)/$(INSTALL) -c constraints.txt -e ".[accelerate,lightning,onnx,optuna,pandas,ray,tensorboard,transformers,wandb]" --group slow-test
	touch $@

# Debian's browser, where it can be had without a question; without it the tests that need it are
# skipped and say what to install.
chromium:
	@command -v chromium >/dev/null || { $(AS_ROOT) apt-get update --quiet --quiet && \
		$(AS_ROOT) env DEBIAN_FRONTEND=noninteractive apt-get install --quiet --quiet --yes \
		--no-install-recommends chromium fonts-dejavu-core; } || \
		echo "chromium cannot be installed from here: run apt-get install chromium to test in a browser"

# The peers bring many packages and stay out of the environment for development; the constraint
# keeps them from replacing torch.
$(BENCH_READY): pyproject.toml setup.py constraints.txt $(KERNELS)
	@echo "Installing Esper and the libraries it is compared with into $(BENCH_VENV)."
	test -x $(BENCH_VENV)/bin/python || $(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/$(INSTALL) $(NEW_PIP)
	$(BENCH_VENV)/bin/$(INSTALL) -c constraints.txt -e . --group bench
	touch $@

# The reference is read from the source, so the site needs neither PyTorch nor Esper.
$(DOCS_READY): pyproject.toml
	@echo "Installing MkDocs and its plugins into $(DOCS_VENV)."
	test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/$(INSTALL) $(NEW_PIP)
	$(DOCS_VENV)/bin/$(INSTALL) --group docs
	touch $@
