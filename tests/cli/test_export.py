"""`dialogd export`: one document, where it is wanted, never over something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from dialogd.store.archive import archive
from dialogd.views.documents import export
from tests.cli.command import Commands
from tests.export.dialogs import peaceful


@pytest.fixture
def ended(dialogd: Commands) -> Commands:
    """A dialog that has ended, with an attachment beside it."""
    dialogd.file.write_bytes(peaceful().paper.data)
    folder = dialogd.file.with_name("dialog.md.d")
    folder.mkdir()
    (folder / "0123456789abcdef.md").write_text("the whole text", encoding="utf-8")
    return dialogd


NAME = "where-should-user-sessions-live-3f9a1c"


def test_a_document_is_named_by_topic_and_dialog_and_stays(ended: Commands) -> None:
    made, again = ended("export", "--to", "html"), ended("export", "--to", "html")
    assert made.out == f"{ended.folder / NAME}.html\n"
    page = (ended.folder / f"{NAME}.html").read_text(encoding="utf-8")
    assert "the whole text" in page
    assert again.code == 2
    assert "--force" in again.err
    assert ended("export", "--to", "html", "--force").code == 0


def test_standard_output_json_facts_and_a_place_of_ones_own(ended: Commands) -> None:
    (ended.folder / "out").mkdir()
    printed, named, facts, place = ended.all(
        [
            ["export", "dialog.md", "--to", "md", "--out", "-"],
            ["export", "--to", "md", "--out", "mine.md"],
            ["export", "--to", "json", "--json", "--out", "facts.json"],
            ["export", "--to", "md", "--out", "out"],
        ]
    )
    text = export(peaceful().dialog, "md", attachments={"0123456789abcdef.md": "the whole text"}).decode()
    assert printed.out == text
    assert named.out == f"{ended.folder / 'mine.md'}\n"
    assert (ended.folder / "mine.md").read_text(encoding="utf-8") == text
    size = (ended.folder / "facts.json").stat().st_size
    assert facts.json == {"file": str(ended.folder / "facts.json"), "to": "json", "bytes": size}
    assert place.out == f"{ended.folder / 'out' / NAME}.md\n"


def test_the_dialog_itself_is_never_written_over(ended: Commands) -> None:
    before = ended.file.read_bytes()
    target = ended.folder / "precious"
    target.write_text("keep", encoding="utf-8")
    (ended.folder / "link.md").symlink_to(target)
    found = ended.all(
        [
            ["export", "--to", "md", "--out", "dialog.md", "--force"],
            ["export", "--to", "md", "--out", "link.md"],
            ["export", "--to", "docx"],
            ["export", "gone.md", "--to", "md"],
            ["export"],
        ]
    )
    assert [done.code for done in found] == [2, 2, 2, 3, 2]
    assert ended("export", "--to", "md", "--out", "link.md", "--force").code == 0
    assert (ended.file.read_bytes(), target.read_text(encoding="utf-8")) == (before, "keep")


def test_a_dialog_of_the_archive_is_exported_with_its_attachments(ended: Commands, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    folder.mkdir(mode=0o700)
    copy = archive(peaceful().dialog, ended.file, folder)
    done = ended("export", str(copy), "--to", "md", "--out", "-")
    assert "the whole text" in done.out


@pytest.mark.slow
def test_a_pdf_begins_like_one(ended: Commands) -> None:
    pytest.importorskip("weasyprint", reason="weasyprint is not installed: pip install 'dialogd[pdf]'")
    assert ended("export", "--to", "pdf", "--out", "x.pdf").code == 0
    data = (ended.folder / "x.pdf").read_bytes()
    assert (data[:5], b"%%EOF" in data[-32:]) == (b"%PDF-", True)
