"""`dialogd new`: the file, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path

from dialogd import person
from dialogd.protocol.grammar import parse
from tests.cli.command import Commands

SET = {
    "MAX_COLLABORATION_ROUNDS": "4",
    "ESCALATION_THRESHOLD": "1",
}


def test_a_new_dialog_has_the_rounds_and_thresholds_that_the_environment_names(dialogd: Commands) -> None:
    lines = {
        "a": [],
        "b": ["-t", "council", "--agents", "rehearsal,rehearsal,rehearsal"],
        "c": ["--max-rounds", "7"],
    }
    for name, words in lines.items():
        done = dialogd("new", "T", *words, "--file", f"{name}.md", **SET)
        assert done.code == 0, done.err
    headers = {name: parse((dialogd.folder / f"{name}.md").read_bytes()).header for name in lines}
    assert [headers[name].limits.max_rounds for name in "abc"] == [4, 4, 7]
    for header in headers.values():
        assert header.rules.escalation_threshold == 1
    assert headers["a"].rules.is_plain
    wrong = dialogd("new", "T", "--file", "d.md", ESCALATION_THRESHOLD="high")
    assert wrong.code == 2
    assert "escalation_threshold 'high' (environment ESCALATION_THRESHOLD) must be" in wrong.err


def test_a_new_dialog_and_the_lines_that_set_it_going(dialogd: Commands) -> None:
    (dialogd.folder / "why is this.md").write_text("data\n", encoding="utf-8")
    done = dialogd(
        "new", "Tabs or spaces?", "--question-file", "-", "--agent", "X=rehearsal:deadlock", "--agent", "B=rehearsal@.",
        "--first", "b", "--context", "why is this.md", "--max-turns", "6", "--timeout", "90s", given="Which\nindent?\n",
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    file, where = str(dialogd.file), f"--file {dialogd.file}"
    assert done.out == (
        f"{file}\n\n"
        f"start     dialogd start X --port 3001 --backend rehearsal:deadlock {where}\n"
        f"          dialogd start B --backend rehearsal --project {dialogd.folder} {where}\n"
        f"set going curl -X POST http://localhost:3002/notify\n"
        f"watch     tail -f {file}\n"
        f"stop      dialogd stop {where}\n"
    )
    dialog = parse(dialogd.file.read_bytes())
    assert dialog.state.owing == ("B",)
    assert (dialog.header.limits.max_turns, dialog.header.limits.timeout) == (6, 90.0)
    assert dialog.entries[0].body.startswith("**Question:**\nWhich\nindent?\n")
    assert "why is this.md (5 bytes):\n\n```text\ndata\n```" in dialog.entries[0].body
    assert dialogd.file.stat().st_mode & 0o777 == 0o600


def test_an_open_dialog_is_never_overwritten_and_an_ended_one_is_archived(dialogd: Commands) -> None:
    assert dialogd("new", "First").code == 0
    before = dialogd.file.read_bytes()
    refused = dialogd("new", "Second")
    assert (refused.code, refused.out) == (1, "")
    for way_out in ("dialogd stop", "--replace", "--file"):
        assert way_out in refused.err
    assert dialogd.file.read_bytes() == before
    replaced = dialogd("new", "Second", "--replace", "--json").json
    assert Path(replaced["archived"]).read_bytes() == before
    person.say(dialogd.log, "Consider tabs")
    person.stop(dialogd.log)
    ended = dialogd.file.read_bytes()
    third = dialogd("new", "Third", "--json", "--go")
    assert Path(third.json["archived"]).read_bytes() == ended
    assert (third.json["notified"], third.json["topic"], third.code) == (False, "Third", 0)
    assert re.fullmatch(r"[0-9a-f]{6}", third.json["dialog"])
    assert third.json["dialog"] == parse(dialogd.file.read_bytes()).id != replaced["dialog"]
    verified = dialogd("verify")
    assert (verified.code, verified.out.startswith("Sound. 1 entry. Nothing was decided.\n")) == (0, True)


def test_what_makes_no_sense_is_refused_before_anything_is_written(dialogd: Commands) -> None:
    (dialogd.folder / "binary").write_bytes(b"\0\1")
    (dialogd.folder / "watched.md").write_text("## Agents\n\n### Ann\n\n### Obs\n\n**Permissions:** observer\n")
    wrong = {
        "unknown backend 'chatgpt'": ["--agents", "chatgpt,rehearsal"],
        "both --agents and --agent": ["--agents", "rehearsal", "--agent", "A=rehearsal"],
        "'A' is no agent": ["--agent", "A"],
        "given to two agents": ["--agent", "A=rehearsal", "--agent", "a=rehearsal"],
        "is not a folder": ["--agent", "A=rehearsal@/nowhere"],
        "--first 'Z' is none of the agents": ["--first", "Z"],
        "--first 'Judge': C gets no turn then, for it judges, and comes last": ["-t", "debate", "--first", "Judge"],
        "--first 'A,Obs': B gets no turn then, for it only reads": ["-t", "watched.md", "--first", "A,Obs"],
        "--timeout": ["--timeout", "soon"],
        "missing.md does not exist": ["--context", "missing.md"],
        "binary is not text": ["--context", "binary"],
        "both --question and": ["-q", "a", "--question-file", "b"],
        "unknown template": ["--template", "nonsense"],
        "does not exist": ["--file", "no/such/folder/d.md"],
    }
    for expected, done in zip(wrong, dialogd.all([["new", "T", *words] for words in wrong.values()]), strict=True):
        assert (done.code, done.out) == (2, ""), expected
        assert expected in done.err
        assert re.search(r"^  fix: \S", done.err, re.MULTILINE), done.err
    assert not dialogd.file.exists()


def test_agents_of_one_family_are_named_before_the_start(dialogd: Commands) -> None:
    same = {
        "anthropic,anthropic,anthropic": ["A, B and C are of one family (claude)"],
        "claude,grok,claude-code": ["A and C are of one family (claude)"],
        "codex,gpt:gpt-6.1-sol,grok": ["A and B are of one family (gpt)"],
        "rehearsal,rehearsal,command:cat": [],
    }
    lines = [["new", "T", "-t", "council", "--agents", cast, "--file", f"{n}.md"] for n, cast in enumerate(same)]
    for (cast, expected), done in zip(same.items(), dialogd.all(lines), strict=True):
        assert done.code == 0, done.err
        assert re.findall(r"(?m)^warning: (.* are of one family \(\w+\))", done.err) == expected, cast
    auto = dialogd("new", "T", "-t", "council", "--agents", "grok,auto,auto", "--file", "auto.md", XAI_API_KEY="no")
    assert (auto.code, "of one family" in auto.err) == (0, False)
    alone = dialogd("new", "T", "-t", "council", "--agents", "grok,auto,auto", "--file", "alone.md")
    assert (
        alone.code,
        "nobody is there for B = Advocate, C = Sceptic, and scripted lines take no seat" in alone.err,
    ) == (2, True)
    pair = dialogd("new", "T", "--agents", "grok,grok")
    assert "warning: A and B are of one family (grok): they tend to agree" in pair.err


def test_a_file_that_is_no_dialog_is_left_alone(dialogd: Commands) -> None:
    folder = dialogd.folder
    (folder / "notes.md").write_text("milk\n", encoding="utf-8")
    (folder / "folder.md").mkdir()
    (folder / "link.md").symlink_to(folder / "notes.md")
    (folder / "empty.md").touch(mode=0o600)
    names = ["notes.md", "folder.md", "link.md", "empty.md"]
    done = dialogd.all([["new", "T", "--replace", "--file", name] for name in names])
    assert [one.code for one in done] == [1, 1, 1, 0]
    assert "is no dialog" in done[0].err
    assert "symlink" in done[2].err
    assert (folder / "notes.md").read_text(encoding="utf-8") == "milk\n"


def test_no_secret_of_topic_question_or_context_stands_in_the_file(dialogd: Commands) -> None:
    own, token = "correct-horse-battery-staple", "ghp_" + "Zq7Lm2Rt9Vx4Bn6Kc8Wd1Fg3Hj5Ps0YaTe4X"
    for number, secret in enumerate((own, token)):
        (dialogd.folder / "long.txt").write_text(f"{'x' * 49_980} {secret} y", encoding="utf-8")
        (dialogd.folder / "short.txt").write_text(f"it is {secret}\n", encoding="utf-8")
        words = ["--question", f"Why {secret}?", "--context", "long.txt", "--context", "short.txt"]
        done = dialogd("new", f"{'t' * 280} {secret}", *words, "--file", f"{number}.md", MY_TOKEN=own)
        assert done.code == 0, done.err
        assert "short.txt" not in done.err
        text = (dialogd.folder / f"{number}.md").read_text(encoding="utf-8")
        assert [part for part in (secret[:12], secret[9:21], secret[-12:]) if part in text] == []
