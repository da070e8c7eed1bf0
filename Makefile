# The main jobs of plmctl. Everything happens in a virtual environment of its own, .venv.

PYTHON ?= python3
PIP = .venv/bin/python -m pip --disable-pip-version-check
INSTALL = $(PIP) install -q -c constraints.txt
SEED ?= 1

# Compiled modules are kept: the tests start many processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-zh test slow sweep golden lint types fix docs site release-check versions everything clean

# DEMO=--quick: only see that it works.
demo: .venv/samples  ## English: pretrain BERT and GPT-2, see what it buys (minutes)
	.venv/bin/plmctl demo en --seed $(SEED) $(DEMO)

demo-zh: .venv/samples-zh  ## The same in Chinese, GPT-2 (minutes)
	.venv/bin/plmctl demo zh --seed $(SEED) $(DEMO)

test: .venv/dev  ## All tests but the slow ones
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2

# SWEEP=0 to 5: with this sixth of the exhaustive tests; all: with all of them.
slow: .venv/dev  ## The longer proofs alone
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2 --dist loadgroup --slow \
	  $(if $(SWEEP),--sweep $(SWEEP)) -m "slow or sweep"

sweep: .venv/dev  ## The exhaustive tests alone, all of them (an hour)
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2 --dist loadgroup --sweep all -m sweep

golden: .venv/dev  ## Record again what command lines do (tests/golden); then read the diff
	GOLDEN_RECORD=1 OMP_NUM_THREADS=1 .venv/bin/python -m pytest --slow tests/golden
	git --no-pager diff --stat tests/golden

lint: .venv/dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/codespell README.md CHANGELOG.md CONTRIBUTING.md docs plmctl tests scripts configs

types: .venv/dev
	.venv/bin/mypy

fix: .venv/dev
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

docs: .venv/dev  ## The pages that are made from the code
	.venv/bin/python scripts/config_reference.py

site: .venv/docs  ## The documentation as web pages, in site/
	.venv/bin/python scripts/build_site.py

release-check: .venv/release  ## Build, check, install into a new environment, run there
	.venv/bin/python scripts/check_install.py release

versions: .venv/release  ## The lowest and the newest versions that pyproject.toml allows (GBs)
	.venv/bin/python scripts/check_install.py versions lowest
	.venv/bin/python scripts/check_install.py versions newest

everything: .venv/dev .venv/release  ## The gate with all that it leaves to other days (hours)
	EVERYTHING=1 bash .ci/run

clean:
	rm -rf .venv build dist runs stores

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(PIP) install -q --upgrade pip

# torch first and by itself: its exact version decides which build is taken.
.venv/base: .venv/bin/python constraints.txt
	$(INSTALL) torch==2.13.0
	touch $@

.venv/samples: .venv/base pyproject.toml
	$(INSTALL) -e '.[counting,samples]'
	touch $@

.venv/samples-zh: .venv/base pyproject.toml
	$(INSTALL) -e '.[counting,samples-zh]'
	touch $@

.venv/dev: .venv/base pyproject.toml
	$(INSTALL) -e '.[counting,dev,documents,elmo,peft,samples,samples-zh,tensorboard,text,zh]'
	touch $@ .venv/samples .venv/samples-zh  # it has theirs

.venv/release: .venv/dev
	$(INSTALL) -e '.[release]'
	touch $@

.venv/docs: .venv/dev
	$(INSTALL) -e '.[docs]'
	touch $@
