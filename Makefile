# Each target sets up all it needs in .venv; a second call finds it fresh and starts at once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TOOLS  := .venv-tools
DEMO   := paml-demo
PORT   ?= 8000

.PHONY: demo serve test test-slow attack lint bench mutate lock sbom clean
.DEFAULT_GOAL := demo

demo: $(STAMP)
	$(BIN)/paml demo

serve: $(DEMO)/run/weights.safetensors | $(STAMP)
	$(BIN)/paml serve $(DEMO)/run --port $(PORT)

# A process per core with one thread each; tests of one file stay together, because they share what was trained.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --dist loadfile

test: $(STAMP)
	$(PYTEST) -m "not slow and not attack"

test-slow: $(STAMP)
	$(PYTEST) -m slow

# Small attacks on files, trainings and the service; benchmarks/attack has the large ones.
attack: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m attack

lint: $(STAMP)
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# Which changes of the code would no test notice? ONLY=engine/heads for a module; docs/mutation.md.
mutate: $(VENV)/.installed-mutate
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutate.py $(ONLY)

# The pins of constraints.txt with the hashes of all their files, for developers (all) and for the container image.
LOCK := $(TOOLS)/bin/uv pip compile --quiet --generate-hashes --no-annotate --no-header --python-version 3.11 \
        --constraint constraints.txt

lock: $(TOOLS)/.installed
	$(LOCK) --universal --no-deps --no-emit-package torch constraints.txt --output-file requirements.lock
	$(LOCK) --python-platform x86_64-manylinux_2_28 --extra serve --extra postgres --override deploy/without-torch.txt \
	  pyproject.toml deploy/requirements.in --output-file deploy/requirements.lock

# What the container image holds, with versions and hashes, as CycloneDX.
sbom: $(TOOLS)/.installed
	@mkdir -p build
	cat deploy/requirements.lock deploy/torch.lock | $(TOOLS)/bin/cyclonedx-py requirements --pyproject pyproject.toml \
	  --output-reproducible --output-file build/sbom.cdx.json -
	@echo build/sbom.cdx.json

clean:
	rm -rf $(VENV) $(TOOLS) build

# Trained once, in less than a minute; a training that was interrupted goes on.
$(DEMO)/run/weights.safetensors: $(DEMO)/data/manifest.json
	$(BIN)/paml train $(DEMO)/data --method ridge epochs=10 ensemble_size=2 --out $(DEMO)/run --resume

$(DEMO)/data/manifest.json: | $(STAMP)
	$(BIN)/paml data prepare synthetic --out $(DEMO)/data

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

# Tools that are no part of the project, apart from its environment.
$(TOOLS)/.installed: Makefile
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/pip install --quiet uv==0.13.8 cyclonedx-bom==7.5.0
	@touch $@

$(VENV)/.installed-mutate: $(STAMP)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,mutate]'
	@touch $@
