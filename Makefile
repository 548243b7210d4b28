# Everything happens in .venv, which the first target that needs it makes. `make` alone says what there is.

PYTHON ?= python3
BIN := .venv/bin
# Newer than the files that say what belongs into .venv: what the demos need, and all.
INSTALLED_DEMO := .venv/installed-demo
INSTALLED := .venv/installed
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
WHICH := import sys; print(sys.base_prefix, sys.version)
# A virtual environment of its own: nothing of the user's Python is mixed in.
export PYTHONNOUSERSITE := 1
unexport PYTHONPATH PYTHONHOME
# Each test starts several Pythons: compiled once, not every time.
unexport PYTHONDONTWRITEBYTECODE
# When the set-up began, for the table of costs.
ifndef BEGAN
BEGAN := $(shell date +%s)
endif
# Which part of `make nightly` runs: make nightly SHARD=1/3.
SHARD ?= 1/1

.PHONY: help demo demo-loss docs pictures test lint nightly soak gpu bench protos dist clean setup check-python
.DEFAULT_GOAL := help

help:
	@echo "make demo     train a small network on handwritten digits with two workers"
	@echo "make demo-loss  kill one of three workers in the middle of a step, and show how soon the others continue"
	@echo "make test     run what every change needs: lint, format, types, layers, tests (15 minutes on 2 cores)"
	@echo "make lint     the same without the tests (half a minute)"
	@echo "make nightly  run the dear tests too (30 minutes; a third of them with SHARD=1/3)"
	@echo "make soak     run chance for hours: 200 random kills, attached and detached, 200 trainings with random kills and all places and"
	@echo "              features of test_recovery.py, 100 random faults of hosts, 60 in one job of half an hour, 60"
	@echo "              stop notices for hosts in another,"
	@echo "              100,000 random histories of the core, 400 random programs of collectives, 10,000 random"
	@echo "              trainings, 1,000 random corruptions of one, 200 elastic trainings of MXNet with random losses, half"
	@echo "              an hour of healthy ranks that keep others waiting, 200 random losses of jobs with snapshots, and a Gluon"
	@echo "              training on four ranks"
	@echo "make gpu      run every test that needs a GPU, and print one page of what it found; without one it says 0 run"
	@echo "make bench    measure, beside torchrun, DDP, gloo, MXNet alone, and Horovod where it is installed"
	@echo "make docs     build the documentation into build/site, which opens in a browser from the disk"
	@echo "make pictures run jobs, and draw what the terminal and a timeline show, for the README and the docs"
	@echo "make protos   generate the code of protos/*.proto again"
	@echo "make dist     build the wheel and the source archive into dist, the same bytes each time"
	@echo "make clean    remove .venv, caches and built files"
	@echo "Each makes .venv first, with the python3 on PATH or the one given: make demo PYTHON=/usr/bin/python3"

# A bare `python` in a worker's command is looked for on PATH, where that of .venv must come first.
demo: check-python $(INSTALLED_DEMO)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/hvdrun -np 2 python examples/torch_digits.py
	@echo "Next: make demo-loss, which kills a worker of a running job."

demo-loss: check-python $(INSTALLED_DEMO)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/hvdrun -np 3 --min-np 2 python examples/torch_worker_loss.py

test: setup
	@$(BIN)/python tests/house/parts.py --began $(BEGAN)

lint: setup
	@$(BIN)/python tests/house/parts.py lint format types layers docs

nightly: setup
	@$(BIN)/python tests/house/parts.py nightly --shard $(SHARD)

