"""`dialogd templates`, and how `new` and `run` go from a template to a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dialogd.protocol.grammar import parse
from tests.cli.command import PATIENCE, Commands, until

ROWS = 19  # templates that come with dialogd

TRIO = """---
name: trio
description: Three of them.
agents: 3
max_rounds: 4
license: MIT
---
# Trio

## Overview

Three look at it.

## Agents

### Ann Lee
**Personality:** curious
**Responsibilities:**
- ask
**Backend:** rehearsal:deadlock

### Bob
**Permissions:** critic

### Cy

## Workflow

1. **LOOK**: at it

## Communication Protocol

- **RESULTS**: what was found
"""


def put(dialogd: Commands, name: str, text: str) -> Path:
    """A file in the folder of the command."""
    file = dialogd.folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def test_the_list_says_what_each_template_is_and_where_it_lies(dialogd: Commands) -> None:
    put(dialogd, ".dialogd/templates/trio.md", TRIO)
    put(dialogd, ".dialogd/templates/broken.md", "---\norder: x\n---\n")
    put(dialogd, "skills/research/pair/SKILL.md", "# Not ours\n")
    (dialogd.folder / ".dialogd/templates/binary.md").write_bytes(b"\xff")
    listed, facts = dialogd.all([["templates"], ["templates", "--json"]])
    assert (listed.code, listed.err) == (0, "")
    head, *rows = listed.out.rstrip("\n").split("\n")
    assert head.split() == ["name", "agents", "order", "verdict", "from", "what", "it", "is", "for"]
    assert len(rows) == ROWS + 4
    council = next(row for row in rows if row.startswith("council "))
    assert council.split()[1:5] == ["2+", "parallel", "vote", "package"]
    assert "  From a question to a plan" in council
    own = {row["name"]: row for row in facts.json[:-ROWS]}
    shipped = {row["name"]: row for row in facts.json[-ROWS:]}
    assert own["trio"] == {
        "name": "trio", "from": ".dialogd/templates", "file": ".dialogd/templates/trio.md", "agents": "3",
        "order": "alternate", "verdict": "mutual", "description": "Three of them.", "problem": None,
    }  # fmt: skip
    assert own["broken"]["problem"].startswith(".dialogd/templates/broken.md, line 2: order: 'x' is none of")
    assert "not UTF-8" in own["binary"]["problem"]
    assert own["pair"]["problem"] is None
    assert shipped["pair"]["problem"].startswith("hidden by another pair; name it by its path: -t /")
    assert any("problem: .dialogd/templates/broken.md, line 2" in row for row in rows)


def test_show_says_what_is_in_a_template(dialogd: Commands) -> None:
    put(dialogd, "trio.md", TRIO)
    shown, facts, plain = dialogd.all(
        [["templates", "show", "trio.md"], ["templates", "show", "trio.md", "--json"], ["templates", "show", "pair"]]
    )
    assert (shown.code, shown.err) == (0, "")
    assert shown.out == (
        "trio: Three of them.\n"
        "file     trio.md\n"
        "agents   3; order alternate; verdict mutual\n"
        "limits   rounds 4; one reply 5 minutes\n"
        "agent    Ann Lee: may READ_ALL, POST, CRITIQUE, PROPOSE, VOTE; rehearsal:deadlock; curious\n"
        "         - ask\n"
        "agent    Bob: may READ_ALL, CRITIQUE, VOTE\n"
        "agent    Cy: may READ_ALL, POST, CRITIQUE, PROPOSE, VOTE\n"
        "phase    LOOK (1 round): at it\n"
        "message  [RESULTS]: what was found\n"
        "note     line 6: key 'license' is ignored\n"
    )
    assert list(facts.json) == [
        "position", "overview", "agents", "workflow", "communicationProtocol", "successCriteria", "errorHandling",
    ]  # fmt: skip
    assert facts.json["agents"][0] == {"name": "Ann Lee", "personality": "curious", "responsibilities": ["ask"]}
    assert facts.json["workflow"] == [{"phase": "LOOK", "description": "at it"}]
    assert plain.out.startswith("pair: Two agents discuss")


def test_show_says_by_what_a_template_decides(dialogd: Commands) -> None:
    heads = "verdict: vote\nthreshold: 3/4\nsealed: true", "verdict: judge"
    files = [f"---\n{head}\n---\n\n## Agents\n\n### Ann\n**Weight:** 2\n\n### Judge\n" for head in heads]
    for name, text in zip(("votes.md", "judged.md"), files, strict=True):
        put(dialogd, name, text)
    votes, judged = dialogd.all([["templates", "show", "votes.md"], ["templates", "show", "judged.md"]])
    assert "verdict vote (threshold 75%, quorum 67%)\n" in votes.out
    assert "\nwith     sealed\n" in votes.out
    assert "VOTE; weight 2\n" in votes.out
    assert "verdict judge (Judge)\n" in judged.out


def test_show_names_every_problem(dialogd: Commands) -> None:
    put(dialogd, "bad.md", "---\norder: x\nverdikt: vote\n---\n")
    shown, facts, missing = dialogd.all(
        [["templates", "show", "bad.md"], ["templates", "show", "bad.md", "--json"], ["templates", "show", "nobody"]]
    )
    assert (shown.code, facts.code, missing.code) == (2, 2, 2)
    assert "problem  line 2: order: 'x' is none of" in shown.out
    assert "problem  line 3: unknown key 'verdikt'\n         fix: did you mean `verdict`?\n" in shown.out
    assert facts.err.startswith("error: bad.md, line 2: order: 'x' is none of")
    assert "unknown template 'nobody'" in missing.err


def test_new_takes_a_template_by_name_file_or_folder(dialogd: Commands) -> None:
    put(dialogd, "skills/research/trio/SKILL.md", TRIO)
    for index, where in enumerate(("trio", "skills/research/trio/SKILL.md", "skills/research/trio")):
        done = dialogd("new", "Tabs?", "-t", where, "--file", f"d{index}.md", "--json")
        assert (done.code, done.err) == (0, "")
        header = parse((dialogd.folder / f"d{index}.md").read_bytes()).header
        assert [(agent.id, agent.name) for agent in header.agents] == [("A", "Ann Lee"), ("B", "Bob"), ("C", "Cy")]
        assert (header.title, header.rules.template, header.limits.max_rounds) == ("Trio", "trio", 4)
        assert [agent["backend"] for agent in done.json["agents"]] == ["rehearsal:deadlock", "", ""]


@pytest.mark.slow
def test_ones_own_template_is_taken_before_a_shipped_one_and_said(dialogd: Commands) -> None:
    put(dialogd, "skills/mirror/SKILL.md", "# My mirror\n\n## Agents\n\n### Ann\n\n### Bob\n")
    put(dialogd, "skills/pair/SKILL.md", "# My pair\n")
    words = [
        ["new", "T", "-t", "mirror", "--file", "a.md"],
        ["run", "T", "-t", "mirror", "--file", "b.md", "--agents", "rehearsal,rehearsal", "--max-turns", "2"],
        ["templates", "show", "mirror"],
        ["new", "T", "--file", "c.md"],
    ]
    new, run, shown, plain = dialogd.all(words)
    said = "the template mirror is skills/mirror/SKILL.md; another of that name is left aside: -t /"
    assert f"warning: {said}" in new.err
    assert f"warning: {said}" in run.err
    assert f"note     {said}" in shown.out
    assert "template" not in plain.err
    titles = [parse((dialogd.folder / f"{name}.md").read_bytes()).header.title for name in "abc"]
    assert titles == ["My mirror", "My mirror", "Claude Autonomous Dialog"]


def test_limits_of_the_whole_dialog_stand_in_the_header(dialogd: Commands) -> None:
    words = ["-t", "council", "--agents", "rehearsal,rehearsal,rehearsal"]
    lines = [
        ["new", "T", *words, "--max-rounds", "3", "--max-time", "30m", "--file", "a.md"],
        ["new", "T", *words, "--file", "b.md"],
        ["new", "T", "--file", "c.md"],
        ["new", "T", "--max-time", "soon", "--file", "d.md"],
        ["new", "T", "--max-rounds", "0", "--file", "d.md"],
    ]
    *made, wrong, none = dialogd.all(lines)
    assert [done.code for done in made] == [0, 0, 0]
    texts = [(dialogd.folder / f"{name}.md").read_text(encoding="utf-8") for name in "abc"]
    assert "\n**Max Turns:** 20\n**Max Rounds:** 3\n**Timeout:** 5 minutes\n**Max Time:** 30 minutes\n" in texts[0]
    assert "\n**Max Turns:** 21\n**Max Rounds:** 5\n**Timeout:** 5 minutes\n**Started:**" in texts[1]
    assert "Rounds" not in texts[2]
    assert (wrong.code, none.code) == (2, 2)
    assert "error: --max-time: 'soon' is not a duration" in wrong.err


def test_what_may_keep_it_from_a_decision_is_said_before_it_starts(dialogd: Commands) -> None:
    put(dialogd, "alone.md", "---\nverdict: moderator\nred_team: true\n---\n# T\n")
    done = dialogd("new", "T", "-t", "alone.md")
    assert done.code == 0
    first, second = done.err.rstrip("\n").split("\n")
    assert first == ("warning: no conflict can be resolved: nobody may decide; give one agent MODERATE and DECIDE")
    assert second.startswith("warning: there is no limit on rounds: only that of 20 turns")
    assert "warning" not in done.out


def test_a_template_that_spoils_the_dialog_is_refused(dialogd: Commands) -> None:
    dialogd.begin("Before")
    before = dialogd.file.read_bytes()
    sly = '---\nname: pair\n---\n# T\n\n## Rules\n\n~~~\n## Setup\n\n```toml\nverdict = "vote"\n```\n~~~\n'
    put(dialogd, "sly.md", sly)
    put(dialogd, "wrong.md", "---\norder: x\n---\n# T\n")
    spoilt, wrong = dialogd.all([["new", "T", "-t", name, "--replace"] for name in ("sly.md", "wrong.md")])
    assert (spoilt.code, wrong.code) == (2, 2)
    assert "the template pair makes no dialog: its words read as turns or as rules of their own" in spoilt.err
    assert "wrong.md, line 2" in wrong.err
    assert dialogd.file.read_bytes() == before
    assert not (dialogd.state.archive.exists() and list(dialogd.state.archive.iterdir()))


@pytest.mark.slow
def test_run_goes_from_a_question_to_a_council(dialogd: Commands) -> None:
    words = ["run", "design a queue", "-t", "council", "--agents", "rehearsal,rehearsal", "--max-rounds", "2"]
    with dialogd.background(*words) as process:
        cast = dialogd.state.dialog(dialogd.file) / "cast.json"
        until(lambda: cast.exists() and "nudge" in dialogd.output, "the dialog", lambda: dialogd.output)
        header = dialogd.log.read().header
        saved = json.loads(cast.read_text(encoding="utf-8"))
        process.terminate()
        assert process.wait(PATIENCE) == 130, dialogd.output
    assert [agent.name for agent in header.agents] == ["Engineer", "Advocate"]
    assert (header.rules.order, header.rules.sealed, header.limits.max_rounds) == ("parallel", True, 2)
    assert [seat["title"] for seat in saved["seats"]] == ["Engineer", "Advocate"]
    assert "warning: a vote may end in a tie (A, B), and nobody moderates" in dialogd.output
