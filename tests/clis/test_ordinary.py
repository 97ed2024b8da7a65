"""Two ordinary projects, each from `dialogd build` in a fresh clone to the commit on main, by real coding agents."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clis.conftest import PROGRAMS
from tests.clis.rig import KEY, PATH, SERVICES
from tests.docs.manual import put_dialogd
from tests.support.standin import StandIn
from tests.tasks.ordinary import NODE, PYTHON, Mind, Person, Project, cloned, offline, transcript
from tests.tasks.site import BWRAP

MOST_CALLS = 10  # a plan, five of the lead's, a review and its question, no improvement, a summary


@pytest.mark.skipif(bool(BWRAP), reason=f"the gate needs a sandbox: {BWRAP}")
@pytest.mark.parametrize("is_wrong", [False, True], ids=["", "wrong gate"])
@pytest.mark.parametrize("project", [PYTHON, NODE], ids=["python", "node"])
@pytest.mark.parametrize(("moderator", "lead"), [("codex", "claude-code"), ("claude-code", "codex")])
def test_an_ordinary_project_gets_its_commit(
    tmp_path: Path, moderator: str, lead: str, project: Project, is_wrong: bool
) -> None:
    """The lead sees its test red and then green by the gate's own command, and hands in once."""
    for name in (moderator, lead):
        if shutil.which(PROGRAMS[name], path=PATH) is None:
            pytest.skip(f"{PROGRAMS[name]} is not installed: `make test-clis` brings it")
    project = offline(project)
    mind, repo = Mind(project), cloned(project, tmp_path)
    put_dialogd(tmp_path)
    with StandIn(mind) as server:
        own = {key: KEY for key, _, _ in SERVICES.values()}
        own |= {address: server.url + base for _, address, base in SERVICES.values()}
        own |= {"HOME": str(tmp_path / "home"), "PATH": f"{tmp_path}:{PATH}", "TERM": "xterm", "DIALOGD_PORT": "0"}
        own |= {"DIALOGD_FILE": str(tmp_path / "dialog.md"), **project.variables}
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("DIALOGD_", "CLAUDE_"))}
        person = Person(repo, {**kept, **own})
        try:
            person.types(transcript(project, f"{moderator},{lead}", is_wrong=is_wrong))
        finally:
            person.close()
            subprocess.run([sys.executable, "-m", "dialogd", "stop"], env={**kept, **own}, cwd=repo, check=False)
    words = ["git", "log", "--format=%an: %s", "origin/main..main"]
    assert subprocess.run(words, cwd=repo, capture_output=True, text=True, check=True).stdout == (
        "Ann: refuse ages below zero\n"
    )
    assert subprocess.run(["git", "status", "--porcelain"], cwd=repo, capture_output=True, check=True).stdout == b""
    assert (repo / project.changes).read_text() == project.right
    assert project.red in mind.saw[1]
    assert project.red not in mind.saw[3]
    assert mind.calls <= MOST_CALLS
