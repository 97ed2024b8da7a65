"""Builds of real coding agents in worktrees: the stand-in orders real edits, and some that must be refused."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dialogd.protocol.build import APPROVED
from dialogd.protocol.strict import faults
from tests.build import actor
from tests.build.site import PLAN, PRINT, READ, Site, git
from tests.clis.rig import KEY, PATH
from tests.support.standin import Say, Seen, StandIn, Use

ASKS = "and with no other word"  # stands in every closing question
SCRIPT: dict[str, Any] = {"plan": PLAN, "review 001.1": "no"}


def use(seen: Seen, path: Path, text: str) -> Use:
    """The call by which this program writes a file."""
    if seen.form == "messages":
        return Use("Write", {"file_path": str(path), "content": text})
    return Use("exec_command", {"cmd": f"cat >'{path}' <<'END'\n{text}END"})


class Mind:
    """What both agents answer: the lead writes the files of its task, and tries to write where it must not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.given: Counter[str] = Counter()
        self.results: list[tuple[bool, str]] = []

    def steps(self, step: str) -> list[tuple[Path, str]]:
        """What the lead is to write at this step."""
        if step == "001.2":
            return [(Path("ages.py"), READ["ages.py"].replace("(age)", "('too young')"))]
        if step != "001.1":
            return [(Path(name), text) for name, text in PRINT.items()]
        places = ("repo/README.md", "repo/.git/hooks/post-commit", "repo/.git/config", "talk/dialog.md", "state/new")
        bad = [self.folder / place for place in places]
        return [*((Path(name), text) for name, text in READ.items()), *((path, "HOSTILE\n") for path in bad)]

    def __call__(self, seen: Seen) -> Use | Say:
        asked = seen.prompt
        is_question = ASKS in asked[max(asked.rfind("# Your turn"), 0) :]
        kind, step, _ = actor.read(asked, is_question=is_question)
        if kind != "work":
            return Say(actor.said(SCRIPT, asked, is_question=is_question))
        self.results += seen.tool_results
        number, self.given[step] = self.given[step], self.given[step] + 1
        todo = self.steps(step)
        if number >= len(todo):
            return Say("Done as asked.")
        path, text = todo[number]
        title = "read-ages" if step.startswith("001") else "print-ages"
        base = self.folder / "repo.dialogd" / f"task-{step[:3]}-{title}"
        if seen.form == "messages" and step == "001.2":
            return Use("Write", {"file_path": str(base / "more.py"), "content": "MORE = 1\n"})
        return use(seen, base / path, text)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("moderator", "lead"), [("codex", "claude-code"), ("claude-code", "codex")])
def test_coding_agents_carry_a_plan_out(tmp_path: Path, moderator: str, lead: str) -> None:
    """Two tasks, one of which needs two iterations; nothing is written but in their worktrees."""
    for program in ("claude", "codex"):
        if shutil.which(program, path=PATH) is None:
            pytest.skip(f"{program} is not installed: `make test-clis` brings it")
    mind = Mind(tmp_path)
    (tmp_path / "home").mkdir()
    with StandIn(mind) as server:
        environment = {
            **dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY"), KEY),
            "ANTHROPIC_BASE_URL": server.url,
            "OPENAI_BASE_URL": f"{server.url}/v1",
            "HOME": str(tmp_path / "home"),
            "PATH": PATH,
        }
        with Site(tmp_path, SCRIPT, environment=environment, backend={"M": moderator, "L": lead}) as site:
            site.open()
            site.confirm()
            site.until_end()
            first, second = site.tasks
            assert [first.state, second.state] == [APPROVED, APPROVED], site.text
            assert (first.iteration, second.iteration) == (2, 1)
            assert second.base == first.commit
            assert git(site.repo, "show", f"{second.commit}:show.py") == PRINT["show.py"].strip()
            assert git(site.repo, "status", "--porcelain") == ""
            assert faults(site.file.read_bytes()) == ()
    assert len([text for is_error, text in mind.results if is_error]) >= (5 if lead == "claude-code" else 0)
    for path in tmp_path.rglob("*"):
        if path.is_file() and "repo" in path.parts:
            assert b"HOSTILE" not in path.read_bytes(), path
    assert not (tmp_path / "state" / "new").exists()