soak: setup
	HVDRUN_SOAK_RUNS=200 HVDRUN_HISTORIES=100000 $(BIN)/pytest tests/system/test_random_kills.py \
	  tests/rendezvous/core/test_laws.py --timeout=3600
	HVDRUN_SOAK_PROGRAMS=400 HVDRUN_SOAK_CYCLES=200 HVDRUN_SOAK_IDLE_SECONDS=30 $(BIN)/pytest \
	  tests/worker_runtime/test_random_collectives.py tests/system/test_collectives.py --timeout=3600
	HVDRUN_SOAK_TRAININGS=10000 $(BIN)/pytest tests/worker_runtime/test_random_trainings.py -o faulthandler_timeout=0
	HVDRUN_SOAK_CORRUPTIONS=1000 HVDRUN_SOAK_STEPS=100000 $(BIN)/pytest tests/worker_runtime/test_random_corruptions.py \
	  --timeout=3600
	HVDRUN_SOAK_RUNS=100 $(BIN)/pytest tests/system/hosts/test_random_faults.py --timeout=3600
	HVDRUN_SOAK_FAULTS=60 $(BIN)/pytest tests/system/hosts/test_endurance.py -o faulthandler_timeout=0
	HVDRUN_SOAK_RUNS=200 HVDRUN_SOAK_GENERATIONS=200 $(BIN)/pytest tests/system/test_random_recoveries.py \
	  tests/system/test_recovery.py tests/system/test_many_generations.py tests/system/test_horovod_training.py \
	  --timeout=3600
	HVDRUN_SOAK_RUNS=400 $(BIN)/pytest tests/system/test_random_losses.py --timeout=3600
	HVDRUN_SOAK_RUNS=200 $(BIN)/pytest tests/system/test_server_kills.py --timeout=7200
	HVDRUN_SOAK_RUNS=100 $(BIN)/pytest tests/system/test_snapshots.py --timeout=3600
	HVDRUN_SOAK_RUNS=200 $(BIN)/pytest tests/system/test_mxnet_recoveries.py --timeout=3600
	HVDRUN_SOAK_MINUTES=30 $(BIN)/pytest tests/system/test_healthy_waits.py -o faulthandler_timeout=0
	HVDRUN_SOAK_WORKERS=4 $(BIN)/pytest tests/worker_runtime/mxnet/test_trainer.py --timeout=3600

gpu: setup
	@$(BIN)/python -m tests.house.gpu

bench: setup
	$(BIN)/python benchmarks/launch.py
	$(BIN)/python benchmarks/functions.py
	$(BIN)/python benchmarks/step_time.py --json benchmarks/step_time.json
	$(BIN)/python benchmarks/collectives.py --json benchmarks/collectives.json
	$(BIN)/python benchmarks/mxnet_step.py
	$(BIN)/python benchmarks/recovery.py --json benchmarks/recovery.json
	$(BIN)/python benchmarks/restart.py --json benchmarks/restart.json
	$(BIN)/python benchmarks/snapshot.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/journal.py
	$(BIN)/python benchmarks/doctor.py

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

pictures: setup
	$(BIN)/python docs/pictures.py

protos: setup
	$(BIN)/python tests/protos/generate.py

# The time of the commit stands in the archives: a commit gives the same bytes whenever and wherever it is built.
dist: setup
	@[ -z "$$(git status --porcelain)" ] || { echo >&2 "make dist builds a commit: commit or remove what git status shows."; exit 1; }
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation --outdir dist
	@cd dist && sha256sum *

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup: check-python $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing into .venv what pyproject.toml names, in the versions of constraints.txt: minutes, the first time"
	@$(INSTALL) --quiet -e '.[torch,mxnet,dev,dev-torch,deploy,docs]'
	@touch $@ $(INSTALLED_DEMO)

# What is imported is compiled when it is imported: that is little of torch.
$(INSTALLED_DEMO): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing PyTorch and scikit-learn into .venv: about a minute, and the time to download 200 MB or more"
	@$(INSTALL) --no-compile -e '.[torch,examples]'
	@touch $@

# pip is the last that venv puts there: without it an earlier attempt has failed, and is made anew.
$(BIN)/pip:
	@command -v "$(PYTHON)" >/dev/null || { echo >&2 \
	  "hvdrun needs Python 3.11 or newer, but there is no '$(PYTHON)': on Debian, apt-get install python3 python3-venv," \
	  "or name another with make PYTHON=/path/to/python3."; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo >&2 \
	  "hvdrun needs Python 3.11 or newer, but '$(PYTHON)' is $$("$(PYTHON)" --version 2>&1 | head -c 60 | head -1):" \
	  "name another with make PYTHON=/path/to/python3."; exit 1; }
	@"$(PYTHON)" -c 'import venv; from ensurepip import bootstrap' 2>/dev/null || { echo >&2 \
	  "'$(PYTHON)' cannot make virtual environments: on Debian, apt-get install python3-venv" \
	  "(python3.X-venv where it is not Debian's own Python)."; exit 1; }
	@"$(PYTHON)" -m venv --clear .venv

# Whoever names a Python is not given another one that an earlier make has chosen.
check-python:
ifneq ($(origin PYTHON),file)
	@command -v "$(PYTHON)" >/dev/null || { echo >&2 "there is no '$(PYTHON)' to run hvdrun with."; exit 1; }
	@[ ! -e $(BIN)/pip ] || [ "$$($(BIN)/python -c '$(WHICH)')" = "$$("$(PYTHON)" -c '$(WHICH)')" ] || { echo >&2 \
	  ".venv was made with another Python than '$(PYTHON)': make clean first."; exit 1; }
endif
