# `make` lists the targets. Those that run something set up .venv first and reuse it afterwards.
# Another Python: PYTHON=python3.12 make test (.venv is remade for it).

PYTHON ?= python3
PY     := .venv/bin/python
PIP    := -m pip --disable-pip-version-check
CHROMIUM ?= chromium

# "ok 3.12.1", "old 3.10.2", or nothing where there is no such Python.
FOUND := $(shell "$(PYTHON)" -c 'import sys; v = sys.version_info; \
	print("%s %d.%d.%d" % (("old", "ok")[v >= (3, 11)], v[0], v[1], v[2]))' 2>/dev/null)
READY := .venv/ready-$(lastword $(FOUND))
TOO_OLD = qdac needs Python 3.11 or newer, but $(PYTHON) is $(or $(lastword $(FOUND)),not found); \
	name another: PYTHON=python3.12 make $(MAKECMDGOALS)

.PHONY: help demo test lint bench results report picture web screenshot lock clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /make \1 - /p' Makefile

demo: $(READY) ## train a small agent here and show what it learned
	@$(PY) -m qdac demo $(ARGS)

test: $(READY) ## run the tests (the slow ones: make test ARGS="-m slow")
	@$(PY) -m pytest -q -n 2 --durations=5 $(ARGS)

lint: $(READY) ## run ruff
	@$(PY) -m ruff check .

bench: $(READY) ## measure the speed on this machine, as JSON
	@$(PY) -m qdac bench --json $(ARGS)

results: $(READY) ## write the table of results/laptop into README.md
	@$(PY) -m qdac.report.results_table results/laptop README.md

report: $(READY) ## write the report over results/laptop to docs/results
	@rm -rf docs/results
	@$(PY) -m qdac report results/laptop -o docs/results --no-png

picture: ## take docs/images/report.png of the page in docs/results (with CHROMIUM=chromium)
	@"$(CHROMIUM)" --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1200,1500 \
		--screenshot=docs/images/report.png "file://$(CURDIR)/docs/results/index.html"

web: web/node_modules ## rebuild the explorer's page in qdac/explore/static (with node)
	@cd web && npm run --silent check && npm run --silent build

web/node_modules: web/package-lock.json
	@cd web && npm ci --ignore-scripts
	@touch $@

RUN ?= results/laptop/walker2d_feet_contact/qdac_ppo/seed0

screenshot: $(READY) web/node_modules ## take docs/images/explorer.png of the explorer of RUN=... (with node and Chromium)
	@node web/test/picture.mjs $(PY) "$(RUN)" docs/images/explorer.png

# The stamp is written last. Without it .venv is half made, or for another Python: start afresh.
$(READY): requirements.lock pyproject.toml
	$(if $(filter ok,$(FOUND)),,$(error $(TOO_OLD)))
	@echo "Installing into .venv (Python $(lastword $(FOUND))); minutes the first time."
	@test -e $@ || "$(PYTHON)" -m venv --clear .venv
	@rm -f $@
	@$(PY) $(PIP) install -q --no-deps -r requirements.lock
	@$(PY) $(PIP) install -q --no-deps --no-build-isolation -e .
	@touch $@

# With the oldest Python, as what it gets runs on the newer ones too. Keeps the comments on top.
lock: ## renew requirements.lock: the newest versions that pyproject.toml allows
	$(if $(filter 3.11.%,$(FOUND)),,$(error the lock is made with Python 3.11: PYTHON=python3.11 make lock))
	@"$(PYTHON)" -m venv --clear build/lock
	@build/lock/bin/python $(PIP) install -q -U -e '.[dev]'
	@build/lock/bin/python $(PIP) check
	@{ grep '^#' requirements.lock; \
	   build/lock/bin/python $(PIP) freeze --all --exclude-editable --exclude pip; } > build/lock/new
	@mv build/lock/new requirements.lock

clean: ## remove .venv and what tools left behind; runs and results stay
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache
	find qdac tests -name __pycache__ -exec rm -rf {} +
