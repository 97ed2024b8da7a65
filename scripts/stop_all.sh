#!/bin/sh
# Halts every dialogd daemon of this user; `--file F` halts one dialog. The files stay.
set -eu
venv=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)/.venv/bin
PATH=$venv:$PATH
exec dialogd stop "$@"
