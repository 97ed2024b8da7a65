"""The documents say what is so: links lead somewhere, make targets exist, what is generated is what the code says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest

import dialogd
from tests.docs.manual import DOCS, DOCUMENTS, REPOSITORY, codes, section, table

LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(REPOSITORY).as_posix())


def anchors(path: Path) -> set[str]:
    """The names by which a code host links to the headings of a document."""
    headings = re.findall(r"^#{1,6} +(.+?) *$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_document
def test_links_inside_the_project_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")  # brackets in fences and inline code are marks and examples
    text = re.sub(r"^(`{3,}|~{3,}).*?^\1[`~]*$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    broken = []
    for link in LINK.findall(text):
        name, _, anchor = link.partition("#")
        target = (document.parent / name) if name else document
        if not re.match(r"[a-z]+:", link) and not (
            target.exists() and (not anchor or target.suffix != ".md" or anchor in anchors(target))
        ):
            broken.append(link)
    assert broken == []


@each_document
def test_make_targets_that_are_named_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = re.findall(r"(?:^|`)[ \t]*make ([a-z-]+)", document.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(named) <= targets


def update(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the script that generates into the documents of a checkout."""
    command = [sys.executable, str(root / "scripts" / "update_docs.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_documents_are_up_to_date() -> None:
    done = update(REPOSITORY, "--check")
    assert done.returncode == 0, done.stderr


def test_a_document_that_is_behind_is_found_and_mended(tmp_path: Path) -> None:
    for part in ("dialogd", "docs", "scripts", "templates"):
        shutil.copytree(REPOSITORY / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "docs" / "commands.md").write_text("")  # without blocks: reading every command takes seconds
    page = tmp_path / "docs" / "configuration.md"
    right = page.read_text(encoding="utf-8")
    wrong = right.replace("`CLAUDE_PORT` |", "`CLAUDE_DOOR` |")
    page.write_text(wrong, encoding="utf-8")
    checked = update(tmp_path, "--check")
    assert (checked.returncode, page.read_text(encoding="utf-8")) == (1, wrong)
    assert "docs/configuration.md" in checked.stderr
    assert update(tmp_path).returncode == 0
    assert page.read_text(encoding="utf-8") == right


def test_the_table_of_arguments_is_the_signature() -> None:
    rows = table(section(DOCS / "python.md", "Run a dialog").partition("\n### ")[0])
    named = [name for row in rows for name in codes(row[0])]
    assert sorted(["topic", *named]) == sorted(signature(dialogd.run).parameters)
