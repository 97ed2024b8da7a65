#!/bin/sh
# Starts two agents on a topic, in the background: two daemons, A on 3001 and B on 3002, one file.
# What follows the topic goes to both daemons: scripts/start_pair.sh "Where should sessions live?" --pace 0
set -eu
if [ $# -eq 0 ]; then
    echo 'usage: start_pair.sh TOPIC [OPTIONS OF dialogd start …]' >&2
    exit 2
fi
venv=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)/.venv/bin
PATH=$venv:$PATH
command -v dialogd >/dev/null || { echo 'start_pair: no dialogd here; run `make setup` first' >&2; exit 1; }
topic=$1
shift
file=${DIALOGD_FILE:-/tmp/claude-dialog.md}

# The dialog first: where one is still open, `new` refuses, and nothing has been started.
dialogd new "$topic" --file "$file"
dialogd start A --port 3001 --file "$file" --detach "$@"
dialogd start B --port 3002 --file "$file" --detach "$@" || { dialogd stop --file "$file"; exit 1; }
curl -fsS -o /dev/null -X POST http://localhost:3001/notify || {
    echo 'start_pair: the daemons run, but could not be notified; see `dialogd status`' >&2
    exit 1
}

cat <<TEXT
watch it   tail -f '$file'
nudge it   curl -X POST http://localhost:3001/notify
see who    curl http://localhost:3001/health
step in    dialogd say "What about cost?" --file '$file'
stop it    dialogd stop --file '$file'
TEXT
