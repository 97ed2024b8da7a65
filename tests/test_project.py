"""What a project says to agents reaches them as text, and nothing else does."""

from __future__ import annotations

import os
from pathlib import Path

from dialogd.agent.player import MOST_NOTES, notes


def test_the_notes_of_a_project_come_with_the_names_of_their_files(tmp_path: Path) -> None:
    assert notes(None) == notes(tmp_path) == notes(tmp_path / "missing") == ""
    (tmp_path / "AGENTS.md").write_text("Use tabs.\n@~/secret.md\n")
    (tmp_path / "CLAUDE.md").write_text("\ufeffBe brief.\n", encoding="utf-8")
    (tmp_path / "GEMINI.md").write_text("\n \n")
    assert notes(tmp_path) == "# CLAUDE.md\n\nBe brief.\n\n# AGENTS.md\n\nUse tabs.\n@~/secret.md"


def test_the_same_text_comes_once(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "agents.md").write_text("Use tabs.\n")
    (tmp_path / "AGENTS.md").symlink_to("docs/agents.md")
    (tmp_path / "CLAUDE.md").symlink_to("AGENTS.md")
    (tmp_path / "GEMINI.md").write_text("Use tabs.")
    assert notes(tmp_path) == "# CLAUDE.md and AGENTS.md and GEMINI.md\n\nUse tabs."


def test_links_out_of_the_project_and_things_that_are_no_text_are_left_out(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "secret").write_text("the secret")
    (project / "CLAUDE.md").symlink_to(tmp_path / "secret")
    os.mkfifo(project / "AGENTS.md")
    (project / "GEMINI.md").mkdir()
    assert notes(project) == ""
    (project / "GEMINI.md").rmdir()
    (project / "GEMINI.md").write_bytes(b"a\0b")
    (project / "AGENTS.md").unlink()
    (project / "AGENTS.md").symlink_to("AGENTS.md")
    assert notes(project) == ""
    there = tmp_path / "linked"
    there.symlink_to(project)
    (project / "GEMINI.md").write_bytes(b"caf\xe9")
    assert notes(there) == "# GEMINI.md\n\ncaf\ufffd"


def test_long_notes_are_cut_at_a_line_and_say_so(tmp_path: Path) -> None:
    (tmp_path / "CLAUDE.md").write_text("ä" * 60 + "\n" + "line of notes\n" * 2_000, encoding="utf-8")
    (tmp_path / "AGENTS.md").write_text("other line\n" * 4_000)
    (tmp_path / "GEMINI.md").write_text("one line" * 6_000)
    text = notes(tmp_path)
    assert len(text.encode()) < MOST_NOTES + 300
    assert text.startswith("# CLAUDE.md\n\nä")
    assert "line of notes\n\n# AGENTS.md\n\nother line\n" in text
    assert text.endswith("# GEMINI.md\n\n(the rest is left out: it is too long)")
    assert "other line\n\n(the rest is left out: it is too long)\n\n# GEMINI.md" in text
