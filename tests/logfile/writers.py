"""Processes that append to one dialog file at the same time: `python -m tests.logfile.writers HOW FILE COUNT EACH`.

HOW is one of
    ours      through LogFile
    one-debt  through LogFile; all answer the same debt
    holding   the same; says `held` under the lock, and waits there for a byte on stdin
    long      through LogFile, with an attachment
    archive   no append: copy the file to the folder `archive` beside it
Each prints what it was told is in the file, one word per line.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dialogd.protocol.model import Addition, Draft
from dialogd.protocol.state import Dialog
from dialogd.store.disk import archive
from dialogd.store.logfile import LogFile
from tests.logfile.files import log_of, turn
from tests.support.pair import PATIENCE


def ours(log: LogFile, word: str) -> bool:
    return log.append(turn(word), log.journals.of(word.partition("-")[0])) is not None


def one_debt(log: LogFile, word: str) -> bool:
    make = turn(word)
    return log.append(lambda now: make(now) if now.state.debt("A") else None, log.journals.of(word[:2])) is not None


def holding(log: LogFile, word: str) -> bool:
    """Answer turn 1, slowly: stand still while the lock is held."""
    make = turn(word)

    def wait(now: Dialog) -> Addition | None:
        os.write(1, b"held\n")
        os.read(0, 1)
        return make(now) if now.state.debt("A") else None

    return log.append(wait, log.journals.of(word[:2])) is not None


def long(log: LogFile, word: str) -> bool:
    """Append an entry whose rest stands in an attachment."""
    addition = Addition(Draft("A", "Claude A", 2, f"I say {word}", turn=("B",)), "rest.md", "and more")
    return log.append(lambda _: addition, log.journals.of("A")) is not None


def to_archive(log: LogFile, word: str) -> bool:
    return archive(log.read(), log.path, log.path.parent / "archive").exists()


HOW = {
    "ours": ours,
    "one-debt": one_debt,
    "holding": holding,
    "long": long,
    "archive": to_archive,
}


def main(how: str, file: str, count: str, each: str) -> None:
    """Fork the writers; all wait for the last one to be there."""
    ready, go = os.pipe()
    children = []
    for number in range(int(count)):
        child = os.fork()
        if child == 0:
            os.close(go)
            os.read(ready, 1)
            log = log_of(Path(file))
            log.lock.wait = PATIENCE  # on a busy machine the others may come first for long
            for k in range(int(each)):
                word = f"w{number}-{k}"
                if HOW[how](log, word):
                    os.write(1, f"{word}\n".encode())
            os._exit(0)
        children.append(child)
    os.close(go)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(max(codes, key=abs))


if __name__ == "__main__":
    main(*sys.argv[1:])
