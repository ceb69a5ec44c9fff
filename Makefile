# agent-rft: `make demo` shows it, `make test` proves it. Each target sets up what is missing first; `make help` lists them.
#
#   PYTHON           the interpreter of the virtual environment; 3.11 or newer
#   RFT_TORCH        which PyTorch. The default is the CPU's build: 190 MB instead of gigabytes. For a GPU, once, at set-up:
#                        make setup RFT_TORCH=torch==2.13.0
#                    (the registry's CUDA build), or from an index of your choice:
#                        make setup RFT_TORCH=torch==2.13.0+cu130 RFT_TORCH_INDEX=https://download.pytorch.org/whl/cu130
#                    .venv remembers the choice.
#   RFT_TORCH_INDEX  where to look if pip's own indexes have no such build
#   ARGS             passed on: make test ARGS="-k gate", make figure NAME=demo_kill ARGS=--small
#   DEMO             passed to `rft demo`: make demo DEMO=--small

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
RFT_TORCH ?= $(or $(shell cat .venv/torch.txt 2>/dev/null),torch==2.13.0+cpu)
RFT_TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
ARGS ?=
DEMO ?=
BIN := .venv/bin
# Each test file is compiled once, whatever the user's shell says: that takes as long as to import all of them.
TESTS = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q --durations 20 --numprocesses 2 --dist loadfile --no-loadscope-reorder

# The environment is up to date if it was made from these files and this torch, whatever their dates.
READY := .venv/ready-$(shell { cat pyproject.toml constraints.txt lock-*.txt; echo "$(RFT_TORCH)"; pwd; } | cksum | cut -d ' ' -f 1)

# pip's whole output goes to a log; `progress` shows that it is alive. It compiles nothing: a minute for files of which most are
# never imported, and Python compiles those that are. Where it may not, all are compiled here: else `import torch` takes 4 s, not 1.5.
define SETUP
pip_install() { $(BIN)/python -m pip install --disable-pip-version-check --no-input --progress-bar off --no-compile "$$@" 2>&1 | tee -a "$${log:-.venv/setup.log}"; }
resolved() { pip_install -c constraints.txt "$$@"; }
# The lock for this Python and platform; nothing where there is none, or none for this PyTorch (tasks/pins.py).
lock() {
	local name
	name=$$($(BIN)/python -c 'import platform as p, sys, sysconfig; v = sys.version_info; print(f"lock-cp{v[0]}{v[1]}-{sysconfig.get_platform()}.txt" if p.libc_ver()[0] == "glibc" else "none")')
	if [[ -f $$name && "$(RFT_TORCH)" == $$(sed -n 's/^# torch/torch/p' "$$name")* ]]; then echo "$$name"; fi
}
progress() {
	local n=0 word name rest
	while read -r word name rest; do
		case $$word in
			Collecting|Processing) n=$$((n + 1)); ((n % 25)) || echo "[setup]     $$n packages found" ;;
			Installing) if [[ $$name == collected ]]; then echo "[setup]     installing them"; fi ;;
		esac
	done
}
failed() {
	grep -v WARNING .venv/setup.log | tail -n 12
	echo "make: $$1 The whole output is in .venv/setup.log. Fix the cause and run make again."
	exit 2
}
endef

.PHONY: help setup demo model test quick test-rest check lint types figures figure record lock dvc docs clean

help:
	@echo "make setup    the virtual environment .venv with every package, a few minutes"
	echo "make demo     the whole ladder on the ICD-10 recipe; run again, it skips what has not changed"
	echo "make model    a small pretrained model, SmolLM2-135M-Instruct, into .rft/models"
	echo "make test     linters, types, and every test that takes about a second; ARGS='-k gate' chooses tests"
	echo "make test-rest  all other tests, whole sessions at the command line among them"
	echo "make figures  the figures that the project promises; make figure NAME=demo_time measures one"
	echo "make record   record the goldens again (then read the diff: CONTRIBUTING.md)"
	echo "make lock     write the lock of make setup, after constraints.txt changed: make lock INDEX=URL"
	echo "make dvc      write dvc.yaml from the stages' imports"
	echo "make docs     write docs/params.md from the docstrings of rft/config, and docs/cli.md from the verbs' help"
	echo "make clean    remove .venv and caches; runs, data and the ledger stay"

setup: $(READY)

