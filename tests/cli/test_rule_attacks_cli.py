"""Hostile dialogs and hostile templates, as a cloned repository may hold them, seen through the commands."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.command import Commands
from tests.support.pair import PATIENCE

ESCAPE = "\x1b[2J\x1b]0;owned\x07\u202e"
HOSTILE = f"""# {ESCAPE}title

**Topic:** {ESCAPE}topic <script>alert(1)</script>
**Agents:** A = Al{ESCAPE}ice <img src=x> @ http://localhost:3001, B = `Bob` | x @ http://localhost:3002

## Setup

```toml
verdict = "vote"
guidelines = "\\u001b[2J"
order = "\\u001b[2J"
[roles.A]
role = "\\u001b[2J"
[[phases]]
name = "\\u001b[2J"
```

---

## Turn 1 — User

{ESCAPE}

TURN: A

## Turn 2 — A

{ESCAPE} <script>x</script>

[PROPOSAL: {ESCAPE} <script>a</script> | approved | vote]

TURN: B

## Turn 3 — B

[VOTE: P1 approve | {ESCAPE} <b>]
[OBJECTION: {ESCAPE} <script>]
[QUESTION_FOR_USER: {ESCAPE} <iframe>]
[DECISION P1: approved | vote | 2 for (A, B) | {ESCAPE} <script>]

TURN: USER
"""


@pytest.fixture
def hostile(dialogd: Commands) -> Commands:
    """The command, beside a dialog that somebody else wrote to harm whoever looks at it."""
    dialogd.file.write_text(HOSTILE, encoding="utf-8")
    return dialogd


def test_no_command_lets_a_dialog_steer_the_terminal(hostile: Commands) -> None:
    words = [
        ["status"],
        ["status", "--board"],
        ["verify"],
        ["status", "--cost"],
        ["status", "--json"],
        ["status", "--board", "--json"],
        ["plan"],
    ]
    for done in hostile.all(words):
        assert not set(done.out + done.err) & set("\x1b\x07\x9b\u202e")


def test_a_plan_of_a_hostile_dialog_holds_no_tag_and_no_control_character(hostile: Commands) -> None:
    assert hostile("plan", "--out", str(hostile.folder / "out")).code == 0
    (page,) = (hostile.folder / "out").glob("*.md")
    text = page.read_text(encoding="utf-8")
    assert not [tag for tag in ("<script", "<img", "<iframe", "<b>") if tag in text.replace("\\<", "")]
    assert not set(text) & set("\x1b\x07\x9b\u202e")


def test_a_plan_is_never_written_through_a_symlink(hostile: Commands, tmp_path: Path) -> None:
    hostile("plan", "--out", str(tmp_path / "first"))
    victim = tmp_path / "victim"
    victim.write_text("mine")
    out = tmp_path / "out"
    out.mkdir()
    for path in (tmp_path / "first").iterdir():
        (out / path.name).symlink_to(victim)
    assert hostile("plan", "--out", str(out)).code == 0
    assert victim.read_text() == "mine"


def listed(dialogd: Commands) -> str:
    """What `dialogd templates` lists; fails when it does not end, or ends in an error."""
    words = dialogd.words(["templates"])
    try:
        done = subprocess.run(
            words, cwd=dialogd.folder, env=dialogd.environment, capture_output=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.fail("`dialogd templates` is still reading after a minute")
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.slow
def test_a_template_that_is_made_to_be_slow_does_not_hang_the_list(dialogd: Commands) -> None:
    folder = dialogd.folder / ".dialogd" / "templates"
    folder.mkdir(parents=True)
    (folder / "slow.md").write_text(f"---\nname: slow\ndescription: {{a{' ' * 4900}b}}\n---\n# Slow\n")
    assert "slow" in listed(dialogd)


@pytest.mark.slow
def test_a_template_that_is_a_loop_a_device_or_no_text_breaks_nothing_else(dialogd: Commands) -> None:
    folder = dialogd.folder / ".dialogd" / "templates"
    folder.mkdir(parents=True)
    (folder / "loop.md").symlink_to(folder / "loop.md")
    (folder / "zeros.md").symlink_to("/dev/zero")
    (folder / "binary.md").write_bytes(bytes(range(256)))
    out = listed(dialogd)
    assert "pair" in out
    assert out.count("problem:") == 3
