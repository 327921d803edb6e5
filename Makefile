# Every target sets itself up: a virtual environment in .venv, made once for each state of pyproject.toml.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: test test-slow lint types demo clean

test: $(READY)
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadgroup

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/pyright --pythonpath $(BIN)/python

demo: $(READY)
	$(BIN)/python -m example_project.demo $(if $(KEEP),--keep)

clean:
	rm -rf $(VENV) .demo

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch $(READY)
