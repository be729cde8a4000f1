# Each target sets up all it needs in .venv; a second call finds it fresh and starts at once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEMO   := paml-demo
PORT   ?= 8000

.PHONY: demo serve test test-slow lint bench mutate clean
.DEFAULT_GOAL := demo

demo: $(STAMP)
	$(BIN)/paml demo

serve: $(DEMO)/run/weights.safetensors | $(STAMP)
	$(BIN)/paml serve $(DEMO)/run --port $(PORT)

# A process per core with one thread each; tests of one file stay together, because they share what was trained.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --dist loadfile

test: $(STAMP)
	$(PYTEST) -m "not slow"

test-slow: $(STAMP)
	$(PYTEST) -m slow

lint: $(STAMP)
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# Which changes of the code would no test notice? ONLY=engine/heads for a module; docs/mutation.md.
mutate: $(VENV)/.installed-mutate
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutate.py $(ONLY)

clean:
	rm -rf $(VENV) build

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

$(VENV)/.installed-mutate: $(STAMP)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,mutate]'
	@touch $@
