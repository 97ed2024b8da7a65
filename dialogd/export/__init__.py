"""A dialog to take along: Markdown, HTML, PDF or JSON, each complete in itself; agents' text is only text in each."""

from dialogd.archive import attachments_of
from dialogd.export.formats import FORMATS, export, file_name, not_shown

__all__ = ["FORMATS", "attachments_of", "export", "file_name", "not_shown"]