$(READY):
	@$(SETUP)
	command -v "$(PYTHON)" >/dev/null || { echo "make: no '$(PYTHON)' on the PATH. Install Python 3.11 or newer, or name one: make setup PYTHON=/path/to/python3"; exit 2; }
	version=$$("$(PYTHON)" -V 2>&1 || true)
	"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: '$(PYTHON)' is $$version; agent-rft needs 3.11 or newer. Name one: make setup PYTHON=python3.12"; exit 2; }
	if [[ $$($(BIN)/python -V 2>&1) != "$$version" ]]; then
		echo "[setup] 1/3 virtual environment .venv, $$version"
		"$(PYTHON)" -m venv --clear .venv || { echo "make: could not make .venv. On Debian and Ubuntu, Python's venv is a package of its own: apt install python3-venv"; exit 2; }
	fi
	rm -f .venv/ready-*
	: > .venv/setup.log
	lock=$$(lock)
	torch=(resolved "$(RFT_TORCH)")
	if [[ -n $$lock && "$(RFT_TORCH)" == *+cpu ]]; then torch=(pip_install --no-deps "$(RFT_TORCH)"); fi # other builds bring packages of their own
	torch() { "$${torch[@]}" >/dev/null || "$${torch[@]}" --extra-index-url "$(RFT_TORCH_INDEX)" >/dev/null; }
	if [[ -n $$lock ]]; then
		echo "[setup] 2/3 $(RFT_TORCH)"
		beside=
		# Without packages of its own it is unpacked beside the others, which takes a core each.
		if [[ $${torch[0]} == pip_install ]]; then log=.venv/torch.log torch & beside=$$!; else torch || failed "$(RFT_TORCH) could not be installed."; fi
		echo "[setup] 3/3 all other packages, by $$lock"
		pip_install --no-deps --require-hashes -r "$$lock" | progress || { wait $$beside || true; failed "the packages could not be installed."; }
		wait $$beside || { cat .venv/torch.log >> .venv/setup.log; failed "$(RFT_TORCH) could not be installed."; }
		pip_install --no-deps --no-build-isolation --editable . >/dev/null || failed "agent-rft could not be installed."
		missing=$$($(BIN)/python -m pip check | grep "not installed" || true) # a lock that was cut at a line
		if [[ -n $$missing ]]; then echo "$$missing" >> .venv/setup.log; failed "$$lock lacks a package: git checkout $$lock, or make lock."; fi
	else
		echo "[setup] 2/3 $(RFT_TORCH)"
		torch || failed "$(RFT_TORCH) could not be installed."
		echo "[setup] 3/3 all other packages, a few minutes: there is no lock for $$version, this platform and $(RFT_TORCH), so pip's resolver is asked"
		resolved --editable '.[test]' | progress || failed "the packages could not be installed."
	fi
	if [[ -n $${PYTHONDONTWRITEBYTECODE:-} ]]; then
		echo "[setup]     compiling them, because PYTHONDONTWRITEBYTECODE is set"
		$(BIN)/python -m compileall -qq -j 0 .venv/lib || true # some are templates
	fi
	echo "$(RFT_TORCH)" > .venv/torch.txt
	touch $@
	echo "[setup] done"

demo: setup
	@$(BIN)/rft demo $(DEMO)

test: lint
	@$(MAKE) --jobs 2 types quick # pyright takes a minute of one core

quick: setup
	@$(TESTS) -m 'not gpu and not slow and not story' $(ARGS)

test-rest: setup
	@$(TESTS) -m 'not gpu and (slow or story)' $(ARGS)

check: lint types

lint: setup
	@$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-cache > .venv/imports.log || { cat .venv/imports.log; exit 1; }

types: setup
	@$(BIN)/pyright --pythonpath $(BIN)/python

model: setup
	@$(BIN)/python -m bench.smollm

figures: setup
	@$(BIN)/python -m bench.figure

figure: setup
	@$(BIN)/python -m bench.figure $(NAME) $(ARGS)

record: setup
	@RECORD=1 $(BIN)/python -m pytest -q $(ARGS)
	git diff --stat -- tests/golden

lock: setup
	@$(if $(INDEX),,$(error name an index whose pages come as JSON too: make lock INDEX=https://.../simple))
	$(BIN)/python -m tasks.pins --index "$(INDEX)"

dvc: setup
	@$(BIN)/python -m tasks.dependencies --write

docs: setup
	@$(BIN)/python -m rft.config.pages --write
	@$(BIN)/python -m flows.cli.page --write

clean:
	@rm -rf .venv .pytest_cache .ruff_cache build *.egg-info .rft/bench
	find . -name __pycache__ -prune -not -path './.git/*' -exec rm -rf {} +
