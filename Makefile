# HopBase: `make demo` shows it, `make test` tests it, `make check` reads it, `make bench` measures it, `make release` packs it.

PYTHON ?= $(shell command -v python3.11 || echo python3)
PORT ?= 8000
ONCE ?=
ARGS ?=
WORKERS ?= 3

BIN := .venv/bin
# Tests start hundreds of processes, and each would compile all of it anew.
unexport PYTHONDONTWRITEBYTECODE
READY := .venv/requirements.installed

.PHONY: demo test check bench hooks audit release pack release-check
.DEFAULT_GOAL := help

.PHONY: help
help:
	@sed -n '1s/^# //p' Makefile

# A virtual environment with exactly what requirements.txt pins; made again when that file changes.
$(READY): requirements.txt requirements-runtime.txt
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) is missing: install Python 3.11, or name yours with PYTHON=…"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

demo: $(READY)
	@$(BIN)/python manage.py demo --port $(PORT) $(if $(filter-out 0,$(ONCE)),--once)

# Whole files to each of WORKERS processes, in the order of tests/conftest.py.
SPREAD := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# With ARGS, one pytest run. Without: each test where it counts, on SQLite, on PostgreSQL or, where money is concerned, on both.
test: $(READY)
ifneq ($(strip $(ARGS)),)
	@$(BIN)/python -m pytest $(ARGS)
else
	@echo "== SQLite =="
	@$(call share,sqlite)
	@echo "== PostgreSQL =="
	@$(call share,postgresql)
endif

# What fails while others take the processor is asked again, alone: that counts. A test that keeps failing, or five, end it.
# So does one about money: it waits for no processor.
share = export HOPBASE_TEST_DATABASE=$(1); $(BIN)/python -m pytest $(SPREAD) --share || { test $$? = 1 && \
  ! grep -q '"tests/billing/' .pytest_cache/v/cache/lastfailed && \
  echo "== $(1) again, one at a time: what failed beside others ==" && \
  $(BIN)/python -m pytest --share --last-failed --last-failed-no-failures none --maxfail 5; }

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

# Lint before each commit, types before each push.
hooks: $(READY)
	@$(BIN)/pre-commit install

# Known vulnerabilities of what is pinned; asks PyPI. In a virtual environment of its own: its requirements are not ours.
# --strict: a package that PyPI's answers leave out is a failure, not a pass.
audit:
	@test -x .venv/audit/bin/pip-audit || { $(PYTHON) -m venv .venv/audit && .venv/audit/bin/pip install --quiet pip-audit==2.10.1; }
	@.venv/audit/bin/pip-audit --strict --no-deps --disable-pip -r requirements.txt

# What a deployment needs of HEAD, as one archive: the same bytes for the same commit.
DIST ?= dist
VERSION = $(shell sed -n 's/^VERSION = "\(.*\)"$$/\1/p' hopbase_site/release.py)
ARCHIVE = hopbase-$(VERSION).tar.gz
RELEASED := .dockerignore CHANGELOG.md LICENSE README.md billing deploy docs hopbase_site locale manage.py \
  requirements-runtime.txt streaming templates

release:
	@test -z "$$(git status --porcelain)" || { echo "error: commit or put aside your changes: a release is what HEAD holds"; exit 1; }
	@$(MAKE) --no-print-directory pack
	@cat $(DIST)/SHA256SUMS

pack:
	@mkdir -p $(DIST)
	@git -c tar.umask=0022 archive --format=tar.gz --prefix=hopbase-$(VERSION)/ --output=$(DIST)/$(ARCHIVE) HEAD $(RELEASED)
	@cd $(DIST) && sha256sum $(ARCHIVE) > SHA256SUMS

# Installs that archive as an operator would, in a new folder, and streams a request through it.
release-check: release
	@bash tests/try_release.sh $(DIST)/$(ARCHIVE) $(PYTHON)
