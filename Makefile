# Everything runs in .venv, which the first target that needs it makes. Paths are relative: a clone may lie anywhere.

TOPIC = Where should user sessions live?
ARGS =
export TOPIC
# Without compiled files every worker rewrites every test, and every daemon compiles the package anew.
unexport PYTHONDONTWRITEBYTECODE

python := .venv/bin/python
# Schemathesis' plugin costs every worker half a second; the one test that needs it starts its program.
pytest := $(python) -m pytest -p no:schemathesis
slow := slow or ptrace or root
# Whole folders have lanes of their own: they are not even read where another lane runs.
apart := --ignore=tests/docs --ignore=tests/page --ignore=tests/clis
CLIS =
SEEDS = 5
FIRST = 1
# Twice the processors: many tests wait for something.
WORKERS := $(shell python3 -c 'import os; print(min(2 * (os.cpu_count() or 1), 8))' 2>/dev/null || echo 4)

.DEFAULT_GOAL := help
.PHONY: help setup demo run test test-slow chaos bugs test-clis test-page screenshots check static format lint types imports docs bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' Makefile

setup: .venv/.stamp ## make .venv with everything (uv where it is, else python3 -m venv and pip)

.venv/.stamp: pyproject.toml scripts/setup.sh
	@sh scripts/setup.sh

demo: .venv/.stamp ## a whole dialog of two scripted agents, to be followed on its page (ARGS=--no-open: no browser)
	@dialog=$$(mktemp -d)/dialog.md; agent=rehearsal how=; \
	if [ -t 1 ]; then agent=rehearsal:slow=8 how="--open --linger 1h"; fi; \
	trap : INT; \
	.venv/bin/dialogd run "Where should user sessions live?" --agents $$agent,$$agent --file "$$dialog" $$how $(ARGS); code=$$?; \
	echo; echo "next   .venv/bin/dialogd open               a page to start dialogs of your own from"; \
	echo "       .venv/bin/dialogd build --rehearse   a plan that is carried out: code, tests, review; no model, no key"; \
	echo "       .venv/bin/dialogd doctor             which agents can be used here, and who pays"; exit $$code

run: .venv/.stamp ## a dialog of your own: make run TOPIC="…" ARGS="--agents claude,grok"
	@.venv/bin/dialogd run "$$TOPIC" $(ARGS)

test: .venv/.stamp ## the fast tests (about two minutes)
	$(pytest) -n $(WORKERS) --dist worksteal -m "not ($(slow) or clis or browser)" $(apart) $(ARGS)

test-slow: .venv/.stamp ## the slow lanes: many processes, strace, root, properties in full; what cannot run here says why
	$(pytest) --hypothesis-profile=full -n $(WORKERS) --dist worksteal -m "($(slow) or hypothesis) and not (clis or browser)" $(apart) $(ARGS)

chaos: .venv/.stamp ## daemons killed, frozen, misled, from many seeds (SEEDS=20 FIRST=1), a minute each
	$(python) -m tests.faults.chaos --seeds $(SEEDS) --first $(FIRST) $(ARGS)

bugs: .venv/.stamp ## plant the bugs of tests/bugs.toml in a copy, see the tests named there catch each (ARGS="--only fence")
	$(python) scripts/plant_bugs.py $(ARGS)

test-clis: .venv/.stamp ## real coding agents from npm against a stand-in (CLIS="gemini opencode" for all four)
	@sh scripts/install_clis.sh $(CLIS)
	@bin="$(CURDIR)/.clis/node_modules/.bin" && \
	PATH="$$bin:$$PATH" DIALOGD_CLIS_BIN="$$bin" $(pytest) -m clis --ignore=tests/docs $(ARGS)

test-page: .venv/.stamp ## the page in a real browser (Chromium of your distribution); without one it says so
	@sh scripts/install_axe.sh
	$(pytest) -n 2 --dist worksteal -m browser --ignore=tests/docs $(ARGS)

screenshots: .venv/.stamp ## the pictures of the documents, taken anew
	$(python) scripts/screenshots.py

check: static test test-slow test-clis test-page docs ## the whole law: everything above and below that can fail

static: lint types imports ## lint, types and imports

format: .venv/.stamp ## put the code into shape
	$(python) -m ruff format .
	$(python) -m ruff check --fix .

lint: .venv/.stamp ## ruff: shape and rules
	$(python) -m ruff format --check .
	$(python) -m ruff check .

types: .venv/.stamp ## mypy --strict
	$(python) -m mypy

imports: .venv/.stamp ## who may import whom
	.venv/bin/lint-imports --no-cache

docs: .venv/.stamp ## links and commands of the documents
	$(pytest) -n $(WORKERS) --dist worksteal tests/docs $(ARGS)

bench: .venv/.stamp ## overhead per turn, beside the machine's own limit
	$(python) scripts/bench_turns.py $(ARGS)

clean: ## remove .venv and everything else that was made here
	rm -rf .venv .clis .axe dist build .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
