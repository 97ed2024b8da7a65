#!/bin/sh
# Makes .venv with dialogd (editable) and the development tools: by uv where it is and works, else by venv and pip.
# PYTHON=/path/to/python chooses the interpreter.
set -eu
cd "$(dirname "$0")/.."

fail() { printf 'setup: %s\n' "$@" >&2; exit 1; }

# Starting it is the only test: a version manager's shim may be on PATH and lead nowhere.
recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

python=
if [ -n "${PYTHON:-}" ]; then
    recent "$PYTHON" || fail "PYTHON=$PYTHON is not Python 3.11 or newer."
    python=$PYTHON
else
    for candidate in python3.14 python3.13 python3.12 python3.11 python3; do
        if recent "$candidate"; then python=$candidate; break; fi
    done
fi

with_uv() {
    command -v uv >/dev/null 2>&1 || return 1
    recent .venv/bin/python || uv venv --quiet --clear --python "${python:->=3.11}" .venv || return 1
    uv pip install --quiet --python .venv/bin/python --editable . --group dev
}

with_pip() {
    [ -n "$python" ] || fail "no Python 3.11 or newer on PATH." \
        "Install one (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python), or set PYTHON=/path/to/python."
    if ! recent .venv/bin/python; then
        "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
            fail "$python has no venv module or no ensurepip." "Debian, Ubuntu: apt install python3-venv, then again."
        "$python" -m venv --clear .venv
    fi
    .venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip >/dev/null
    # --group came with pip 25.1
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
}

echo "setup: preparing .venv (half a minute the first time) …"
if ! with_uv; then
    command -v uv >/dev/null 2>&1 && echo "setup: uv did not manage it; trying pip." >&2
    with_pip
fi
date > .venv/.stamp
echo "setup: ready. .venv/bin/dialogd is this checkout's."
