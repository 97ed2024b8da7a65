"""A scripted agent of a build, as the `command` backend runs it: what it does follows from its prompt and a script.

    python actor.py SCRIPT.json PORT

The script, by task and iteration: for the lead files to write (null deletes one), `run`, a shell command, or `end`, how
its reply ends; for the moderator `yes`, `no` or a whole reply. What it was asked for is told to who listens at the
port: where it works it may write nothing but its worktree.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCORE = "[SCORE: code quality 20 | test coverage 18 | security 18 | documentation 8 | acceptance criteria 22]"


def read(asked: str, *, is_question: bool = False) -> tuple[str, str, str]:
    """What a prompt asks for (`plan`, `work`, `review`, `question`, `else`), task and iteration, what is decided on."""
    now = asked[max(asked.rfind("# Your turn"), 0) :]
    task = re.search(r"^(\d{3}): ", now, re.MULTILINE)
    attempt = re.search(r"iteration (\d+) of", now)
    ref = re.search(r"You decide on (P\d+)", now)
    step = f"{task[1]}.{attempt[1]}" if task and attempt else ""
    kind = "work" if "Carry out this task" in now else "plan" if "Plan now" in now else "else"
    return "question" if is_question else "review" if ref else kind, step, ref[1] if ref else ""


def said(script: Mapping[str, Any], asked: str, *, is_question: bool = False) -> str:
    """The reply to a prompt that asks for no work."""
    kind, step, ref = read(asked, is_question=is_question)
    if kind == "question":
        forms = re.findall(r"\[DECIDE: P\d+ approve\]", asked)
        return forms[-1] if forms else "[PASS]"
    if kind == "review":
        return _review(script.get(f"review {step}", "yes"), ref)
    if kind == "plan":
        return str(script["plan"])
    if "Name the one improvement" in asked:
        return str(script.get("improvement", "Nothing more.\n\n[PASS]"))
    return str(script.get("summary", "It is built.")) if "Sum up what was built" in asked else "I see."


def main() -> None:
    """Answer one prompt."""
    script, asked = json.loads(Path(sys.argv[1]).read_text()), sys.stdin.read()
    is_question = bool(os.environ.get("DIALOGD_QUESTION"))
    kind, step, _ = read(asked, is_question=is_question)
    with socket.create_connection(("127.0.0.1", int(sys.argv[2]))) as log:
        log.sendall(json.dumps({"kind": kind, "step": step, "prompt": asked}).encode() + b"\n")
        log.recv(1)
    print(_work(script.get(step, {})) if kind == "work" else said(script, asked, is_question=is_question))


def _work(step: dict[str, object]) -> str:
    for name, text in step.items():
        path = Path(name)
        if name == "run":
            done = subprocess.run(["/bin/sh", "-c", str(text)], capture_output=True, text=True, check=False)
            print(f"I ran it: {done.returncode} {done.stdout} {done.stderr}"[:2000].replace("\n", " "))
        elif name == "say":
            print(text)
        elif name == "end":
            continue
        elif text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(text))
    return str(step.get("end", "Done as asked."))


def _review(said: str, ref: str) -> str:
    if said == "yes":
        return f"{SCORE}\n[DECIDE: {ref} approve]"
    if said == "no":
        return f"{SCORE.replace('20', '5', 1)}\n[DECIDE: {ref} reject | not yet]"
    return said.replace("REF", ref)


if __name__ == "__main__":
    main()
