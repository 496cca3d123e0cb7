# What can be done with a checkout; `make demo` and `make test` need nothing but Python and a package index.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet

.PHONY: help demo test lint format types imports check docs bench kill-matrix experiments fuzz peers clean

help:
	@echo "make demo         two processes, one conversation, with the offline model"
	@echo "make test         the tests (ARGS= goes to pytest, DATABASE_URL= chooses the database)"
	@echo "make lint format types imports check docs    what CI checks beside the tests"
	@echo "make bench kill-matrix experiments fuzz peers    the longer measurements and peers"

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python from 3.11 up with venv was found; name one: make PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Groups (PEP 735) need pip 25.1.
$(VENV)/.stamp-pip: $(BIN)/python
	$(INSTALL) --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.stamp-%: pyproject.toml $(VENV)/.stamp-pip
	$(INSTALL) --editable . --group $*
	@touch $@

# A database of its own, so that a demo touches nothing and begins anew each time.
demo: export DATABASE_URL = sqlite:///$(CURDIR)/.demo.sqlite3
demo: $(VENV)/.stamp-project
	@rm -f .demo.sqlite3*
	@$(BIN)/python manage.py migrate --verbosity 0
	@for prompt in "My name is Mac." "What is my name?"; do \
		echo "\$$ python manage.py nexo_chat Assistant user-42 --prompt \"$$prompt\""; \
		$(BIN)/python manage.py nexo_chat Assistant user-42 --prompt "$$prompt" || exit 1; \
	done

test: $(VENV)/.stamp-test
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.stamp-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.stamp-lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.stamp-lint
	$(BIN)/mypy

imports: $(VENV)/.stamp-lint
	$(BIN)/lint-imports

check: $(VENV)/.stamp-project
	$(BIN)/python manage.py check
	$(BIN)/python manage.py makemigrations --check --dry-run

docs: $(VENV)/.stamp-docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going -b html docs docs/_build/html

bench: $(VENV)/.stamp-test
	$(BIN)/python -m tests.benchmarks.turn $(ARGS)

kill-matrix: $(VENV)/.stamp-test
	$(BIN)/python -m tests.durability.kill_matrix $(ARGS)

experiments: $(VENV)/.stamp-test
	$(BIN)/python -m tests.durability.experiments $(or $(ARGS),all)

fuzz: $(VENV)/.stamp-test
	$(BIN)/python -m tests.fuzz $(ARGS)

peers:
	tests/peers/install

clean:
	rm -rf $(VENV) docs/_build .demo.sqlite3* test_nexo*.sqlite3*
