"""The builds that the README and docs/build.md show: each is played as it stands there, by scripted agents."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.manual import DOCS, README, Block, blocks, put_dialogd
from tests.tasks.ordinary import NODE, PYTHON, Person, cloned, offline
from tests.tasks.site import ACTOR, BWRAP, Listener

PROJECTS = {"python": PYTHON, "node": NODE}
SHOWN = [(document, block) for document in (README, DOCS / "build.md") for block in blocks(document, "text")
         if block.kind in PROJECTS]  # fmt: skip


def test_the_part_on_builds_begins_with_both_projects() -> None:
    assert [(document.name, block.kind) for document, block in SHOWN][:4] == [
        (name, kind) for name in ("README.md", "build.md") for kind in ("python", "node")
    ]


@pytest.mark.slow
@pytest.mark.skipif(bool(BWRAP), reason=f"the gate needs a sandbox: {BWRAP}")
@pytest.mark.parametrize(
    ("document", "block"), SHOWN, ids=[f"{document.stem} line {block.line}" for document, block in SHOWN]
)
def test_the_build_goes_as_it_is_shown(tmp_path: Path, document: Path, block: Block) -> None:
    project = offline(PROJECTS[block.kind])
    repo = cloned(project, tmp_path)
    put_dialogd(tmp_path)
    script = {
        "plan": "[TASK_PROPOSED: refuse ages below zero | -1 raises an error | none | 1 h]",
        "001.1": {project.changes: project.right},
    }
    (tmp_path / "script.json").write_text(json.dumps(script))
    listener = Listener(tmp_path / "calls.jsonl")
    command = [sys.executable, str(ACTOR), str(tmp_path / "script.json"), str(listener.server_address[1])]
    own = {
        **{name: text for name, text in os.environ.items() if not name.startswith("DIALOGD_")}, **project.variables,
        "HOME": str(tmp_path / "home"), "PATH": f"{tmp_path}:{os.environ['PATH']}", "TERM": "xterm",
        "DIALOGD_FILE": str(tmp_path / "dialog.md"), "DIALOGD_PORT": "0", "DIALOGD_COMMAND": shlex.join(command),
    }  # fmt: skip
    person = Person(tmp_path, own, {"/home/you/ages": str(repo)})
    try:
        person.types(block.text)
    finally:
        person.close()
        listener.shutdown()
        listener.server_close()
    assert (repo / project.changes).read_text() == project.right
    log = subprocess.run(["git", "log", "--format=%an"], cwd=repo, capture_output=True, text=True, check=True).stdout
    assert len(log.splitlines()) == 2
