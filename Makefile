# HopBase: `make demo` shows it, `make test` tests it, `make check` reads it, `make bench` measures it.

PYTHON ?= $(shell command -v python3.11 || echo python3)
PORT ?= 8000
ONCE ?=
ARGS ?=
WORKERS ?= 2

BIN := .venv/bin
READY := .venv/requirements.installed

.PHONY: demo test check bench
.DEFAULT_GOAL := help

.PHONY: help
help:
	@sed -n '1s/^# //p' Makefile

# A virtual environment with exactly what requirements.txt pins; made again when that file changes.
$(READY): requirements.txt
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) is missing: install Python 3.11, or name yours with PYTHON=…"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

demo: $(READY)
	@$(BIN)/python manage.py demo --port $(PORT) $(if $(filter-out 0,$(ONCE)),--once)

# Whole files to each of WORKERS processes, in the order of tests/conftest.py.
SPREAD := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# With ARGS, one pytest run. Without: everything on SQLite, then what uses the database on PostgreSQL.
test: $(READY)
ifneq ($(strip $(ARGS)),)
	@$(BIN)/python -m pytest $(ARGS)
else
	@echo "== SQLite =="
	@HOPBASE_TEST_DATABASE=sqlite $(BIN)/python -m pytest $(SPREAD)
	@echo "== PostgreSQL =="
	@HOPBASE_TEST_DATABASE=postgresql $(BIN)/python -m pytest $(SPREAD) --database-only
endif

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python manage.py check
	$(BIN)/python manage.py makemigrations --check --dry-run

# ONLY names runs, separated by commas; DURATION is the seconds of each measurement.
bench: $(READY)
	@$(BIN)/python -W ignore -m bench $(if $(ONLY),--only $(ONLY)) $(if $(DURATION),--duration $(DURATION)) $(ARGS)
