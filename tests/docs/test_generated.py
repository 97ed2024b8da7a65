"""What is generated into the documents is what the code says today."""

from __future__ import annotations

import shutil
import subprocess
import sys
from inspect import signature
from pathlib import Path

import dialogd
from tests.docs.manual import DOCS, REPOSITORY, codes, section, table

UPDATE = REPOSITORY / "scripts" / "update_docs.py"


def test_the_documents_are_up_to_date() -> None:
    command = [sys.executable, str(UPDATE), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_document_that_is_behind_is_found_and_mended(tmp_path: Path) -> None:
    for part in ("dialogd", "docs", "scripts", "templates"):
        shutil.copytree(REPOSITORY / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "docs" / "commands.md").write_text("")  # without blocks: reading every command takes seconds
    page = tmp_path / "docs" / "configuration.md"
    right = page.read_text(encoding="utf-8")
    wrong = right.replace("`CLAUDE_PORT` |", "`CLAUDE_DOOR` |")
    page.write_text(wrong, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "scripts" / "update_docs.py")]
    checked = subprocess.run([*command, "--check"], capture_output=True, text=True, check=False)
    assert (checked.returncode, page.read_text(encoding="utf-8")) == (1, wrong)
    assert "docs/configuration.md" in checked.stderr
    subprocess.run(command, check=True)
    assert page.read_text(encoding="utf-8") == right


def test_the_table_of_arguments_is_the_signature() -> None:
    rows = table(section(DOCS / "python.md", "Run a dialog").partition("\n### ")[0])
    named = [name for row in rows for name in codes(row[0])]
    assert sorted(["topic", *named]) == sorted(signature(dialogd.run).parameters)
